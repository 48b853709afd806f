//! What is made of points.

use super::*;
use crate::plan::{Cell, Connection, Link, Mode, Rule};
use crate::schedule::Standing;

fn trial(requests_per_s: f64, failed_requests: u64) -> Trial {
    Trial {
        value: requests_per_s,
        work_per_s: requests_per_s,
        failed_requests,
        latency_p99_us: requests_per_s,
        ..Trial::default()
    }
}

#[test]
fn a_run_that_was_set_aside_counts_for_nothing_but_its_errors() {
    let (first, second, again) = (trial(100.0, 0), trial(10.0, 3), trial(200.0, 0));
    let attempts = [(&first, Standing::Disturbed), (&second, Standing::SetAside), (&again, Standing::Stands)];
    for (steady, median) in [(true, 200.0), (false, 150.0)] {
        let figure = Figure::new(Link::Xdp, &attempts, steady);
        assert_eq!((figure.median, figure.latency_p99_us), (median, median));
        assert_eq!(figure.points_in_words(&Described::default()), "~100 200");
        assert_eq!((figure.points, figure.set_aside), (vec![100.0, 200.0], vec![10.0]));
        assert_eq!(figure.disturbed, [0]);
        assert_eq!(figure.errors, 3);
        assert!(figure.problems[0].contains("3 requests failed"), "{:?}", figure.problems);
    }
}

#[test]
fn no_more_of_a_gain_is_said_than_is_known() {
    let cell = Cell::plain(0, Connection::Close, Link::Kernel);
    let report = |ours: &[f64], standing: Standing| {
        let kernel = [100.0, 101.0, 99.0, 102.0].map(|value| (Mode::Kernel, value));
        let ours = ours.iter().map(|&value| (Mode::Overfly, value));
        let trials: Vec<(Case, Trial)> = kernel
            .into_iter()
            .chain(ours)
            .zip(1..)
            .map(|((mode, value), repeat)| {
                (Case { cell: 0, mode, generator: Link::Kernel, repeat }, trial(value, 0))
            })
            .collect();
        CellReport::new(&Plan::any(), 0, cell, &trials, &vec![standing; trials.len()])
    };
    let twice = report(&[200.0, 202.0, 198.0, 204.0], Standing::Stands);
    assert_eq!(twice.gain_in_words(), "2.00 (1.94 to 2.06)");
    assert_eq!(report(&[200.0, 202.0], Standing::Stands).gain_in_words(), "2.00 (1.96 to 2.04, 87 %)");
    let same = report(&[100.0, 103.0, 98.0, 101.5], Standing::Stands);
    assert_eq!(same.gain_in_words(), "no difference seen");
    let disturbed = report(&[200.0, 202.0, 198.0, 204.0], Standing::Disturbed);
    assert!(disturbed.gain_disturbed);
    assert_eq!(disturbed.gain_in_words(), "~2.0");
    let far = report(&[200.0, 201.0, 199.0, 120.0, 200.5], Standing::Stands);
    assert_eq!(far.overfly.unwrap().points_in_words(&Described::default()), "200 201 199 120? 200");
}

#[test]
fn over_memif_the_gain_is_that_of_a_server_core() {
    let cell = Cell::plain(0, Connection::Close, Link::Memif);
    let case = |mode| Case { cell: 0, mode, generator: cell.generator(mode), repeat: 1 };
    // The kernel's generator was the limit: its server had half of its time left.
    let kernel =
        Trial { server_cpu_us_per_request: 10.0, generator_busy_percent: 99.0, ..trial(50_000.0, 0) };
    let overfly = Trial { server_cpu_us_per_request: 2.5, ..trial(400_000.0, 0) };
    let overfly = Trial { server_core_busy_percent: 100.0, ..overfly };
    let trials = [(case(Mode::Kernel), kernel), (case(Mode::Overfly), overfly)];
    let report = CellReport::new(&Plan::any(), 0, cell, &trials, &[Standing::Stands; 2]);
    assert_eq!(report.gain, Some(4.0));
    let limits = report.figures().map(|figure| figure.limit).collect::<Vec<_>>();
    assert_eq!(limits, [Limit::Generator, Limit::Server]);
    assert_eq!(Limit::of(60.0, 60.0), Limit::Neither);
}

#[test]
fn a_rule_may_be_about_a_core_of_the_server() {
    let cell = Cell::plain(0, Connection::Close, Link::Kernel);
    let case = |mode| Case { cell: 0, mode, generator: Link::Kernel, repeat: 1 };
    // Neither server was the limit: requests/s say nothing.
    let trials = [
        (case(Mode::Kernel), Trial { server_cpu_us_per_request: 3.2, ..trial(100.0, 0) }),
        (case(Mode::Overfly), Trial { server_cpu_us_per_request: 2.0, ..trial(100.0, 0) }),
    ];
    let report = CellReport::new(&Plan::any(), 0, cell, &trials, &[Standing::Stands; 2]);
    let judged = |rule: &str| {
        let judgement = report.judged(&Rule::try_from(rule.to_owned()).unwrap()).unwrap();
        (judgement.holds, judgement.value)
    };
    assert_eq!(judged("core_gain >= 1.5"), (true, 1.6));
    assert_eq!(judged("core_gain >= 1.7"), (false, 1.6));
    assert_eq!(judged("gain >= 1.5"), (false, 1.0));
}

#[test]
fn a_figure_near_the_generators_ceiling_is_named_where_the_ceiling_is_known() {
    let cell = Cell::plain(0, Connection::Close, Link::Kernel);
    let case = |mode| Case { cell: 0, mode, generator: Link::Kernel, repeat: 1 };
    let near = |null: Trial, overfly: f64| {
        let trials = [
            (case(Mode::Kernel), trial(50.0, 0)),
            (case(Mode::Null), null),
            (case(Mode::Overfly), trial(overfly, 0)),
        ];
        CellReport::new(&Plan::any(), 0, cell, &trials, &[Standing::Stands; 3]).near_ceiling()
    };
    let limited = |busy: f64| Trial { generator_busy_percent: busy, ..trial(100.0, 0) };
    let named = near(limited(99.0), 95.0);
    assert!(
        named.len() == 1 && named[0].contains("overfly: 95 % of what the generator reached"),
        "{named:?}"
    );
    assert!(near(limited(99.0), 80.0).is_empty());
    assert!(near(limited(60.0), 95.0).is_empty(), "the null server was the limit itself");
}

#[test]
fn steady_points_are_compared_with_steady_points_or_all_with_all() {
    let cell = Cell::plain(0, Connection::Close, Link::Kernel);
    let case = |mode, repeat| Case { cell: 0, mode, generator: Link::Kernel, repeat };
    let trials = [
        (case(Mode::Kernel, 1), trial(50.0, 0)),
        (case(Mode::Kernel, 2), trial(100.0, 0)),
        (case(Mode::Overfly, 1), trial(100.0, 0)),
        (case(Mode::Overfly, 2), trial(200.0, 0)),
    ];
    let (slow, fast) = (Standing::Disturbed, Standing::Stands);
    let gain = |standings: [Standing; 4]| CellReport::new(&Plan::any(), 0, cell, &trials, &standings).gain;
    assert_eq!(gain([slow, fast, slow, fast]), Some(2.0));
    assert_eq!(gain([slow, fast, fast, slow]), Some(1.0));
    assert_eq!(gain([slow, slow, slow, fast]), Some(2.0), "all with all: 150 and 75");
}
