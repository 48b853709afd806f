//! `--tui`: a screen of its own on a terminal, while the run goes on. `q` or Ctrl-C ends the run early.
//!
//! It is drawn on standard error, so that standard output can go elsewhere. The terminal is put back as it was
//! when this is dropped, and before a panic is reported.

use std::io::{self, IsTerminal, Stderr};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, LineGauge, Paragraph, Row, Sparkline, Table};
use ratatui::{Frame, Terminal};

use overfly_terminal::{columns, parts};

use super::board::Board;
use super::units;
use crate::error::Error;
use crate::record::Failure;

/// Whether the terminal is ours at the moment.
static TAKEN: AtomicBool = AtomicBool::new(false);
static HOOK: Once = Once::new();

/// The terminal while it is ours.
#[derive(Debug)]
pub(crate) struct Tui {
    terminal: Terminal<CrosstermBackend<Stderr>>,
}

impl Tui {
    /// Whether there is a terminal to draw on and to read keys from.
    pub(crate) fn check() -> Result<(), Error> {
        if io::stderr().is_terminal() && io::stdin().is_terminal() {
            return Ok(());
        }
        Err(Error::usage("--tui", "", "a terminal on standard input and standard error"))
    }

    /// Takes the terminal.
    pub(crate) fn open() -> Result<Tui, Error> {
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                put_back();
                report(panic);
            }));
        });
        TAKEN.store(true, Ordering::Relaxed);
        let open = || {
            enable_raw_mode()?;
            execute!(io::stderr(), EnterAlternateScreen, cursor::Hide)?;
            Terminal::new(CrosstermBackend::new(io::stderr()))
        };
        open().map(|terminal| Tui { terminal }).map_err(|error| {
            put_back();
            Error::machine("taking the terminal for --tui", error)
        })
    }

    /// Draws, and says whether somebody has asked for the end.
    pub(crate) fn show(&mut self, board: &Board) -> io::Result<bool> {
        self.show_with(|frame| draw(frame, board))
    }

    /// As [`Tui::show`], of another screen.
    pub(crate) fn show_with(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<bool> {
        self.terminal.draw(draw)?;
        let mut end = false;
        while event::poll(Duration::ZERO)? {
            if let Event::Key(key) = event::read()? {
                let control_c =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                let quit = matches!(key.code, KeyCode::Char('q' | 'Q')) || control_c;
                end |= quit && key.kind == KeyEventKind::Press;
            }
        }
        Ok(end)
    }
}

impl Drop for Tui {
    fn drop(&mut self) {
        put_back();
    }
}

/// Puts the terminal back as it was, once. What fails here has nowhere to be said.
fn put_back() {
    if TAKEN.swap(false, Ordering::Relaxed) {
        let _ = disable_raw_mode();
        let _ = execute!(io::stderr(), LeaveAlternateScreen, cursor::Show);
    }
}

fn draw(frame: &mut Frame<'_>, board: &Board) {
    let [title, clock, rate, latency, failures] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(7),
        Constraint::Length(4),
    ])
    .areas(frame.area());
    let keys = Line::from(vec!["q".bold(), " ends the run and reports".dim()]);
    frame.render_widget(Paragraph::new(vec![board.title.as_str().bold().into(), keys]), title);
    draw_clock(frame, board, clock);
    draw_rate(frame, board, rate);
    draw_latency(frame, board, latency);
    draw_failures(frame, board, failures);
}

fn draw_clock(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let phase = if board.warming_up { "warming up, " } else { "" };
    let text = format!("{phase}{}", board.clock());
    let Some(length) = board.length.filter(|length| !length.is_zero()) else {
        return frame.render_widget(Paragraph::new(text), area);
    };
    let done = (board.elapsed.as_secs_f64() / length.as_secs_f64()).min(1.0);
    frame
        .render_widget(LineGauge::default().ratio(done).label(text).filled_style(Style::new().green()), area);
}

fn draw_rate(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let now = board.rates.back().copied().unwrap_or(0);
    let most = board.rates.iter().copied().max().unwrap_or(0);
    let said = [
        format!("{}/s now", units::grouped(now)),
        format!("{} requests", units::grouped(board.requests)),
        format!("{} open", units::grouped(board.open)),
        format!("{}/s at most", units::grouped(most)),
        format!("{}/s in", units::size(board.per_s(board.last.bytes_in))),
    ];
    // A border and a space at each end.
    let text = parts(&said, ", ", usize::from(area.width).saturating_sub(4));
    let block = Block::bordered().title(format!(" {text} "));
    let width = usize::from(block.inner(area).width);
    let shown = board.rates.iter().skip(board.rates.len().saturating_sub(width)).copied();
    frame.render_widget(Sparkline::default().block(block).data(shown).style(Style::new().cyan()), area);
}

/// Columns of the table of times: a name, two of the last second, five of all.
const COLUMNS: usize = 8;
/// The most important first.
const IMPORTANCE: [usize; COLUMNS] = [0, 3, 5, 2, 7, 1, 6, 4];
/// `999.99us`.
const TIME: usize = 8;

fn draw_latency(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let row = |name: &'static str, now: &Histogram<u64>, all: &Histogram<u64>| {
        let at = |histogram: &Histogram<u64>, quantile| {
            if histogram.is_empty() {
                return "-".to_string();
            }
            units::time(histogram.value_at_quantile(quantile) as f64 / 1e3)
        };
        let [now_p50, now_p99] = [0.5, 0.99].map(|quantile| at(now, quantile));
        let [p50, p90, p99, p99_9, max] = [0.5, 0.9, 0.99, 0.999, 1.0].map(|quantile| at(all, quantile));
        [name.to_string(), now_p50, now_p99, p50, p90, p99, p99_9, max]
    };
    let (last, total) = (&board.last, &board.total);
    let rows = [
        row("latency", &last.latency_ns, &total.latency_ns),
        row("service", &last.service_ns, &total.service_ns),
        row("first byte", &last.first_byte_ns, &total.first_byte_ns),
        row("connect", &last.connect_ns, &total.connect_ns),
    ];
    let heads = ["", "p50 now", "p99 now", "p50", "p90", "p99", "p99.9", "max"];
    let block = Block::bordered().title(" Times ");
    // As wide as what stands in them, and at least so that they do not move with every digit; none that would be cut.
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.max().unwrap_or(0).max(heads[column].len()).max(TIME)
    };
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let shown = columns(&widths, &IMPORTANCE, usize::from(block.inner(area).width));
    let line = |cells: &[&str; COLUMNS]| {
        let cell = |&column: &usize| {
            let line = Line::from(cells[column].to_string());
            Cell::from(if column == 0 { line } else { line.right_aligned() })
        };
        Row::new(shown.iter().map(cell).collect::<Vec<_>>())
    };
    let lines = rows.iter().map(|row| line(&row.each_ref().map(String::as_str)));
    let lengths = shown.iter().map(|&column| Constraint::Length(widths[column] as u16));
    frame.render_widget(Table::new(lines, lengths).header(line(&heads).bold()).block(block), area);
}

fn draw_failures(frame: &mut Frame<'_>, board: &Board, area: Rect) {
    let kinds = Failure::ALL.into_iter().map(|kind| (kind.name(), board.total.failures(kind)));
    let texts = kinds
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{} {}", name.replace('_', " "), units::grouped(count)));
    let texts: Vec<String> = texts.collect();
    let text = if texts.is_empty() { Span::from("none").dim() } else { Span::from(texts.join(", ")).red() };
    let title = format!(" Failed requests: {} ", units::grouped(board.total.failed()));
    let paragraph = Paragraph::new(Line::from(text)).wrap(ratatui::widgets::Wrap { trim: true });
    frame.render_widget(paragraph.block(Block::bordered().title(title)), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;
    use ratatui::backend::TestBackend;

    fn screen(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, board)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_what_was_counted() {
        let mut board = Board::new("http://a/ over xdp".to_string(), Some(Duration::from_secs(10)));
        assert!(screen(&board, 90, 24).contains("warming up, 0 s of 10 s"));
        for second in 1..=5u64 {
            let mut record = Record::new();
            for _ in 0..second * 1000 {
                record.latency_ns.record(second * 1_000_000).unwrap();
            }
            record.succeeded = second * 1000;
            record.fail(Failure::WrongStatus);
            board.add(&record, Duration::from_secs(1));
        }
        board.warming_up = false;
        board.requests = 15_005;
        let shown = screen(&board, 90, 24);
        for part in ["5,000/s now", "15,005 requests", "5.00ms", "wrong status 5", "q ends the run"] {
            assert!(shown.contains(part), "{part} in\n{shown}");
        }
        assert!(board.line().contains("15,005 requests, 5,000/s, p50 5.00ms, p99 5.00ms, 0 open, 5 failed"));
    }

    #[test]
    fn no_number_is_cut_on_any_screen() {
        let mut board = Board::new("http://a/ over xdp".to_string(), Some(Duration::from_secs(10)));
        let mut record = Record::new();
        for ns in [123_456_000, 987_654_000, 999_990_000, 3_600_000_000_000] {
            record.latency_ns.record(ns).unwrap();
            record.service_ns.record(ns).unwrap();
        }
        (record.succeeded, record.bytes_in) = (12_345_678, 9_876_543_210);
        board.add(&record, Duration::from_secs(1));
        (board.warming_up, board.requests, board.open) = (false, 1_234_567_890, 1_000_000);
        for width in [60, 80, 120] {
            let shown = screen(&board, width, 24);
            let line = |word: &str| {
                shown.lines().find(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}\n{shown}"))
            };
            let words = |line: &str| line.split(['│', '"']).collect::<String>();
            let (heads, latency) = (words(line("p50")).replace(" now", "-now"), words(line("latency")));
            let (heads, latency): (Vec<&str>, Vec<&str>) =
                (heads.split_ascii_whitespace().collect(), latency.split_ascii_whitespace().collect());
            assert_eq!(latency.len(), heads.len() + 1, "{shown}");
            assert!(heads.len() >= 4 && (width < 80 || heads.len() == 7), "{width}:\n{shown}");
            for (head, value) in heads.iter().zip(&latency[1..]) {
                let whole =
                    ["ms", "us", "s"].iter().find_map(|unit| value.strip_suffix(unit)).unwrap_or_default();
                assert_eq!(
                    whole.rsplit_once('.').map(|(_, rest)| rest.len()),
                    Some(2),
                    "{head} {value}:\n{shown}"
                );
            }
            let rate = line("/s now");
            assert!(rate.contains("12,345,678/s now, 1,234,567,890 requests"), "{shown}");
            let open = rate.contains("1,000,000 open ") || rate.contains("1,000,000 open, ");
            assert_eq!(open, rate.contains("open"), "{shown}");
            assert_eq!(rate.contains("GB/s in"), width == 120, "{shown}");
        }
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        let mut board = Board::new("http://a/".to_string(), None);
        board.add(&Record::new(), Duration::ZERO);
        for (width, height) in [(1, 1), (10, 3), (80, 24), (300, 100)] {
            screen(&board, width, height);
        }
    }

    /// Set in the process that panics.
    const PANICS: &str = "OVERFLY_TEST_PANICS_ON_A_TERMINAL";

    #[test]
    fn a_panic_is_reported_on_a_terminal_that_is_as_it_was() {
        if std::env::var_os(PANICS).is_some() {
            let _tui = Tui::open().unwrap();
            panic!("on purpose");
        }
        let this = std::env::current_exe().unwrap().display().to_string();
        let name = "output::tui::tests::a_panic_is_reported_on_a_terminal_that_is_as_it_was";
        let shell = format!("stty -g; {this} --exact {name} --nocapture; stty -g");
        let output = std::process::Command::new("script")
            .args(["-qfec", &shell, "/dev/null"])
            .env("SHELL", "/bin/sh")
            .env(PANICS, "1")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        let (before, after) =
            shown.split_once("\x1b[?1049l").unwrap_or_else(|| panic!("not put back: {shown}"));
        assert!(before.contains("\x1b[?1049h") && !before.contains("on purpose"), "{shown}");
        assert!(after.contains("on purpose"), "{shown}");
        let settings = (before.lines().next(), after.lines().last());
        assert!(settings.0.is_some() && settings.0 == settings.1, "{shown}");
    }
}
