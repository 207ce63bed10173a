//! `weir top` on a terminal, beside a running balancer: what it draws, what its keys do, and that the terminal is
//! as it was when it has ended.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use common::{WEIR, eventually};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use weir_lab::Balancer;

/// A shell that runs it and then waits for a line: when the first process of a session ends, its terminal is hung up,
/// and set as terminals are at first.
const SHELL: &str =
    "\"$0\" top --interval 100ms --socket \"$1\"; echo \"it ended with $?\"; read -r line";

/// What begins another screen, and what brings the former one back.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

/// `weir top` at a terminal of its own.
struct Top {
    child: Child,
    /// Where somebody sits who types and reads.
    keyboard: File,
    drawn: Arc<Mutex<Vec<u8>>>,
    /// The other end.
    terminal: OwnedFd,
    /// How it was before.
    before: Termios,
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Top {
    fn start(balancer: &Balancer, columns: u16) -> Self {
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None::<&Termios>).unwrap();
        let (keyboard, terminal) = (File::from(pair.master), pair.slave);
        let before = tcgetattr(&terminal).unwrap();
        let end = || Stdio::from(terminal.try_clone().unwrap());
        // It asks the terminal of its session for the size.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", "sh", "-c", SHELL, WEIR])
            .arg(balancer.socket())
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid, of util-linux");
        let drawn = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, seen) = (keyboard.try_clone().unwrap(), drawn.clone());
        // It ends when nobody has the other end any more.
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut part) {
                seen.lock().unwrap().extend_from_slice(&part[..length]);
            }
        });
        Self { child, keyboard, drawn, terminal, before }
    }

    fn press(&mut self, key: &str) {
        self.keyboard.write_all(key.as_bytes()).unwrap();
    }

    /// Bytes that it has written.
    fn written(&self) -> usize {
        self.drawn.lock().unwrap().len()
    }

    /// What it has written from there on, as it came.
    fn raw(&self, from: usize) -> String {
        String::from_utf8_lossy(&self.drawn.lock().unwrap()[from..]).into_owned()
    }

    /// The letters of that. A cell that stays as it is is not written again, and neither is a blank one: so blanks
    /// say nothing, and are left out.
    fn letters(&self, from: usize) -> String {
        let raw = self.raw(from);
        let mut letters = String::new();
        let mut rest = raw.chars();
        while let Some(letter) = rest.next() {
            if letter == '\u{1b}' {
                // ESC [ numbers and a letter.
                if rest.next() == Some('[') {
                    let _ = rest.by_ref().find(|end| ('@'..='~').contains(end));
                }
            } else if !letter.is_whitespace() {
                letters.push(letter);
            }
        }
        letters
    }

    /// Waits until words have been written from there on.
    fn shows(&self, from: usize, words: &str) {
        let wanted: String = words.split_whitespace().collect();
        eventually(words, || self.letters(from).contains(&wanted));
    }

    fn mode(&self) -> Termios {
        tcgetattr(&self.terminal).unwrap()
    }
}

#[test]
fn services_are_drawn_and_a_backend_is_drained_by_keys() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let status = balancer.status().unwrap();
    let services = status["services"].as_array().unwrap();
    // The first one is chosen.
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap().to_owned();
    let (service, backend) = (name(&services[0]), name(&services[0]["backends"][0]));
    let state = || {
        let status = balancer.status().unwrap();
        let found = common::backend(common::service(&status, &service), &backend);
        found["state"].as_str().unwrap().to_owned()
    };
    let mut top = Top::start(&balancer, 160);
    top.shows(0, "q: end");
    for one in services {
        top.shows(0, &name(one));
        for backend in one["backends"].as_array().unwrap() {
            top.shows(0, &name(backend));
            top.shows(0, backend["address"].as_str().unwrap());
        }
    }
    top.shows(0, "concury");
    assert!(top.raw(0).contains(ENTER), "{}", top.letters(0));
    // Keys come one by one, and are not shown.
    let raw = top.mode().local_flags;
    assert!(!raw.intersects(LocalFlags::ICANON | LocalFlags::ECHO), "{raw:?}");

    let question = format!("drain {backend} of {service}? y: yes");
    let from = top.written();
    top.press("d");
    top.shows(from, &question);
    let from = top.written();
    top.press("n");
    top.shows(from, "left as it is");
    assert_eq!(state(), "up", "a question that was answered with no");

    let from = top.written();
    top.press("d");
    top.shows(from, &question);
    let from = top.written();
    top.press("y");
    eventually("it drains", || state() == "draining");
    top.shows(from, "draining");
    let from = top.written();
    top.press("u");
    top.shows(from, &format!("let serve again {backend} of {service}? y: yes"));
    top.press("y");
    eventually("it serves again", || state() == "up");

    assert!(!top.raw(0).contains(LEAVE), "it goes on");
    let from = top.written();
    top.press("q");
    top.shows(from, "it ended with 0");
    assert!(top.raw(from).contains(LEAVE), "the former screen is back");
    assert!(top.mode() == top.before, "{:?} was {:?}", top.mode(), top.before);
    top.press("\n");
    let ended = top.child.wait().unwrap();
    assert!(ended.success(), "{ended}");
    // What was answered with no was never asked for.
    let is_drain = |line: &&serde_json::Value| {
        line["path"].as_str().is_some_and(|path| path.ends_with("/drain"))
    };
    let drains = || common::audited(&balancer).iter().filter(is_drain).count();
    // A request is written down when it has been answered: what it did may be seen before.
    eventually("one drain and its end are written down", || drains() >= 2);
    assert_eq!(drains(), 2, "one drain, and its end");
}

#[test]
fn addresses_and_ports_are_whole_on_a_narrow_terminal() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let balancer = common::start(&lab, "concury", 3);
    let status = balancer.status().unwrap();
    let mut top = Top::start(&balancer, 80);
    top.shows(0, "q: end");
    for one in status["services"].as_array().unwrap() {
        let text = |field: &str| one[field].as_str().unwrap();
        top.shows(0, &format!("{} {} {}", text("protocol"), text("vip"), one["port"]));
        for backend in one["backends"].as_array().unwrap() {
            top.shows(0, backend["address"].as_str().unwrap());
        }
    }
    top.press("q");
    top.shows(0, "it ended with 0");
    top.press("\n");
    assert!(top.child.wait().unwrap().success());
}
