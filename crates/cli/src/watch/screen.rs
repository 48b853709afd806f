//! `overfly top` on a terminal.

use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState, Wrap};
use ratatui::{DefaultTerminal, Frame};

use super::Left;
use super::sample::{Sample, Sampler};
use super::top::{COLUMNS, cells, left_line, remarks};

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
    let widths = [7, 15, 10, 5, 7, 7, 7, 7, 7, 7, 7, 7, 5].map(Constraint::Length);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rows = samples.iter().map(|sample| Row::new(cells(sample)));
    let title = if paused { " overfly top (paused) " } else { " overfly top " };
    let table = Table::new(rows, widths)
        .header(Row::new(COLUMNS).style(bold))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .block(Block::bordered().title(title).title_bottom(" q quit  p pause  ↑↓ choose "));
    frame.render_stateful_widget(table, above, chosen);
    let (title, mut lines) = match chosen.selected().and_then(|index| samples.get(index)) {
        Some(sample) => (format!(" {} {} ", sample.process, sample.program), remarks(sample)),
        None => (" no program runs over Overfly here ".to_owned(), Vec::new()),
    };
    lines.extend(left.iter().filter_map(left_line));
    let said = Paragraph::new(lines.join("\n")).wrap(Wrap { trim: true });
    frame.render_widget(said.block(Block::bordered().title(title)), below);
}
