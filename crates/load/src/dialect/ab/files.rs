//! The files that ab writes: `-e` for spreadsheets, `-g` for gnuplot.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::counts::Row;
use super::distribution::Distribution;

/// `-e`: the time within which each per cent of the requests was served.
pub(super) fn percentages(total: &Distribution) -> String {
    let mut csv = String::from("Percentage served,Time in ms\n");
    for percent in 0..=100 {
        let ms = total.percentile_ms(f64::from(percent));
        writeln!(csv, "{percent},{ms:.3}").expect("a String takes whatever is written to it");
    }
    csv
}

/// `-g`: every request, the quickest first. `began` is the run's beginning; times of day are UTC.
pub(super) fn requests(rows: &[Row], began: SystemTime) -> String {
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| row.total_ns);
    let mut table = String::from("starttime\tseconds\tctime\tdtime\tttime\twait\n");
    let ms = |ns: u64| (ns + 500_000) / 1_000_000;
    for row in &sorted {
        let started = began + Duration::from_nanos(row.started_ns);
        let seconds = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let [connect, processing, total, wait] =
            [row.connect_ns, row.processing_ns(), row.total_ns, row.wait_ns].map(ms);
        writeln!(table, "{}\t{seconds}\t{connect}\t{processing}\t{total}\t{wait}", date(seconds))
            .expect("a String takes whatever is written to it");
    }
    table
}

/// `Sun Nov 22 05:05:51 2026`, as ctime(3) writes seconds since 1970, in UTC.
fn date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 0;
    let length = |month: usize| match month {
        1 => 28 + u64::from(leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    };
    while day >= length(month) {
        day -= length(month);
        month += 1;
    }
    format!(
        "{} {} {:02} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month],
        day + 1,
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_as_ctime_has_them() {
        assert_eq!(date(0), "Thu Jan 01 00:00:00 1970");
        assert_eq!(date(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(date(1_795_323_951), "Sun Nov 22 05:05:51 2026");
        assert_eq!(date(1_798_761_599), "Thu Dec 31 23:59:59 2026");
    }

    #[test]
    fn both_files_have_a_head_and_a_line_each() {
        let mut total = Distribution::new();
        let row = |total_ns| Row { started_ns: 0, connect_ns: 400_000, wait_ns: 600_000, total_ns };
        let rows = [row(2_600_000), row(1_400_000)];
        for row in &rows {
            total.record(row.total_ns);
        }
        let csv = percentages(&total);
        assert_eq!(csv.lines().count(), 102);
        assert!(csv.starts_with("Percentage served,Time in ms\n0,1.400\n") && csv.ends_with("\n100,2.600\n"));
        let table = requests(&rows, UNIX_EPOCH);
        assert_eq!(
            table,
            "starttime\tseconds\tctime\tdtime\tttime\twait\n\
             Thu Jan 01 00:00:00 1970\t0\t0\t1\t1\t1\n\
             Thu Jan 01 00:00:00 1970\t0\t0\t2\t3\t1\n"
        );
    }
}
