//! Whatever is wrong with a file, who wrote it is told where. Good files are broken at random, in every
//! way that comes to mind: the answer names the file and a line of it, and the exit status says no.
//!
//! `WEIR_DRAWS` files for each way (20 here), drawn by `WEIR_SEED`.

#![allow(clippy::ptr_arg, reason = "all ways to break a file have one type")]

mod common;

use std::fs;
use std::path::Path;

use common::stderr;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const GOOD: &str = r#"# Nobody's balancer.
[balancer]
name = "drawn"
interfaces = ["eth0", "eth1"]
mode = "auto"
look_every = "5s"
tunnel_source = "192.0.2.1"

[limits]
services = 16
backends = 64
pending_flows = 65536
unreported_flows = 262144
tracked_flows = 262144
answered_flows = 1024
slot_partitions = 4
udp_flows = 65536
event_ring_bytes = 1048576
table_bytes = 16777216
states_per_service = 200000
half_open_flows = 20000
states_per_prefix = 50000

[[service]]
name = "web"
vip = "10.0.0.1"
protocol = "tcp"
port = 80
method = "concury"
dcode_bits = 12
affinity = "flow"
idle_timeout = "10m"
forward = "l2"

[service.check]
interval = "1s"
timeout = "300ms"
rise = 2
fall = 3
port = 80
all_down = "keep"

[[service.backend]]
name = "b1"
address = "10.0.0.11"
weight = 1
drain = false

[[service.backend]]
name = "b2"
address = "10.0.0.12"
weight = 3
drain = false

[[service]]
name = "dns"
vip = "2001:db8::1"
protocol = "udp"
port = 53
method = "tracked"
table_size = 997
affinity = "client"
idle_timeout = "1m"

[service.check]
enabled = true
port = 53

[[service.backend]]
name = "b1"
address = "2001:db8::11"
weight = 1
drain = false
"#;

/// A way to break a file; `None` if this file cannot be broken so.
type Break = fn(&mut Vec<String>, &mut StdRng) -> Option<()>;

/// Ways, and whether what they make is always refused. Of the others some files are good.
const WAYS: [(&str, bool, Break); 13] = [
    ("an unknown field", true, unknown_field),
    ("an unknown table", true, unknown_table),
    ("a value of another type", true, another_type),
    ("a number that is out of range", true, out_of_range),
    ("another number", false, another_number),
    ("a word that nobody knows", true, unknown_word),
    ("a field twice", true, twice),
    ("a service or a backend twice", true, section_twice),
    ("a contradiction among limits", true, contradiction),
    ("a line less", false, line_less),
    ("a section less", false, section_less),
    ("a character more or less", false, character),
    ("a byte of no text", true, byte_of_no_text),
];

/// The lines that set something, as their numbers.
fn fields(lines: &[String], of: impl Fn(&str, &str) -> bool) -> Vec<usize> {
    let is = |line: &String| line.split_once(" = ").is_some_and(|(key, value)| of(key, value));
    lines.iter().enumerate().filter(|(_, line)| is(line)).map(|(at, _)| at).collect()
}

fn is_number(value: &str) -> bool {
    value.parse::<u64>().is_ok()
}

fn set(line: &mut String, value: &str) {
    let (key, _) = line.split_once(" = ").expect("it sets something");
    *line = format!("{key} = {value}");
}

fn unknown_field(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = *fields(lines, |_, _| true).choose(random)?;
    let name = *["colour", "Name", "weigth", "port_", "x"].choose(random)?;
    lines.insert(at + 1, format!("{name} = 1"));
    Some(())
}

fn unknown_table(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let table =
        *["[limit]", "[[services]]", "[balancer.check]", "[[service.backends]]"].choose(random)?;
    lines.push(table.to_owned());
    Some(())
}

fn another_type(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = *fields(lines, |_, _| true).choose(random)?;
    let (_, value) = lines[at].split_once(" = ")?;
    let others: &[&str] = match value {
        _ if is_number(value) => &["\"7\"", "true", "[7]", "1.5", "{ a = 7 }", "1979-05-27"],
        _ if value.starts_with('"') => &["7", "true", "[\"a\", 7]", "1.5", "{}"],
        _ if value.starts_with('[') => &["7", "true", "[7]", "[[\"a\"]]", "{}"],
        _ => &["7", "\"true\"", "[true]", "{}"],
    };
    set(&mut lines[at], others.choose(random)?);
    Some(())
}

fn out_of_range(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = *fields(lines, |_, value| is_number(value)).choose(random)?;
    let values = ["-1", "4294967296", "9223372036854775807", "99999999999999999999", "-0x1"];
    set(&mut lines[at], values.choose(random)?);
    Some(())
}

fn another_number(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = *fields(lines, |_, value| is_number(value)).choose(random)?;
    let bits = random.random_range(0..33);
    set(&mut lines[at], &random.random_range(0..1u64 << bits).to_string());
    Some(())
}

fn unknown_word(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let named = |key: &str, value: &str| value.starts_with('"') && key != "name";
    let at = *fields(lines, named).choose(random)?;
    let long = format!("\"{}\"", "x".repeat(300));
    let words =
        ["\"\"", "\"no such\"", "\"10.0.0\"", "\"5 parsecs\"", "\"0.0.0.0\"", "\"\\u0000\""];
    let word = words.choose(random)?;
    set(&mut lines[at], if random.random_bool(0.1) { &long } else { word });
    Some(())
}

fn twice(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = *fields(lines, |_, _| true).choose(random)?;
    lines.insert(at, lines[at].clone());
    Some(())
}

/// Where each section begins, and where it ends.
fn sections(lines: &[String]) -> Vec<(usize, usize)> {
    let all = lines.iter().enumerate().filter(|(_, line)| line.starts_with('['));
    let mut begins: Vec<usize> = all.map(|(at, _)| at).collect();
    begins.push(lines.len());
    begins.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

fn section_twice(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let (begin, end) = *sections(lines).choose(random)?;
    let copy = lines[begin..end].to_vec();
    lines.splice(end..end, copy);
    Some(())
}

fn contradiction(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let (key, value) = *[
        ("services", "1"),
        ("backends", "2"),
        ("table_bytes", "65536"),
        ("event_ring_bytes", "1000000"),
        ("timeout", "\"1s\""),
        ("interval", "\"200ms\""),
        ("dcode_bits", "4\ntable_size = 997"),
        ("vip", "\"10.0.0.11\""),
        ("half_open_flows", "40000000"),
    ]
    .choose(random)?;
    let at = *fields(lines, |name, _| name == key).first()?;
    set(&mut lines[at], value);
    Some(())
}

fn line_less(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    lines.remove(random.random_range(0..lines.len()));
    Some(())
}

fn section_less(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let (begin, end) = *sections(lines).choose(random)?;
    lines.drain(begin..end);
    Some(())
}

fn character(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = random.random_range(0..lines.len());
    let line = &mut lines[at];
    let place = random.random_range(0..=line.len());
    if place < line.len() && random.random_bool(0.5) {
        line.remove(place);
    } else {
        line.insert(
            place,
            *['"', '[', ']', '=', '\\', 'é', '\u{1}', '#', ' ', '0'].choose(random)?,
        );
    }
    Some(())
}

/// The byte comes in the place of this letter, which good files do not have.
const NO_TEXT: char = '\u{fffd}';

fn byte_of_no_text(lines: &mut Vec<String>, random: &mut StdRng) -> Option<()> {
    let at = random.random_range(0..lines.len());
    let place = random.random_range(0..=lines[at].len());
    lines[at].insert(place, NO_TEXT);
    Some(())
}

fn bytes_of(text: &str) -> Vec<u8> {
    let parts: Vec<&[u8]> = text.split(NO_TEXT).map(str::as_bytes).collect();
    parts.join(&0xffu8)
}

/// The line that a message about a file names.
fn line_named(message: &str, path: &Path) -> Option<usize> {
    let (_, rest) = message.split_once(&format!("{}:", path.display()))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn every_refusal_names_a_line() {
    let seed = common::seed();
    let draws = std::env::var("WEIR_DRAWS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("drawn.toml");
    let name = path.to_str().unwrap();
    let run_dir = format!("run_dir = \"{}\"\n", directory.path().join("run").display());
    let good = GOOD.replacen("mode = \"auto\"\n", &format!("mode = \"auto\"\n{run_dir}"), 1);
    fs::write(&path, &good).unwrap();
    let output = common::weir(&["check", "--config", name]);
    assert!(output.status.success(), "{}", stderr(&output));

    let mut random = StdRng::seed_from_u64(seed);
    for (way, always, spoil) in WAYS {
        let mut refused = 0;
        for draw in 0..draws {
            let mut lines: Vec<String> = good.lines().map(str::to_owned).collect();
            let Some(()) = spoil(&mut lines, &mut random) else { continue };
            let text = lines.join("\n") + "\n";
            fs::write(&path, bytes_of(&text)).unwrap();
            let when = format!("{way}, draw {draw}, WEIR_SEED={seed}");
            let output = common::weir(&["check", "--config", name]);
            if output.status.success() {
                assert!(!always, "{when}: it is taken:\n{text}");
                continue;
            }
            refused += 1;
            let verbs = if draw % 5 == 0 { &["check", "run"][..] } else { &["check"] };
            for verb in verbs {
                let output = common::weir(&[verb, "--config", name]);
                let said = stderr(&output);
                assert_eq!(output.status.code(), Some(1), "{when}: {verb} says {said}\n{text}");
                let line = line_named(&said, &path)
                    .unwrap_or_else(|| panic!("{when}: {verb} names no line: {said}\n{text}"));
                let last = lines.iter().map(|line| line.matches('\n').count() + 1).sum::<usize>();
                assert!((1..=last + 1).contains(&line), "{when}: line {line}: {said}\n{text}");
            }
        }
        println!("{way}: {refused} of {draws} refused");
        assert!(refused > 0, "{way}: nothing was refused, WEIR_SEED={seed}");
    }
}

/// Files that have no end, or keep whoever opens them waiting, are refused at once.
#[test]
fn what_is_no_file_of_text_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let huge = folder.path().join("huge.toml");
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let including = folder.path().join("including.toml");
    fs::write(&including, "[balancer]\ninterfaces = [\"lo\"]\ninclude = [\"pipe\"]\n").unwrap();
    for (path, words) in [
        (Path::new("/dev/zero"), "no regular file"),
        (&pipe, "no regular file"),
        (&huge, "larger than 16 MiB"),
        (folder.path(), "directory"),
        (&including, "no regular file"),
    ] {
        let name = path.to_str().unwrap();
        for line in [&["check", "--config", name][..], &["apply", name, "--socket", "/none"]] {
            let output = common::weir(line);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{line:?}: {said}");
            assert!(said.contains(words) && said.contains(name), "{line:?}: {said}");
        }
    }
}
