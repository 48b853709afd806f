//! The page that ab prints, line by line as its own.

use std::fmt::{self, Write};

use super::counts::Counts;
use super::distribution::Distribution;

/// What is printed before the run; the last two lines are ours, where ab has its copyright.
pub(super) const BANNER: &str = concat!(
    "This is ApacheBench, Version 2.3 <overfly ",
    env!("CARGO_PKG_VERSION"),
    ">\n",
    "ab's flags and page by Overfly, over its own engine or the kernel\n",
    "ApacheBench itself is part of the Apache HTTP Server, https://httpd.apache.org/\n\n"
);

/// Percentages of the table of served requests.
const SERVED: [u32; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

/// What was asked for and what came of it.
#[derive(Debug)]
pub(super) struct Results {
    /// The Server field of a response; empty if there was none.
    pub(super) software: String,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
    /// The expected content size; `None`: any (`-l`).
    pub(super) length: Option<u64>,
    pub(super) concurrency: usize,
    /// `-k`.
    pub(super) keep_alive: bool,
    /// A request has content (`-p`, `-u`).
    pub(super) sends_content: bool,
    pub(super) seconds: f64,
    /// Bytes received, heads included.
    pub(super) received: u64,
    /// Bytes sent, heads included.
    pub(super) sent: u64,
    pub(super) counts: Counts,
}

impl Results {
    pub(super) fn per_s(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }

    pub(super) fn kib_per_s(&self, bytes: u64) -> f64 {
        self.per_s(bytes) / 1024.0
    }

    /// The line in brackets after failed requests.
    pub(super) fn kinds(&self) -> String {
        let c = &self.counts;
        format!(
            "(Connect: {}, Receive: {}, Length: {}, Exceptions: {})",
            c.connect_errors, c.receive_errors, c.length_errors, c.exceptions
        )
    }
}

/// What is left out, and what is added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// Without the table of percentages (`-d`).
    pub(super) no_percentiles: bool,
    /// Without medians, deviations and warnings (`-S`).
    pub(super) no_confidence: bool,
    /// With the count of successes.
    pub(super) successes: bool,
}

/// The page.
pub(super) fn page(results: &Results, shown: Shown) -> String {
    let mut page = String::new();
    write_page(&mut page, results, shown).expect("a String takes whatever is written to it");
    page
}

fn write_page(page: &mut String, results: &Results, shown: Shown) -> fmt::Result {
    let counts = &results.counts;
    writeln!(page, "\n\nServer Software:        {}", results.software)?;
    writeln!(page, "Server Hostname:        {}", results.host)?;
    writeln!(page, "Server Port:            {}\n", results.port)?;
    writeln!(page, "Document Path:          {}", results.path)?;
    match results.length {
        Some(length) => writeln!(page, "Document Length:        {length} bytes\n")?,
        None => writeln!(page, "Document Length:        Variable\n")?,
    }
    writeln!(page, "Concurrency Level:      {}", results.concurrency)?;
    writeln!(page, "Time taken for tests:   {:.3} seconds", results.seconds)?;
    writeln!(page, "Complete requests:      {}", counts.complete)?;
    writeln!(page, "Failed requests:        {}", counts.failed())?;
    if counts.failed() > 0 {
        writeln!(page, "   {}", results.kinds())?;
    }
    if shown.successes {
        writeln!(page, "Successful requests:    {}", counts.good)?;
    }
    if counts.write_errors > 0 {
        writeln!(page, "Write errors:           {}", counts.write_errors)?;
    }
    if counts.not_2xx > 0 {
        writeln!(page, "Non-2xx responses:      {}", counts.not_2xx)?;
    }
    if results.keep_alive {
        writeln!(page, "Keep-Alive requests:    {}", counts.kept_alive)?;
    }
    writeln!(page, "Total transferred:      {} bytes", results.received)?;
    if results.sends_content {
        writeln!(page, "Total body sent:        {}", results.sent)?;
    }
    writeln!(page, "HTML transferred:       {} bytes", counts.html_bytes)?;
    if counts.complete > 0 {
        write_rates(page, results)?;
        write_times(page, counts, shown)?;
        if !shown.no_percentiles && counts.complete > 1 {
            write_served(page, &counts.total)?;
        }
    }
    Ok(())
}

fn write_rates(page: &mut String, results: &Results) -> fmt::Result {
    let per_s = results.per_s(results.counts.complete);
    let each_ms = if per_s > 0.0 { 1e3 / per_s } else { 0.0 };
    writeln!(page, "Requests per second:    {per_s:.2} [#/sec] (mean)")?;
    writeln!(page, "Time per request:       {:.3} [ms] (mean)", each_ms * results.concurrency as f64)?;
    writeln!(page, "Time per request:       {each_ms:.3} [ms] (mean, across all concurrent requests)")?;
    writeln!(
        page,
        "Transfer rate:          {:.2} [Kbytes/sec] received",
        results.kib_per_s(results.received)
    )?;
    if results.sends_content {
        writeln!(page, "                        {:.2} kb/s sent", results.kib_per_s(results.sent))?;
        let both = results.kib_per_s(results.received + results.sent);
        writeln!(page, "                        {both:.2} kb/s total")?;
    }
    Ok(())
}

fn write_times(page: &mut String, counts: &Counts, shown: Shown) -> fmt::Result {
    writeln!(page, "\nConnection Times (ms)")?;
    let rows = [
        ("Connect:", &counts.connect, "the initial connection time"),
        ("Processing:", &counts.processing, "the processing time"),
        ("Waiting:", &counts.waiting, "the waiting time"),
        ("Total:", &counts.total, "the total time"),
    ];
    if shown.no_confidence {
        writeln!(page, "              min   avg   max")?;
        for (name, times, _) in rows {
            let [min, mean, max] = [times.min_ms(), times.mean_ms(), times.max_ms()].map(f64::round);
            writeln!(page, "{name:<11} {min:>5} {mean:>5}{max:>5}")?;
        }
        return Ok(());
    }
    writeln!(page, "              min  mean[+/-sd] median   max")?;
    for (name, times, _) in rows {
        let [min, mean, max] = [times.min_ms(), times.mean_ms(), times.max_ms()].map(f64::round);
        let (deviation, median) = (times.deviation_ms(), times.percentile_ms(50.0).round());
        writeln!(page, "{name:<11} {min:>5} {mean:>4} {deviation:>5.1} {median:>6} {max:>7}")?;
    }
    for (_, times, what) in rows {
        write_doubt(page, times, what)?;
    }
    Ok(())
}

/// What ab says where mean and median are far apart.
fn write_doubt(page: &mut String, times: &Distribution, what: &str) -> fmt::Result {
    let apart = (times.mean_ms().round() - times.percentile_ms(50.0).round()).abs();
    let deviation = times.deviation_ms();
    if apart > 2.0 * deviation {
        writeln!(
            page,
            "ERROR: The median and mean for {what} are more than twice the standard\n       \
             deviation apart. These results are NOT reliable."
        )
    } else if apart > deviation {
        writeln!(
            page,
            "WARNING: The median and mean for {what} are not within a normal deviation\n        \
             These results are probably not that reliable."
        )
    } else {
        Ok(())
    }
}

fn write_served(page: &mut String, total: &Distribution) -> fmt::Result {
    writeln!(page, "\nPercentage of the requests served within a certain time (ms)")?;
    for percent in SERVED {
        let ms = total.percentile_ms(f64::from(percent)).round();
        let longest = if percent == 100 { " (longest request)" } else { "" };
        writeln!(page, "{percent:>4}%  {ms:>5}{longest}")?;
    }
    Ok(())
}
