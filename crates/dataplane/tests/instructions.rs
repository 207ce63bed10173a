//! Instructions per packet: the same in every run, on every path that has a name, and no more than is written down.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_dataplane::instructions::{Row, count, count_plain, stacks};

#[test]
fn counts_repeat_themselves() {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o")).to_vec();
    let rows = count(&[object]).expect("load (needs root)");
    let names: BTreeSet<_> = rows.iter().map(|row| row.path).collect();
    assert_eq!(names.len(), rows.len(), "two paths of one name");
    for row in &rows {
        println!("{:<44} {:?}", row.path, row.instructions);
        assert_eq!(row.instructions[0], row.instructions[1], "{}", row.path);
    }
    // What a packet has to do more takes more.
    let of = |path: &str| {
        let found = rows.iter().find(|row| row.path == path).map(|row| row.instructions[0]);
        found.unwrap_or_else(|| panic!("no path {path}"))
    };
    let order = [
        "ARP",
        "no service, TCP",
        "concury, known flow, TCP over IPv4",
        "concury, known flow, TCP over IPv6",
        "concury, first datagram",
    ];
    assert!(order.is_sorted_by_key(|path| of(path)), "{order:?}");
    // What a row leads to is read on the way of plain packets: the whole way again, which takes more than twice as
    // many, is for what has to be noted.
    for (row, more) in [
        ("jet, clean row", "jet, row that asks, tracked flow"),
        ("residue, row without exceptions", "residue, row with exceptions, other flow"),
    ] {
        assert!(of(more) < of(row) + 200, "{more}: {}, and {} for {row}", of(more), of(row));
    }
    // A cookie decides with less than the SYN that was told it, and a slot is looked at apart.
    for form in ["cheetah", "cheetah-stateful"] {
        let cookie = of(&format!("{form}, cookie"));
        for first in ["SYN", "SYN repeated"] {
            assert!(cookie < of(&format!("{form}, {first}")), "{form}, {first}");
        }
    }
    assert!(of("cheetah, cookie") < of("cheetah-stateful, cookie"));
}

/// What paths may take, as `instructions.toml` has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ceilings {
    /// The compiler that the numbers are of.
    compiler: String,
    most: BTreeMap<String, u64>,
}

fn ceilings_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.toml")
}

/// The compiler of the program, as it calls itself.
fn compiler() -> String {
    let output = Command::new(env!("WEIR_BPF_CLANG")).arg("--version").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said.split_whitespace().skip_while(|word| *word != "version").nth(1);
    format!("clang {}", version.unwrap_or_else(|| panic!("no version: {said}")))
}

fn write_ceilings(rows: &[Row]) {
    let mut text = String::from(
        "# BPF instructions that the program takes for a packet, on each path (src/instructions/paths.rs).\n\
         # tests/instructions.rs compares; a number that is to change is written by\n\
         # WEIR_INSTRUCTIONS=write cargo test --release -p weir-dataplane --test instructions no_path\n",
    );
    let _ = writeln!(text, "compiler = {:?}\n\n[most]", compiler());
    for row in rows {
        let _ = writeln!(text, "{:?} = {}", row.path, row.instructions[0]);
    }
    std::fs::write(ceilings_file(), text).expect("it can be written");
}

/// Growth of a path is seen by whoever makes it grow. Another compiler than the one of the numbers orders things
/// otherwise, and has a tenth more.
#[test]
fn no_path_takes_more_than_is_written_down() {
    let rows = count(&[]).expect("load (needs root)");
    if std::env::var("WEIR_INSTRUCTIONS").is_ok_and(|what| what == "write") {
        return write_ceilings(&rows);
    }
    let path = ceilings_file();
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let written: Ceilings = toml::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let same = written.compiler == compiler();
    let mut wrong = Vec::new();
    for row in &rows {
        let (path, found) = (row.path, row.instructions[0]);
        let Some(&most) = written.most.get(path) else {
            wrong.push(format!("{path}: {found}, and no number is written down"));
            continue;
        };
        if found > if same { most } else { most + most / 10 } {
            wrong.push(format!("{path}: {found}, {} more than is written down", found - most));
        } else if same && found < most {
            // What is saved is not to be spent unseen.
            wrong.push(format!("{path}: {found}, {} fewer than is written down", most - found));
        }
    }
    let names: BTreeSet<&str> = rows.iter().map(|row| row.path).collect();
    let gone = written.most.keys().filter(|path| !names.contains(path.as_str()));
    wrong.extend(gone.map(|path| format!("{path}: there is no such path")));
    assert!(
        wrong.is_empty(),
        "instructions:\n{}\nIf that is to be so, write it down, and say why in the commit: \
         WEIR_INSTRUCTIONS=write cargo test --release -p weir-dataplane --test instructions no_path",
        wrong.join("\n")
    );
}

/// A service pays for what it uses only: packets of one that uses nothing take as many instructions whatever stands
/// beside it, and whatever it has used before.
#[test]
fn what_is_off_costs_no_instruction() {
    let rows = count_plain().expect("load (needs root)");
    assert!(rows.len() > 35, "{} paths", rows.len());
    for row in &rows {
        println!("{:<48} {:?}", row.path, row.instructions);
        let first = row.instructions[0];
        assert!(row.instructions.iter().all(|count| *count == first), "{row:?}");
    }
}

/// This kernel may count less, and would take what another refuses ("combined stack size of 7 calls is 544").
#[test]
fn chains_of_calls_fit_in_the_stack_of_older_kernels() {
    let plain = include_bytes!(concat!(env!("OUT_DIR"), "/weir.bpf.o"));
    for (name, object) in [
        ("plain", plain.as_slice()),
        ("by interface", weir_dataplane::BY_INTERFACE),
        ("with notes", weir_dataplane::TRACED),
    ] {
        let stacks = stacks(object).expect("load (needs root)");
        println!("{name}: {stacks:?} bytes");
        // It would be less than it has if functions were not found.
        assert!(stacks.iter().all(|bytes| (300..=512).contains(bytes)), "{name}: {stacks:?}");
    }
}

/// Who counts by interface pays for it by the same few instructions on every way, and who does not has none.
#[test]
fn counting_by_interface_takes_a_few_instructions() {
    let rows = count(&[weir_dataplane::BY_INTERFACE.to_vec()]).expect("load (needs root)");
    for row in &rows {
        let [plain, counted] = row.instructions[..] else { panic!("{row:?}") };
        println!("{:<44} {plain} and {}", row.path, counted - plain);
        // Registers may be saved otherwise.
        assert!((10..=50).contains(&(counted - plain)), "{row:?}");
    }
}
