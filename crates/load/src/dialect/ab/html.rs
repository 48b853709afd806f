//! The page as ab's `-w` prints it: one HTML table.

use std::fmt::{self, Write};

use super::distribution::Distribution;
use super::page::Results;

/// What is printed before the run.
pub(super) const BANNER: &str = concat!(
    "<p>\n This is ApacheBench, Version 2.3 <i>&lt;overfly ",
    env!("CARGO_PKG_VERSION"),
    "&gt;</i><br>\n",
    " ab's flags and page by Overfly, over its own engine or the kernel<br>\n",
    " ApacheBench itself is part of the Apache HTTP Server, https://httpd.apache.org/<br>\n</p>\n<p>\n"
);

/// Attributes of the table (`-x`), its rows (`-y`) and its cells (`-z`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) table: String,
    pub(super) row: String,
    pub(super) cell: String,
}

/// The table.
pub(super) fn table(results: &Results, attributes: &Attributes) -> String {
    let mut html = String::new();
    write_table(&mut html, results, attributes).expect("a String takes whatever is written to it");
    html
}

fn write_table(html: &mut String, results: &Results, attributes: &Attributes) -> fmt::Result {
    let Attributes { table, row, cell } = attributes;
    let counts = &results.counts;
    writeln!(html, "\n\n<table {table}>")?;
    let mut line = |name: &str, value: &str| {
        let value = escaped(value);
        writeln!(html, "<tr {row}><th colspan=2 {cell}>{name}</th><td colspan=2 {cell}>{value}</td></tr>")
    };
    line("Server Software:", &results.software)?;
    line("Server Hostname:", &results.host)?;
    line("Server Port:", &results.port.to_string())?;
    line("Document Path:", &results.path)?;
    let length = results.length.map_or("Variable".to_string(), |length| format!("{length} bytes"));
    line("Document Length:", &length)?;
    line("Concurrency Level:", &results.concurrency.to_string())?;
    line("Time taken for tests:", &format!("{:.3} seconds", results.seconds))?;
    line("Complete requests:", &counts.complete.to_string())?;
    line("Failed requests:", &counts.failed().to_string())?;
    if counts.failed() > 0 {
        writeln!(html, "<tr {row}><td colspan=4 {cell} >   {}</td></tr>", results.kinds())?;
    }
    let mut line = |name: &str, value: String| {
        writeln!(html, "<tr {row}><th colspan=2 {cell}>{name}</th><td colspan=2 {cell}>{value}</td></tr>")
    };
    if counts.not_2xx > 0 {
        line("Non-2xx responses:", counts.not_2xx.to_string())?;
    }
    if results.keep_alive {
        line("Keep-Alive requests:", counts.kept_alive.to_string())?;
    }
    line("Total transferred:", format!("{} bytes", results.received))?;
    if results.sends_content {
        line("Total body sent:", results.sent.to_string())?;
    }
    line("HTML transferred:", format!("{} bytes", counts.html_bytes))?;
    line("Requests per second:", format!("{:.2}", results.per_s(counts.complete)))?;
    line("Transfer rate:", format!("{:.2} kb/s received", results.kib_per_s(results.received)))?;
    if results.sends_content {
        let both = results.kib_per_s(results.received + results.sent);
        let mut more = |rate: f64, what: &str| {
            let value = format!("{rate:.2} kb/s {what}");
            writeln!(html, "<tr {row}><td colspan=2 {cell}>&nbsp;</td><td colspan=2 {cell}>{value}</td></tr>")
        };
        more(results.kib_per_s(results.sent), "sent")?;
        more(both, "total")?;
    }
    if counts.complete > 0 {
        writeln!(html, "<tr {row}><th {cell} colspan=4>Connection Times (ms)</th></tr>")?;
        writeln!(
            html,
            "<tr {row}><th {cell}>&nbsp;</th> <th {cell}>min</th>   <th {cell}>avg</th>   <th {cell}>max</th></tr>"
        )?;
        let mut times = |name: &str, times: &Distribution| {
            let [min, mean, max] = [times.min_ms(), times.mean_ms(), times.max_ms()].map(f64::round);
            writeln!(
                html,
                "<tr {row}><th {cell}>{name}</th><td {cell}>{min:>5}</td><td {cell}>{mean:>5}</td>\
                 <td {cell}>{max:>5}</td></tr>"
            )
        };
        times("Connect:", &counts.connect)?;
        times("Processing:", &counts.processing)?;
        times("Total:", &counts.total)?;
    }
    writeln!(html, "</table>")
}

/// What a server says of itself is not ours to run.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
