//! Faults on request, so that a client's bad weather can be tested.

use crate::error::Error;
use crate::random::SplitMix;

/// What a response may suffer instead of arriving whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is reset when the request is complete.
    Reset,
    /// Half of the response, then silence.
    Stall,
    /// Bytes that are no HTTP, then the end of the connection.
    Garbage,
    /// Half of the response, then the end of the connection.
    Short,
    /// More content than the head says.
    Lie,
}

impl Fault {
    /// Every kind, in the order of its index.
    pub const ALL: [Fault; 5] = [Fault::Reset, Fault::Stall, Fault::Garbage, Fault::Short, Fault::Lie];

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::Reset => "reset",
            Fault::Stall => "stall",
            Fault::Garbage => "garbage",
            Fault::Short => "short",
            Fault::Lie => "lie",
        }
    }
}

/// How often each fault happens: the chance of a request, in millionths, in the order of [`Fault::ALL`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chances([u32; 5]);

const CERTAIN: u32 = 1_000_000;

impl Chances {
    /// Adds what `--fault` says: `reset=1%`, or `reset` for always.
    ///
    /// # Errors
    /// [`Error::Usage`] for no such fault, no share, or more than 100 % in all.
    pub fn add(&mut self, given: &str) -> Result<(), Error> {
        let wrong = |expected: &str| Error::usage("--fault", given, expected);
        let (name, share) = given.split_once('=').unwrap_or((given, "100%"));
        let fault = Fault::ALL.into_iter().find(|fault| fault.name() == name);
        let fault = fault.ok_or_else(|| wrong("reset, stall, garbage, short or lie, and =SHARE%"))?;
        let share = share.strip_suffix('%').and_then(|percent| percent.parse::<f64>().ok());
        let share = share.filter(|percent| (0.0..=100.0).contains(percent));
        let share = share.ok_or_else(|| wrong("a share such as reset=1% or stall=0.05%"))?;
        self.0[fault as usize] = (share / 100.0 * f64::from(CERTAIN)).round() as u32;
        if self.0.iter().sum::<u32>() > CERTAIN {
            return Err(wrong("no more than 100% for all faults together"));
        }
        Ok(())
    }

    /// The chance of one fault, in millionths.
    #[must_use]
    pub fn of(&self, fault: Fault) -> u32 {
        self.0[fault as usize]
    }
}

/// Throws for each request. The same seed gives the same faults in the same order.
#[derive(Debug)]
pub(crate) struct Dice {
    chances: Chances,
    random: SplitMix,
}

impl Dice {
    pub(crate) fn new(chances: Chances, seed: u64) -> Dice {
        Dice { chances, random: SplitMix::new(seed) }
    }

    #[inline]
    pub(crate) fn throw(&mut self) -> Option<Fault> {
        if self.chances == Chances::default() {
            return None;
        }
        let mut point = self.random.below(u64::from(CERTAIN)) as u32;
        for fault in Fault::ALL {
            match point.checked_sub(self.chances.of(fault)) {
                Some(beyond) => point = beyond,
                None => return Some(fault),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chances(given: &[&str]) -> Result<Chances, Error> {
        let mut chances = Chances::default();
        given.iter().try_for_each(|given| chances.add(given))?;
        Ok(chances)
    }

    #[test]
    fn faults_come_as_often_as_they_should() {
        let mut dice = Dice::new(chances(&["reset=1%", "lie=20%"]).unwrap(), 7);
        let mut seen = [0_i32; 5];
        for _ in 0..100_000 {
            if let Some(fault) = dice.throw() {
                seen[fault as usize] += 1;
            }
        }
        // Five standard deviations.
        assert!((seen[Fault::Reset as usize] - 1000).abs() < 160, "{seen:?}");
        assert!((seen[Fault::Lie as usize] - 20_000).abs() < 640, "{seen:?}");
        assert_eq!((seen[1], seen[2], seen[3]), (0, 0, 0));

        let mut always = Dice::new(chances(&["stall"]).unwrap(), 1);
        assert!((0..1000).all(|_| always.throw() == Some(Fault::Stall)));
        let mut never = Dice::new(Chances::default(), 1);
        assert!((0..1000).all(|_| never.throw().is_none()));
    }

    #[test]
    fn what_is_no_fault() {
        for given in ["burn=1%", "reset=1", "reset=-1%", "reset=x%", "reset=101%", ""] {
            assert!(chances(&[given]).unwrap_err().to_string().starts_with("--fault"), "{given}");
        }
        assert!(chances(&["reset=60%", "stall=50%"]).is_err());
        assert!(chances(&["reset=60%", "reset=50%", "stall=50%"]).is_ok());
    }
}
