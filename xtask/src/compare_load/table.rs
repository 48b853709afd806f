//! What the rounds found out, for people.

use std::fmt::Write as _;

use overfly_bench::statistics::median;

use super::Row;
use super::generators::Work;
use super::measure::Run;

/// A table for each kind of work.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for work in Work::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.work == work).collect();
        let Some(rounds) = rows.iter().map(|row| row.runs.len()).max() else {
            continue;
        };
        let per_core = |row: &Row| median(row.runs.iter().map(Run::per_core_s));
        let of = |name: &str| rows.iter().find(|row| row.generator.name() == name).map(|row| per_core(row));
        writeln!(text, "\n{}: medians of {rounds}\n", work.name())
            .expect("a String takes whatever is written");
        line(
            &mut text,
            &[
                "",
                "a second",
                "CPU s/s",
                "a CPU second",
                "× wrk",
                "× ab",
                "× oha",
                "p50 µs",
                "p99 µs",
                "limited by",
            ],
        );
        for row in &rows {
            let value = |each: fn(&Run) -> f64| median(row.runs.iter().map(each));
            let times =
                |name| of(name).map_or_else(String::new, |other| format!("{:.2}", per_core(row) / other));
            line(
                &mut text,
                &[
                    &row.generator.name(),
                    &whole(value(|run| run.said.per_s)),
                    &format!("{:.2}", value(|run| run.cpu)),
                    &whole(per_core(row)),
                    &times("wrk"),
                    &times("ab"),
                    &times("oha"),
                    &whole(value(|run| run.said.p50_us)),
                    &whole(value(|run| run.said.p99_us)),
                    &limit(&row.runs),
                ],
            );
        }
        for row in &rows {
            let failed: f64 = row.runs.iter().map(|run| run.said.failed).sum();
            if failed > 0.0 {
                writeln!(text, "{}: {failed} requests failed", row.generator.name())
                    .expect("a String takes whatever is written");
            }
        }
    }
    text
}

/// Which core stood in the way, and how full both were.
fn limit(runs: &[Run]) -> String {
    let generator = runs.iter().filter(|run| run.generator_is_the_limit()).count() * 2 > runs.len();
    let percent = |each: fn(&Run) -> f64| 100.0 * median(runs.iter().map(each));
    format!(
        "the {}'s core (generator's {:.0} % busy, server's {:.0} %)",
        if generator { "generator" } else { "server" },
        percent(|run| run.said.busy_share.unwrap_or(run.generator_core)),
        percent(|run| run.server_core)
    )
}

fn whole(value: f64) -> String {
    if value.is_nan() { "–".to_owned() } else { format!("{value:.0}") }
}

fn line(text: &mut String, cells: &[&str]) {
    let (first, rest) = cells.split_first().expect("a line has cells");
    let (last, rest) = rest.split_last().expect("a line has more than one cell");
    write!(text, "{first:<16}").expect("a String takes whatever is written");
    for cell in rest {
        write!(text, "{cell:>13}").expect("a String takes whatever is written");
    }
    writeln!(text, "  {last}").expect("a String takes whatever is written");
}
