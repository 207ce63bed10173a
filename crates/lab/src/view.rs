//! What a person sees while a run is going on: a live picture on a terminal, a line per second
//! elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use crate::churn::{ChangeRecord, Place};
use crate::traffic::{BrokenConnection, Snapshot};
use weir_testbed::interrupt::interrupt;

/// How often a terminal is drawn.
const REDRAW: Duration = Duration::from_millis(200);
/// How often a line is printed where there is no terminal.
const LINE: Duration = Duration::from_secs(1);
/// Rates are averaged over so long.
const RATE_WINDOW: Duration = Duration::from_secs(2);

/// What there is to show at one time.
#[derive(Debug)]
pub struct Scene<'a> {
    /// What runs, in a few words.
    pub title: &'a str,
    /// What it is doing, in a word or two.
    pub phase: &'a str,
    /// Time since the start of the run.
    pub elapsed: Duration,
    /// Time that the run takes as a whole.
    pub total: Duration,
    /// What the clients have counted so far.
    pub stats: &'a Snapshot,
    /// Number of pool changes so far.
    pub changes: u64,
    /// The latest changes, the newest last.
    pub log: &'a [ChangeRecord],
    /// Where each backend is, by its position.
    pub places: &'a [Place],
    /// Connections that have broken since the scene before.
    pub broken: &'a [BrokenConnection],
}

/// Where a run is shown while it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Show {
    /// A live picture if standard output and input are terminals, else lines.
    #[default]
    Picture,
    /// Lines on the standard output.
    Lines,
    /// Lines on the error output: the standard output is for the report.
    LinesOnError,
}

/// A terminal, or lines. Dropping it gives the terminal back as it was.
pub struct View {
    show: Show,
    terminal: Option<DefaultTerminal>,
    rates: Rates,
    shown: Option<Instant>,
}

impl View {
    /// Takes the terminal for a live picture, if that is asked for and possible.
    pub fn open(show: Show) -> Self {
        let live = show == Show::Picture && io::stdout().is_terminal() && io::stdin().is_terminal();
        let terminal = live.then(ratatui::try_init).and_then(|opened| {
            opened.inspect_err(|error| tracing::warn!("no live view: {error}")).ok()
        });
        Self { show, terminal, rates: Rates::default(), shown: None }
    }

    /// Whether it is a live picture.
    pub fn is_live(&self) -> bool {
        self.terminal.is_some()
    }

    /// Shows the scene, if it is time to. In a live picture `q`, Escape and Ctrl-C interrupt the
    /// lab ([`crate::interrupted`]), since the terminal then sends no signal.
    pub fn show(&mut self, scene: &Scene<'_>) {
        let now = Instant::now();
        let period = if self.is_live() { REDRAW } else { LINE };
        let due = self.shown.is_none_or(|shown| now - shown >= period);
        if due {
            // A line is due at whole seconds, not a second after the last one came out.
            self.shown = match self.shown {
                Some(shown) if now - shown < period * 2 => Some(shown + period),
                _ => Some(now),
            };
            self.rates.update(now, scene.stats);
        }
        let rates = self.rates.current();
        let Some(terminal) = &mut self.terminal else {
            // Whoever ends the run now is to know of them.
            for broken in scene.broken {
                say(self.show, &format!("broken: {broken}"));
            }
            if due {
                say(self.show, &line(scene, rates));
            }
            return;
        };
        if due && let Err(error) = terminal.draw(|frame| draw(frame, scene, rates)) {
            tracing::debug!("drawing: {error}");
        }
        while let Ok(true) = event::poll(Duration::ZERO) {
            match event::read() {
                Ok(event) if asks_to_stop(&event) => interrupt(),
                Ok(_) => {}
                Err(_) => break,
            }
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.terminal.take().is_some() {
            ratatui::restore();
        }
    }
}

/// Prints a line. A run that nobody watches any more, because the reader of the output has gone, is
/// ended as by Ctrl-C.
fn say(show: Show, line: &str) {
    if show == Show::LinesOnError {
        let _ = writeln!(io::stderr(), "{line}");
        return;
    }
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => interrupt(),
        _ => {}
    }
}

fn asks_to_stop(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    if key.kind == KeyEventKind::Release {
        return false;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Counters at earlier times, to take rates from.
#[derive(Debug, Default)]
struct Rates {
    past: std::collections::VecDeque<(Instant, u64, u64)>,
}

/// Per second.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    started: f64,
    answers: f64,
}

impl Rates {
    fn update(&mut self, now: Instant, stats: &Snapshot) {
        self.past.push_back((now, stats.started, stats.answers));
        while self.past.len() > 2 && now - self.past[1].0 >= RATE_WINDOW {
            self.past.pop_front();
        }
    }

    fn current(&self) -> Rate {
        let (Some(first), Some(last)) = (self.past.front(), self.past.back()) else {
            return Rate::default();
        };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds == 0.0 {
            return Rate::default();
        }
        Rate {
            started: last.1.saturating_sub(first.1) as f64 / seconds,
            answers: last.2.saturating_sub(first.2) as f64 / seconds,
        }
    }
}

fn line(scene: &Scene<'_>, rate: Rate) -> String {
    let stats = scene.stats;
    let last = scene
        .log
        .last()
        .map_or(String::new(), |change| format!("; last: {}", change_words(change)));
    format!(
        "{:4.0} s  {:>8}  {:6} open  {:5.0} new/s  {:6.0} answers/s  {:7} completed  \
         {:5} inevitable  {:4} broken  {:4} pool changes{last}",
        scene.elapsed.as_secs_f64(),
        scene.phase,
        stats.open,
        rate.started,
        rate.answers,
        stats.completed,
        stats.inevitable,
        stats.broken,
        scene.changes,
    )
}

fn change_words(change: &ChangeRecord) -> String {
    match &change.error {
        None => change.what.clone(),
        Some(error) => format!("{} FAILED: {error}", change.what),
    }
}

fn draw(frame: &mut Frame<'_>, scene: &Scene<'_>, rate: Rate) {
    let [top, middle, bottom] =
        Layout::vertical([Constraint::Length(3), Constraint::Min(5), Constraint::Length(3)])
            .areas(frame.area());
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(60), Constraint::Percentage(40)]).areas(middle);
    frame.render_widget(header(scene, rate).block(Block::bordered()), top);
    draw_backends(frame, left, scene);
    draw_changes(frame, right, scene);
    frame.render_widget(
        outcomes(scene.stats).block(Block::bordered().title(" connections ")),
        bottom,
    );
}

fn header<'a>(scene: &'a Scene<'_>, rate: Rate) -> Paragraph<'a> {
    let dim = Style::new().add_modifier(Modifier::DIM);
    Paragraph::new(Line::from(vec![
        Span::styled(format!(" {} ", scene.title), Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(format!(
            " {:.0} of {:.0} s, {}   {} open   {:.0} new/s   {:.0} answers/s",
            scene.elapsed.as_secs_f64(),
            scene.total.as_secs_f64(),
            scene.phase,
            scene.stats.open,
            rate.started,
            rate.answers
        )),
        Span::styled("   q ends it", dim),
    ]))
}

fn place_colour(place: Place) -> Color {
    match place {
        Place::Serving => Color::Green,
        Place::Draining => Color::Yellow,
        Place::Dead => Color::Red,
        Place::Out => Color::DarkGray,
    }
}

fn draw_backends(frame: &mut Frame<'_>, area: Rect, scene: &Scene<'_>) {
    let block = Block::bordered().title(" open connections per backend ");
    // Name, word, number and what separates them.
    const TEXT: usize = 5 + 9 + 7;
    let inner = block.inner(area);
    let room = usize::from(inner.width).saturating_sub(TEXT);
    let most = scene.stats.backends.iter().map(|b| b.open).max();
    let most = most.unwrap_or(0).max(1);
    let lines: Vec<Line<'_>> = scene
        .stats
        .backends
        .iter()
        .zip(scene.places)
        .map(|(backend, place)| {
            let style = Style::new().fg(place_colour(*place));
            Line::from(vec![
                Span::raw(format!("{:>4} ", backend.name)),
                Span::styled(format!("{:<9}", place.word()), style),
                Span::raw(format!("{:>6} ", backend.open)),
                Span::styled(bar(backend.open, most, room), style),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// A bar of `room` cells for `most`, in eighths of a cell.
fn bar(value: u64, most: u64, room: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (value as f64 / most as f64 * room as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

fn draw_changes(frame: &mut Frame<'_>, area: Rect, scene: &Scene<'_>) {
    let title = format!(" {} pool changes ", scene.changes);
    let block = Block::bordered().title(title);
    let room = usize::from(block.inner(area).height);
    let from = scene.log.len().saturating_sub(room);
    let lines: Vec<Line<'_>> = scene.log[from..]
        .iter()
        .rev()
        .map(|change| {
            let style = match change.error {
                Some(_) => Style::new().fg(Color::Red),
                None => Style::new(),
            };
            let text = format!("{:6.1} s  {}", change.at, change_words(change));
            Line::styled(text, style)
        })
        .collect();
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn outcomes(stats: &Snapshot) -> Paragraph<'static> {
    let bold = |colour| Style::new().fg(colour).add_modifier(Modifier::BOLD);
    let broken = if stats.broken == 0 { Color::Green } else { Color::Red };
    Paragraph::new(Line::from(vec![
        Span::styled(format!(" {} completed", stats.completed), bold(Color::Reset)),
        Span::styled(format!("   {} inevitable", stats.inevitable), bold(Color::Yellow)),
        Span::styled(format!("   {} broken", stats.broken), bold(broken)),
        Span::raw(format!(
            "   connect p50 {:.2} ms, p99 {:.2} ms, max {:.0} ms",
            stats.connect.p50, stats.connect.p99, stats.connect.max
        )),
    ]))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::traffic::Stats;

    fn with_scene(show: impl FnOnce(&Scene<'_>)) {
        let stats = Stats::new(vec!["b0".into(), "b1".into()]);
        stats.first_answer(1);
        let snapshot = stats.snapshot();
        let change = |what: &str, error: Option<&str>| ChangeRecord {
            kind: "drain",
            at: 1.5,
            what: what.into(),
            counted: true,
            error: error.map(str::to_string),
        };
        let log = [change("b1 draining", None), change("b0 killed", Some("no"))];
        show(&Scene {
            title: "weir lab",
            phase: "churn",
            elapsed: Duration::from_secs(12),
            total: Duration::from_secs(60),
            stats: &snapshot,
            changes: 7,
            log: &log,
            places: &[Place::Dead, Place::Draining],
            broken: &[],
        });
    }

    #[test]
    fn the_picture_names_everything() {
        with_scene(|scene| {
            for (width, height) in [(120, 20), (40, 11), (5, 3), (1, 1)] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| draw(frame, scene, Rate::default())).unwrap();
                if width < 120 {
                    continue;
                }
                let text = terminal.backend().to_string();
                for part in [
                    "weir lab",
                    "b1 draining      1 █",
                    "b0 dead",
                    "7 pool changes",
                    "b0 killed FAILED: no",
                    "0 broken",
                ] {
                    assert!(text.contains(part), "{part} in\n{text}");
                }
            }
        });
    }

    #[test]
    fn the_line_has_the_counters_and_the_last_change() {
        with_scene(|scene| {
            let line = line(scene, Rate::default());
            for part in ["12 s", "churn", "0 broken", "7 pool changes; last: b0 killed"] {
                assert!(line.contains(part), "{part} in {line}");
            }
        });
    }

    #[test]
    fn bars_grow_in_eighths() {
        assert_eq!(bar(0, 8, 1), "");
        assert_eq!(bar(4, 8, 1), "▌");
        assert_eq!(bar(8, 8, 2), "██");
    }
}
