//! `report.html`, which needs nothing but itself, and `points.csv`.

use std::fmt::Write;

use super::Report;

const PAGE: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const UPLOT: &str = include_str!("../../vendor/uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../../vendor/uplot/uPlot.min.css");

impl Report {
    /// `report.html`: summary, charts, tables, environment, commands and raw data, with no link to anywhere.
    #[must_use]
    pub fn to_html(&self) -> String {
        // Whatever a server or a path is called, it cannot end the element that it stands in.
        let data = serde_json::to_string(self).unwrap_or_default().replace('<', "\\u003c");
        let title = self.title.replace('&', "&amp;").replace('<', "&lt;");
        // In this order: what comes from outside is put in last, so that nothing in it is replaced.
        PAGE.replace("@UPLOT_CSS@", UPLOT_CSS)
            .replace("@CSS@", CSS)
            .replace("@UPLOT@", UPLOT)
            .replace("@SCRIPT@", SCRIPT)
            .replacen("@TITLE@", &title, 1)
            .replacen("@SUMMARY@", &data, 1)
    }

    /// `points.csv`: one line for each point, RFC 4180.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut text = format!(
            "payload_bytes,connection,link,connections,rate_per_s,workers,instances,profile,server,repeat,{},disturbed,outlier\r\n",
            self.measure.key
        );
        for cell in &self.cells {
            for (name, figure) in cell.named_figures() {
                for (index, point) in figure.points.iter().enumerate() {
                    let rate = cell.rate_per_s.map(|rate| rate.to_string()).unwrap_or_default();
                    // Writing to a String cannot fail.
                    let _ = write!(
                        text,
                        "{},{},{},{},{rate},{},{},{},{},{},{point},{},{}\r\n",
                        cell.payload_bytes,
                        cell.connection,
                        cell.link,
                        cell.connections,
                        cell.workers,
                        cell.instances,
                        quoted(&cell.profile),
                        quoted(name),
                        index + 1,
                        figure.disturbed.contains(&index),
                        figure.outliers.contains(&index),
                    );
                }
            }
        }
        text
    }
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}
