//! What a sequence says on the kernel beside what it says on Overfly; what differs is made sure of, and shortened.

use super::known::{KNOWN, Known};
use super::play::{Players, Transcript, show};
use super::rest::Pace;
use super::script::{Script, Step};
use super::stall::stalls;

/// At first: who has not run for 3 ms is at rest.
const FAST: Pace = Pace::new(8, 3);
/// To shorten.
const FAIR: Pace = Pace::new(25, 8);
/// To make sure: 60 ms after each step, whoever sleeps.
pub(crate) const SURE: Pace = Pace::new(60, 60);
/// How often it is tried anew.
const STALLED_MAX: usize = 3;
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
    Varies(Box<Report>, Whose),
    Different(Box<Report>),
}

/// A difference that is listed, as a sequence met it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) known: &'static Known,
    /// The step, and what was said: so that anybody can see what an entry hides.
    pub(crate) what: String,
}

/// Who did not say the same each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Whatever Overfly said.
    Kernels,
    /// Overfly alone.
    Overflys,
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

/// What repeated plays came to.
enum Sure {
    Differs(Box<Report>),
    /// With what the kernel said each time.
    Not(Vec<Transcript>),
}

impl Worlds {
    /// Both at the same time; once more if the machine stood still meanwhile.
    pub(crate) fn play(&mut self, script: &Script, pace: Pace) -> (Transcript, Transcript) {
        for _ in 0..STALLED_MAX {
            let (before, restless) = (stalls(), self.overfly.restless);
            let played = self.play_once(script, pace);
            if stalls() == before {
                return played;
            }
            self.overfly.restless = restless;
        }
        self.play_once(script, pace)
    }

    fn play_once(&mut self, script: &Script, pace: Pace) -> (Transcript, Transcript) {
        std::thread::scope(|scope| {
            let kernel = scope.spawn(|| self.kernel.play(script, pace));
            let overfly = self.overfly.play(script, pace);
            (kernel.join().unwrap(), overfly)
        })
    }

    pub(crate) fn examine(&mut self, script: &Script) -> Outcome {
        let (kernel, overfly) = self.play(script, FAST);
        let known = |met: Vec<Met>| if met.is_empty() { Outcome::Same } else { Outcome::Known(met) };
        match judge(script, &kernel, &overfly) {
            Verdict::Same(met) => known(met),
            Verdict::Different(step) => match self.repeat(script, 2) {
                Sure::Differs(report) => {
                    let short = self.shorten(report.script.clone());
                    // A short one that does not come out so again is no help.
                    Outcome::Different(self.make_sure(&short).unwrap_or(report))
                }
                Sure::Not(again) => {
                    let steady = again.iter().all(|again| again[..=step] == kernel[..=step]);
                    let whose = if steady { Whose::Overflys } else { Whose::Kernels };
                    Outcome::Varies(Box::new(Report::up_to(step, script, &kernel, &overfly)), whose)
                }
            },
        }
    }

    /// A difference in a hurry, which may be nobody's fault.
    pub(crate) fn differs_once(&mut self, script: &Script) -> Option<Report> {
        let (kernel, overfly) = self.play(script, FAST);
        match judge(script, &kernel, &overfly) {
            Verdict::Different(step) => Some(Report::up_to(step, script, &kernel, &overfly)),
            Verdict::Same(_) => None,
        }
    }

    /// A difference that comes again, at the same step and in the same words, when there is time for everything.
    pub(crate) fn make_sure(&mut self, script: &Script) -> Option<Box<Report>> {
        match self.repeat(script, 1) {
            Sure::Differs(report) => Some(report),
            Sure::Not(_) => None,
        }
    }

    /// With time for everything, until a difference has come twice, or as often as is enough none.
    fn repeat(&mut self, script: &Script, enough: usize) -> Sure {
        let (mut differed, mut kernels) = (Vec::new(), Vec::new());
        let mut same = 0;
        while same < enough && kernels.len() < 3 {
            let (kernel, overfly) = self.play(script, SURE);
            kernels.push(kernel.clone());
            let Verdict::Different(step) = judge(script, &kernel, &overfly) else {
                same += 1;
                continue;
            };
            let told = (kernel[..=step].to_vec(), overfly[..=step].to_vec());
            if differed.contains(&told) {
                return Sure::Differs(Box::new(Report::up_to(step, script, &kernel, &overfly)));
            }
            differed.push(told);
        }
        Sure::Not(kernels)
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
