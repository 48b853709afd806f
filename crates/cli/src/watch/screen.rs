//! `overfly top` on a terminal.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState, Wrap};
use ratatui::{DefaultTerminal, Frame};

use super::Left;
use super::sample::{Sample, Sampler};
use super::top::{COLUMNS, NAMES, NONE, cells, fitting, left_line, remarks};

const KEYS: &str = " q quit  p pause  ↑↓ choose ";

/// Shows looks until somebody presses q.
///
/// # Errors
/// What could not be read or drawn.
pub(super) fn run(sampler: &mut Sampler, interval: Duration) -> Result<(), String> {
    let mut look = sampler.look()?;
    let mut terminal = ratatui::try_init().map_err(|error| format!("the terminal: {error}"))?;
    let result = show(&mut terminal, sampler, interval, &mut look);
    ratatui::restore();
    result
}

fn show(
    terminal: &mut DefaultTerminal,
    sampler: &mut Sampler,
    interval: Duration,
    look: &mut (Vec<Sample>, Vec<Left>),
) -> Result<(), String> {
    let mut chosen = TableState::default().with_selected(0);
    let mut paused = false;
    let mut next = Instant::now() + interval;
    loop {
        terminal
            .draw(|frame| draw(frame, look, &mut chosen, paused))
            .map_err(|error| format!("the terminal: {error}"))?;
        let patience = next.saturating_duration_since(Instant::now());
        if event::poll(patience).map_err(|error| format!("the terminal: {error}"))? {
            match event::read().map_err(|error| format!("the terminal: {error}"))? {
                Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('p' | ' ') => paused = !paused,
                    KeyCode::Down | KeyCode::Char('j') => chosen.select_next(),
                    KeyCode::Up | KeyCode::Char('k') => chosen.select_previous(),
                    _ => {}
                },
                _ => {}
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + interval;
            if !paused {
                *look = sampler.look()?;
            }
        }
    }
}

fn draw(
    frame: &mut Frame<'_>,
    (samples, left): &(Vec<Sample>, Vec<Left>),
    chosen: &mut TableState,
    paused: bool,
) {
    let [above, below] = Layout::vertical([Constraint::Min(4), Constraint::Length(9)]).areas(frame.area());
    let title = if paused { " overfly top (paused) " } else { " overfly top " };
    let block = Block::bordered().title(title).title_bottom(KEYS);
    let all: Vec<[String; COLUMNS.len()]> = samples.iter().map(cells).collect();
    // None that would be cut.
    let (shown, widths) = fitting(&all, usize::from(block.inner(above).width));
    let hidden = COLUMNS.len() - shown.len();
    let said = format!(" {hidden} more on a wider screen ");
    // How to get out stands before what is hidden.
    let fits = KEYS.chars().count() + said.len() <= usize::from(block.inner(above).width);
    let block = if hidden > 0 && fits { block.title_bottom(Line::from(said).right_aligned()) } else { block };
    let right = |column: usize, text: &str| {
        let line = Line::from(text.to_owned());
        if NAMES.contains(&column) { line } else { line.right_aligned() }
    };
    let head = Row::new(shown.iter().map(|&column| right(column, COLUMNS[column])));
    let row = |cells: &[String; COLUMNS.len()]| {
        Row::new(shown.iter().map(|&column| right(column, &cells[column])).collect::<Vec<_>>())
    };
    let lengths = shown.iter().map(|&column| Constraint::Length(widths[column] as u16));
    let table = Table::new(all.iter().map(row), lengths)
        .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(block);
    frame.render_stateful_widget(table, above, chosen);
    let (title, mut lines) = match chosen.selected().and_then(|index| samples.get(index)) {
        Some(sample) => (format!(" {} {} ", sample.process, sample.program), remarks(sample)),
        None => (format!(" {NONE} "), Vec::new()),
    };
    lines.extend(left.iter().filter_map(left_line));
    let said = Paragraph::new(lines.join("\n")).wrap(Wrap { trim: true });
    frame.render_widget(said.block(Block::bordered().title(title)), below);
}

#[cfg(test)]
pub(super) mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::watch::top::tests::sample;

    fn screen(samples: Vec<Sample>, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
        let mut chosen = TableState::default().with_selected(0);
        let look = (samples, Vec::new());
        terminal.draw(|frame| draw(frame, &look, &mut chosen, false)).unwrap();
        terminal.backend().to_string()
    }

    /// What a busy process on an interface with a long name shows.
    pub(in crate::watch) fn busy() -> Sample {
        let mut sample = sample();
        sample.process = 4_194_303;
        sample.program = "fifteen-letters".into();
        sample.interface = "enp129s0f1np1.4".into();
        sample.cpu_percent = Some(1234.0);
        for (name, value, rate) in [
            ("now.flows", 1_234_567, 0.0),
            ("sockets.accepts", 1, 98_765.0),
            ("link.received_bytes", 1, 15.4321e9),
            ("engine.rx_frames", 1, 14_880_952.0),
            ("engine.tx_frames", 1, 87_654.0),
        ] {
            let at = sample.counters.iter().position(|(known, _)| known.raw() == name);
            match at {
                Some(at) => (sample.counters[at].1, sample.rates[at]) = (value, rate),
                None => {
                    sample.counters.push((name.into(), value));
                    sample.rates.push(rate);
                }
            }
        }
        sample
    }

    #[test]
    fn no_number_is_cut_on_any_screen() {
        let sample = busy();
        let all = cells(&sample);
        for width in [60, 80, 120, 200] {
            let shown = screen(vec![busy()], width);
            let lines: Vec<&str> = shown.lines().collect();
            let words = |line: &str| -> Vec<String> {
                let line = line.trim_matches('"').trim_matches('│');
                line.split_ascii_whitespace().map(str::to_owned).collect()
            };
            let (heads, values) = (words(lines[1]), words(lines[2]));
            assert_eq!(heads.len(), values.len(), "{shown}");
            assert!(heads.len() >= 6, "{width}:\n{shown}");
            for (head, value) in heads.iter().zip(&values) {
                let column =
                    COLUMNS.iter().position(|name| name == head).unwrap_or_else(|| panic!("{head}\n{shown}"));
                assert_eq!(value, &all[column], "{head} at {width}:\n{shown}");
            }
            assert_eq!(width >= 120, heads.len() == COLUMNS.len(), "{width}:\n{shown}");
            assert_eq!(heads.len() < COLUMNS.len(), shown.contains(" more on a wider screen"), "{shown}");
            assert!(shown.contains(" q quit  p pause  ↑↓ choose "), "{width}:\n{shown}");
        }
    }

    #[test]
    fn any_size_of_terminal_will_do() {
        for width in [1, 5, 20] {
            screen(vec![busy()], width);
        }
        assert!(screen(vec![busy()], 20).contains(" q quit  p pause "));
        assert!(screen(Vec::new(), 80).contains("no program runs"));
    }
}
