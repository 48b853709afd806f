//! What a sequence says on the kernel beside what it says on Overfly; what differs is made sure of, and shortened.

use super::known::{KNOWN, Known};
use super::play::{Players, Transcript, show};
use super::script::{Script, Step};

/// Milliseconds that everything has to come to rest after each step: at first, to shorten, and to make sure.
const FAST: u64 = 8;
const FAIR: u64 = 25;
const SURE: u64 = 60;
/// How many shorter sequences are tried.
const ATTEMPTS: usize = 150;

/// Those who play on the kernel, and those who play on Overfly.
pub(crate) struct Worlds {
    pub(crate) kernel: Players,
    pub(crate) overfly: Players,
}

/// What came of a sequence.
pub(crate) enum Outcome {
    Same,
    /// What differs is listed; the sequence was compared up to there, or to its end.
    Known(Vec<Met>),
    /// It came out differently each time, on one of the two, or only in a hurry.
    Varies(Box<Report>),
    Different(Box<Report>),
}

/// A difference that is listed, as a sequence met it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) known: &'static Known,
    /// The step, and what was said: so that anybody can see what an entry hides.
    pub(crate) what: String,
}

/// A difference that is not listed.
pub(crate) struct Report {
    pub(crate) script: Script,
    pub(crate) kernel: Transcript,
    pub(crate) overfly: Transcript,
}

impl Report {
    fn up_to(step: usize, script: &Script, kernel: &Transcript, overfly: &Transcript) -> Report {
        let mut script = script.clone();
        script.steps.truncate(step + 1);
        Report { script, kernel: kernel[..=step].to_vec(), overfly: overfly[..=step].to_vec() }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}\nkernel, and where it differs Overfly:\n{}",
            self.script,
            show(&self.script, &self.kernel, &self.overfly)
        )
    }
}

/// How two transcripts compare.
#[derive(PartialEq, Eq)]
enum Verdict {
    Same(Vec<Met>),
    /// At this step.
    Different(usize),
}

fn judge(script: &Script, kernel: &Transcript, overfly: &Transcript) -> Verdict {
    let end = Step::new('-', "the end");
    let mut met = Vec::new();
    for (number, (kernel, overfly)) in kernel.iter().zip(overfly).enumerate() {
        if kernel == overfly {
            continue;
        }
        let step = script.steps.get(number).unwrap_or(&end).to_string();
        let so_far = &script.steps[..(number + 1).min(script.steps.len())];
        let told = |lines: &Vec<String>| lines.join("; ");
        let (kernel, overfly) = (told(kernel), told(overfly));
        let known = KNOWN.iter().find(|known| known.is(script.place, so_far, &step, &kernel, &overfly));
        let Some(known) = known else { return Verdict::Different(number) };
        met.push(Met { known, what: format!("{step}: {kernel}, Overfly: {overfly}") });
        if known.ends {
            break;
        }
    }
    Verdict::Same(met)
}

impl Worlds {
    /// Both at the same time.
    pub(crate) fn play(&mut self, script: &Script, unit_ms: u64) -> (Transcript, Transcript) {
        std::thread::scope(|scope| {
            let kernel = scope.spawn(|| self.kernel.play(script, unit_ms));
            let overfly = self.overfly.play(script, unit_ms);
            (kernel.join().unwrap(), overfly)
        })
    }

    pub(crate) fn examine(&mut self, script: &Script) -> Outcome {
        let (kernel, overfly) = self.play(script, FAST);
        let known = |met: Vec<Met>| if met.is_empty() { Outcome::Same } else { Outcome::Known(met) };
        match judge(script, &kernel, &overfly) {
            Verdict::Same(met) => known(met),
            Verdict::Different(step) => match self.make_sure(script) {
                Some(report) => {
                    let short = self.shorten(report.script.clone());
                    // A short one that does not come out so again is no help.
                    Outcome::Different(Box::new(self.make_sure(&short).unwrap_or(report)))
                }
                None => Outcome::Varies(Box::new(Report::up_to(step, script, &kernel, &overfly))),
            },
        }
    }

    /// A difference that comes again, at the same step and in the same words, when there is time for everything.
    pub(crate) fn make_sure(&mut self, script: &Script) -> Option<Report> {
        let first = self.play(script, SURE);
        let Verdict::Different(step) = judge(script, &first.0, &first.1) else { return None };
        let again = self.play(script, SURE);
        let as_before = first.0[..=step] == again.0[..=step] && first.1[..=step] == again.1[..=step];
        as_before.then(|| Report::up_to(step, script, &first.0, &first.1))
    }

    /// Without the steps that the difference does not need.
    fn shorten(&mut self, mut script: Script) -> Script {
        let (mut piece, mut attempts) = (script.steps.len() / 2, 0);
        while piece > 0 && attempts < ATTEMPTS {
            let mut from = 0;
            while from < script.steps.len() && attempts < ATTEMPTS {
                let mut shorter = script.clone();
                shorter.steps.drain(from..(from + piece).min(script.steps.len()));
                let (kernel, overfly) = self.play(&shorter, FAIR);
                attempts += 1;
                match judge(&shorter, &kernel, &overfly) {
                    Verdict::Different(step) => {
                        shorter.steps.truncate(step + 1);
                        script = shorter;
                    }
                    Verdict::Same(_) => from += piece,
                }
            }
            piece /= 2;
        }
        script
    }
}
