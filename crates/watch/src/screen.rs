//! Services, backends and their rates on a terminal, with keys to drain.

mod fit;

use crate::words::weight;
use anyhow::{Context, bail};
use fit::{ADDRESS, CHECK, COLUMNS, End, columns, wrapped};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use weir_control::api::{Answer, Client, DrainRequest};
use weir_control::engine::{BackendStatus, HistoryReport, ServiceStatus, Status};
use weir_control::history::Entry;

/// How long a key may wait.
const KEYS: Duration = Duration::from_millis(100);
/// Drop reasons and changes that are shown.
const LINES: usize = 3;

/// Drain this backend of this service, or no longer.
#[derive(Clone, Debug, PartialEq)]
struct Drain {
    service: String,
    backend: String,
    drain: bool,
}

/// What the instance has said.
enum News {
    Status(Box<Status>, Vec<Entry>),
    Done(String),
    Failed(String),
}

/// Packets, bits and new flows in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rate {
    packets: f64,
    bits: f64,
    flows: f64,
}

/// What is shown.
#[derive(Default)]
struct Top {
    now: Option<(Instant, Status)>,
    rates: HashMap<(String, String), Rate>,
    /// Drops in a second by reason, the most first.
    drops: Vec<(String, f64)>,
    changes: Vec<Entry>,
    /// The chosen backend, by its service's and its own name.
    chosen: Option<(String, String)>,
    asked: Option<Drain>,
    said: String,
}

/// What a key asks for.
#[derive(Debug, PartialEq)]
enum Wish {
    Nothing,
    End,
    Do(Drain),
}

/// Shows an instance, looking every `interval`, until whoever watches has seen enough.
///
/// # Errors
/// If there is no terminal, or the instance does not answer at first.
pub fn run(instance: Client, interval: Duration) -> anyhow::Result<()> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("weir top needs a terminal; weir status prints the same once, and --json all of it");
    }
    // Whoever does not answer is told before the terminal is taken.
    let first = look(&instance)?;
    let (tell, news) = mpsc::channel();
    let (order, orders) = mpsc::channel::<Drain>();
    // Its own thread: an instance that takes its time does not keep keys waiting.
    thread::spawn(move || {
        loop {
            let said = match orders.recv_timeout(interval) {
                Ok(drain) => match carry_out(&instance, &drain) {
                    Ok(done) => News::Done(done),
                    Err(error) => News::Failed(format!("{error:#}")),
                },
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    look(&instance).unwrap_or_else(|error| News::Failed(format!("{error:#}")))
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            if tell.send(said).is_err() {
                return;
            }
        }
    });
    let mut top = Top::default();
    top.hear(first, Instant::now());
    let mut terminal = ratatui::try_init().context("cannot take the terminal")?;
    let result = (|| -> std::io::Result<()> {
        loop {
            terminal.draw(|frame| top.draw(frame))?;
            if event::poll(KEYS)? {
                match top.key(&event::read()?) {
                    Wish::End => return Ok(()),
                    Wish::Do(drain) => drop(order.send(drain)),
                    Wish::Nothing => {}
                }
            }
            while let Ok(said) = news.try_recv() {
                top.hear(said, Instant::now());
            }
        }
    })();
    ratatui::restore();
    result.context("the terminal is gone")
}

/// What an instance answers to one request.
fn request<T: DeserializeOwned>(
    instance: &Client,
    method: &str,
    path: &str,
    body: Option<&impl Serialize>,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(instance.request(method, path, body))?)
}

fn look(instance: &Client) -> anyhow::Result<News> {
    let status: Status = request(instance, "GET", "/v1/status", None::<&()>)?;
    let history: HistoryReport = request(instance, "GET", "/v1/history", None::<&()>)?;
    let from = history.entries.len().saturating_sub(LINES);
    Ok(News::Status(Box::new(status), history.entries[from..].to_vec()))
}

fn carry_out(instance: &Client, drain: &Drain) -> anyhow::Result<String> {
    let Drain { service, backend, drain } = drain;
    let path = format!("/v1/services/{service}/backends/{backend}/drain");
    let body = DrainRequest { drain: *drain };
    let answer: Answer = request(instance, "PUT", &path, Some(&body))?;
    Ok(answer.done)
}

impl Top {
    fn hear(&mut self, news: News, at: Instant) {
        match news {
            News::Done(said) | News::Failed(said) => self.said = said,
            News::Status(status, changes) => {
                if let Some((before, old)) = &self.now {
                    let seconds = at.duration_since(*before).as_secs_f64().max(1e-3);
                    self.rates = rates(old, &status, seconds);
                    self.drops = drops(old, &status, seconds);
                }
                self.now = Some((at, *status));
                self.changes = changes;
                let there = |chosen: &(String, String)| self.backends().contains(chosen);
                if !self.chosen.as_ref().is_some_and(there) {
                    self.chosen = self.backends().first().cloned();
                }
            }
        }
    }

    fn services(&self) -> &[ServiceStatus] {
        self.now.as_ref().map_or(&[], |(_, status)| &status.services)
    }

    /// All backends in their order, with their services.
    fn backends(&self) -> Vec<(String, String)> {
        let all = self.services().iter();
        all.flat_map(|s| s.backends.iter().map(|b| (s.name.clone(), b.name.clone()))).collect()
    }

    fn key(&mut self, event: &Event) -> Wish {
        let Event::Key(key) = event else { return Wish::Nothing };
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Wish::End;
        }
        // Nothing but a yes is one.
        if let Some(asked) = self.asked.take() {
            if key.code == KeyCode::Char('y') {
                self.said = "asked for".into();
                return Wish::Do(asked);
            }
            self.said = "left as it is".into();
            return Wish::Nothing;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Wish::End,
            KeyCode::Up | KeyCode::Char('k') => self.step(-1),
            KeyCode::Down | KeyCode::Char('j') => self.step(1),
            KeyCode::Char(word @ ('d' | 'u')) => {
                self.asked = self.chosen.clone().map(|(service, backend)| Drain {
                    service,
                    backend,
                    drain: word == 'd',
                });
            }
            _ => {}
        }
        Wish::Nothing
    }

    fn step(&mut self, by: isize) {
        let all = self.backends();
        let now = all.iter().position(|one| Some(one) == self.chosen.as_ref()).unwrap_or(0);
        let next = now.saturating_add_signed(by).min(all.len().saturating_sub(1));
        self.chosen = all.get(next).cloned();
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let Some((_, status)) = &self.now else { return };
        let changes = self.changes.len() as u16;
        let warnings = warnings(status, frame.area(), changes);
        let [head, warned, table, dropped, changed, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(warnings.len() as u16),
            Constraint::Min(3),
            Constraint::Length(1),
            Constraint::Length(changes),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(title(status)).style(bold), head);
        let lines = warnings.into_iter().map(|line| Line::styled(line, Color::Yellow));
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), warned);
        self.draw_table(frame, table, bold);
        frame.render_widget(Paragraph::new(self.dropped()), dropped);
        let lines: Vec<Line<'_>> = self.changes.iter().map(|one| Line::raw(change(one))).collect();
        frame.render_widget(Paragraph::new(lines), changed);
        let question = self.asked.as_ref().map(|asked| {
            let Drain { service, backend, drain } = asked;
            let what = if *drain { "drain" } else { "let serve again" };
            Line::styled(format!("{what} {backend} of {service}? y: yes, any other key: no"), bold)
        });
        let keys = "up, down: choose  d: drain  u: undrain  q: end";
        let foot_line = question.unwrap_or_else(|| match &*self.said {
            "" => Line::raw(keys),
            said => Line::raw(format!("{keys}   {said}")),
        });
        frame.render_widget(Paragraph::new(foot_line), foot);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect, bold: Style) {
        let header: [&str; COLUMNS] =
            ["", "address", "state", "weight", "known", "packets/s", "bit/s", "new/s", "check"];
        let (mut ends, mut longest_name) = (Vec::new(), 0);
        for service in self.services() {
            ends.push(End::of_service(service));
            ends.extend(service.backends.iter().map(End::of_backend));
            let backends = service.backends.iter().map(|backend| backend.name.chars().count() + 2);
            let names = backends.chain([service.name.chars().count()]);
            longest_name = names.fold(longest_name, usize::max);
        }
        let shown = columns(area.width.into(), longest_name, &ends);
        let room = shown.iter().find(|(at, _)| *at == ADDRESS).map_or(0, |(_, width)| *width);
        let mut ends = ends.iter().map(|end| end.within(room));
        let mut end = || ends.next().unwrap_or_default();
        let row_of = |cells: [Cell<'static>; COLUMNS]| {
            let cells = cells.into_iter().enumerate();
            Row::new(
                cells
                    .filter(|(number, _)| shown.iter().any(|(at, _)| at == number))
                    .map(|(_, cell)| cell)
                    .collect::<Vec<_>>(),
            )
        };
        let (mut rows, mut selected) = (Vec::new(), None);
        for service in self.services() {
            let sum = service.backends.iter().fold(Rate::default(), |sum, backend| {
                let one = self.rate(service, backend);
                Rate {
                    packets: sum.packets + one.packets,
                    bits: sum.bits + one.bits,
                    flows: sum.flows + one.flows,
                }
            });
            let about = [
                service.name.clone(),
                end(),
                service.method.clone(),
                String::new(),
                service.states.to_string(),
                short(sum.packets),
                short(sum.bits),
                short(sum.flows),
                format!("table {}", service.generation),
            ];
            rows.push(row_of(about.map(Cell::from)).style(bold));
            for backend in &service.backends {
                let name = (service.name.clone(), backend.name.clone());
                if self.chosen.as_ref() == Some(&name) {
                    selected = Some(rows.len());
                }
                rows.push(row_of(self.row(service, backend, end())));
            }
        }
        let widths = shown.iter().map(|(at, width)| match *at {
            CHECK => Constraint::Min(*width as u16),
            _ => Constraint::Length(*width as u16),
        });
        let header = row_of(header.map(Cell::from));
        let table = Table::new(rows, widths)
            .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn row(
        &self,
        service: &ServiceStatus,
        backend: &BackendStatus,
        address: String,
    ) -> [Cell<'static>; COLUMNS] {
        let rate = self.rate(service, backend);
        let colour = match &*backend.state {
            "up" => Color::Green,
            "draining" | "maintenance" => Color::Yellow,
            _ => Color::Red,
        };
        let check = backend.check.last.clone().unwrap_or_else(|| backend.check.detail.clone());
        [
            Cell::from(format!("  {}", backend.name)),
            Cell::from(address),
            Cell::from(backend.state.clone()).style(colour),
            Cell::from(weight(backend)),
            Cell::from(backend.states.map_or("-".into(), |n| n.to_string())),
            Cell::from(short(rate.packets)),
            Cell::from(short(rate.bits)),
            Cell::from(short(rate.flows)),
            Cell::from(check),
        ]
    }

    fn rate(&self, service: &ServiceStatus, backend: &BackendStatus) -> Rate {
        let name = (service.name.clone(), backend.name.clone());
        self.rates.get(&name).copied().unwrap_or_default()
    }

    fn dropped(&self) -> String {
        if self.drops.is_empty() {
            return "no drops".into();
        }
        let most = self.drops.iter().take(LINES);
        let most: Vec<String> =
            most.map(|(reason, rate)| format!("{reason} {}/s", short(*rate))).collect();
        format!("drops: {}", most.join(", "))
    }
}

/// Warnings in lines of their own, as many as leave half of the terminal to the rest.
fn warnings(status: &Status, area: Rect, changes: u16) -> Vec<String> {
    let wide = usize::from(area.width).saturating_sub(2);
    let mut lines: Vec<String> = Vec::new();
    for warning in &status.warnings {
        for (number, line) in wrapped(warning, wide).into_iter().enumerate() {
            lines.push(format!("{}{line}", if number == 0 { "! " } else { "  " }));
        }
    }
    // A title, three lines of the table, one of drops and one of keys.
    let room = area.height.saturating_sub(6 + changes).min(area.height / 2);
    let room = usize::from(room);
    if lines.len() > room {
        let more = lines.len() - room.saturating_sub(1);
        lines.truncate(room.saturating_sub(1));
        if room > 0 {
            lines.push(format!("! {more} lines more: weir status"));
        }
    }
    lines
}

fn title(status: &Status) -> String {
    let interfaces: Vec<&str> = status.interfaces.iter().map(|(name, _)| &**name).collect();
    let up = humantime::format_duration(Duration::from_secs(status.uptime_seconds));
    format!("weir {} \"{}\", up {up}, on {}", status.version, status.name, interfaces.join(", "))
}

fn change(entry: &Entry) -> String {
    let at = std::time::UNIX_EPOCH + Duration::from_secs(entry.at);
    let broken = match entry.broken {
        Some(broken) if broken > 0 => format!(", {broken} connections broken"),
        _ => String::new(),
    };
    let at = humantime::format_rfc3339_seconds(at);
    format!("{at} {} by {}: {}{broken}", entry.what, entry.who.name, entry.done)
}

/// A counter that has begun anew counts from 0.
fn risen(from: u64, to: u64, seconds: f64) -> f64 {
    to.checked_sub(from).unwrap_or(to) as f64 / seconds
}

fn rates(old: &Status, new: &Status, seconds: f64) -> HashMap<(String, String), Rate> {
    let mut before = HashMap::new();
    for service in &old.services {
        for backend in &service.backends {
            before.insert((&service.name, &backend.name), backend);
        }
    }
    let mut rates = HashMap::new();
    for service in &new.services {
        for backend in &service.backends {
            let Some(old) = before.get(&(&service.name, &backend.name)) else { continue };
            let rate = Rate {
                packets: risen(old.packets, backend.packets, seconds),
                bits: risen(old.bytes, backend.bytes, seconds) * 8.0,
                flows: risen(old.flows, backend.flows, seconds),
            };
            rates.insert((service.name.clone(), backend.name.clone()), rate);
        }
    }
    rates
}

fn drops(old: &Status, new: &Status, seconds: f64) -> Vec<(String, f64)> {
    let mut drops: Vec<(String, f64)> = new
        .outcomes
        .iter()
        .map(|one| {
            let before = old.outcomes.iter().find(|old| old.reason == one.reason);
            let before = before.map_or(0, |before| before.dropped);
            (one.reason.clone(), risen(before, one.dropped, seconds))
        })
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    drops.sort_by(|a, b| b.1.total_cmp(&a.1));
    drops
}

/// A number in four characters or so.
fn short(number: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (number, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match unit {
        0 => format!("{value:.0}"),
        _ if value < 10.0 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyEvent;
    use serde_json::json;

    fn status(packets: u64, names: &[&str]) -> News {
        let backends: Vec<_> = names
            .iter()
            .map(|name| {
                json!({ "name": name, "number": 1, "address": "10.0.0.11", "weight": 1, "state": "up",
                    "check": { "up": true, "detail": "assumed", "last": "connected in 80us" },
                    "states": 17, "packets": packets, "bytes": packets * 100, "flows": 3 })
            })
            .collect();
        let service = json!({ "name": "web", "number": 0, "vip": "10.0.0.1", "protocol": "tcp", "port": 80,
            "method": "concury", "affinity": "flow", "generation": 4, "digest": "", "states": 17,
            "published_states": 17, "refused_states": 0, "table_bytes": 1, "control_bytes": 1,
            "last_update_ms": null, "backends": backends });
        let status = json!({ "name": "weir", "version": "0", "pid": 1, "uptime_seconds": 5, "resumed": false,
            "interfaces": [["eth0", "native"]], "warnings": ["look here"], "services": [service],
            "outcomes": [{ "reason": "no_backend", "description": "", "passed": 0, "dropped": packets }],
            "unrecorded_flows": 0, "reports": 0, "pending_flows": 0, "table_bytes_used": 0,
            "table_bytes": 0 });
        let status: Status = serde_json::from_value(status).unwrap();
        News::Status(Box::new(status), Vec::new())
    }

    fn press(top: &mut Top, key: char) -> Wish {
        top.key(&Event::Key(KeyEvent::from(KeyCode::Char(key))))
    }

    fn picture(top: &Top, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| top.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn rates_are_drawn_and_a_drain_is_asked_for_twice() {
        let begin = Instant::now();
        let mut top = Top::default();
        top.hear(status(1000, &["b1", "b2"]), begin);
        assert!(picture(&top, 120, 20).contains("no drops"));
        top.hear(status(5000, &["b1", "b2"]), begin + Duration::from_secs(2));
        let shown = picture(&top, 120, 20);
        for words in [
            "! look here",
            "tcp 10.0.0.1 80",
            "  b2",
            "2.0k",
            "1.6M",
            "4.0k",
            "3.2M",
            "drops: no_backend 2.0k/s",
            "connected in 80us",
            "q: end",
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        // A terminal of any size will do.
        for (width, height) in [(1, 1), (10, 3), (80, 1), (1, 50)] {
            picture(&top, width, height);
        }
        press(&mut top, 'j');
        assert_eq!(press(&mut top, 'd'), Wish::Nothing);
        assert!(picture(&top, 120, 20).contains("drain b2 of web? y: yes"));
        assert_eq!(press(&mut top, 'n'), Wish::Nothing);
        assert_eq!(press(&mut top, 'y'), Wish::Nothing, "nothing is asked any more");
        press(&mut top, 'u');
        let undrain = Drain { service: "web".into(), backend: "b2".into(), drain: false };
        assert_eq!(press(&mut top, 'y'), Wish::Do(undrain));
        // The chosen one goes: another is chosen. A counter begins anew.
        top.hear(status(10, &["b1"]), begin + Duration::from_secs(3));
        assert_eq!(top.chosen, Some(("web".into(), "b1".into())));
        let rate = top.rates[&("web".to_owned(), "b1".to_owned())];
        assert_eq!((rate.packets, rate.flows), (10.0, 0.0));
        top.hear(status(10, &[]), begin + Duration::from_secs(4));
        press(&mut top, 'd');
        assert_eq!((top.chosen.clone(), press(&mut top, 'y')), (None, Wish::Nothing));
        assert_eq!(press(&mut top, 'q'), Wish::End);
    }

    #[test]
    fn addresses_and_ports_are_whole_and_warnings_wrap() {
        let News::Status(mut seen, _) = status(1000, &["b1", "b2"]) else { unreachable!() };
        let service = &mut seen.services[0];
        service.vip = "10.66.0.100".parse().unwrap();
        service.backends[0].address = "10.66.0.111".parse().unwrap();
        service.backends[1].address = "10.66.0.112".parse().unwrap();
        service.backends.iter_mut().for_each(|backend| backend.port = Some(58_080));
        let words = "answers to clients whose neighbour is not known yet are the kernel's to forward, which takes \
                     them for forged, and so they wait";
        seen.warnings = vec![words.into()];
        let mut top = Top::default();
        top.hear(News::Status(seen.clone(), Vec::new()), Instant::now());
        for width in [80, 100, 120, 200] {
            let shown = picture(&top, width, 24);
            for words in
                ["tcp 10.66.0.100 80", "10.66.0.111:58080", "10.66.0.112:58080", "packets/s"]
            {
                assert!(shown.contains(words), "{width}: {words}: {shown}");
            }
            let letters = |text: &str| -> String {
                text.chars().filter(|letter| !letter.is_whitespace() && *letter != '"').collect()
            };
            assert!(letters(&shown).contains(&letters(words)), "{width}: {shown}");
        }
        assert!(picture(&top, 120, 24).contains("connected in 80us"));
        let service = &mut seen.services[0];
        service.backends[0].address = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ff11".parse().unwrap();
        service.backends[1].address = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ff12".parse().unwrap();
        // More than there is room for.
        seen.warnings = vec![words.into(); 20];
        top.hear(News::Status(seen, Vec::new()), Instant::now());
        let shown = picture(&top, 80, 24);
        for words in ["ff11]:58080", "ff12]:58080", "[2001:db", "lines more: weir status", "q: end"]
        {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(picture(&top, 200, 24).contains("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ff12]:58080"));
    }

    #[test]
    fn numbers_are_short() {
        for (number, words) in [
            (0.0, "0"),
            (999.4, "999"),
            (999.6, "1.0k"),
            (12_345.0, "12k"),
            (1.5e6, "1.5M"),
            (4e9, "4.0G"),
            (1e16, "10000T"),
        ] {
            assert_eq!(short(number), words);
        }
    }
}
