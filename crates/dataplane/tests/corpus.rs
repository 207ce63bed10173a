//! The conformance corpus (corpus/README.md): each case through the BPF program, by BPF_PROG_RUN, and through
//! the Rust pipeline. Verdict, bytes and counters must be what the case says.

#[path = "corpus/format.rs"]
mod format;
#[path = "corpus/mutations.rs"]
mod mutations;
#[path = "corpus/rules.rs"]
mod rules;
#[path = "corpus/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use weir_testbed::in_own_namespace;
use world::Kernels;

/// All packets of a test go through one CPU: what is remembered of the first one, the next one finds there.
fn stay_on_one_cpu() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = NEXT.fetch_add(1, Ordering::Relaxed) % cpus;
    weir_testbed::process::stay_on_cpu(cpu).expect("there is one");
}

/// The cases whose names contain `WEIR_CASE`; without it all.
#[test]
fn every_case_holds_in_both_planes() {
    let only = std::env::var("WEIR_CASE").unwrap_or_default();
    in_own_namespace(|| {
        stay_on_one_cpu();
        let files = format::files();
        let mut kernels = Kernels::new(None);
        let (mut cases, mut wrong) = (0, Vec::new());
        for file in &files {
            for case in file.case.iter().filter(|case| case.name.contains(&only)) {
                cases += 1;
                wrong.extend(world::run(&mut kernels, file, case).expect("the program loads"));
            }
        }
        println!("{cases} cases of {} files, {} faults", files.len(), wrong.len());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(!only.is_empty() || cases >= 300, "only {cases} cases");
    })
    .expect("needs root");
}

/// A plane in user space beside the program (`weir run --plane af-xdp`) sends what that would have sent, or gives
/// it back as it came.
#[test]
fn every_case_holds_beside_the_program() {
    in_own_namespace(|| {
        stay_on_one_cpu();
        let files = format::files();
        let mut kernels = Kernels::with_user_space();
        let wrong: Vec<String> = files
            .iter()
            .flat_map(|file| file.case.iter().map(move |case| (file, case)))
            .flat_map(|(file, case)| world::run(&mut kernels, file, case).expect("it loads"))
            .collect();
        let sent = kernels.sent_beside();
        println!("{sent} packets were sent from user space");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(sent >= 100, "only {sent}");
    })
    .expect("needs root");
}

/// Every case, with this program in the place of the usual one.
fn every_case_holds_with(program: &[u8]) {
    in_own_namespace(|| {
        stay_on_one_cpu();
        let files = format::files();
        let mut kernels = Kernels::new(Some(program.to_vec()));
        let wrong: Vec<String> = files
            .iter()
            .flat_map(|file| file.case.iter().map(move |case| (file, case)))
            .flat_map(|(file, case)| world::run(&mut kernels, file, case).expect("it loads"))
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    })
    .expect("needs root");
}

/// The program that takes notes of packets (`weir trace`) does with them what the usual one does.
#[test]
fn every_case_holds_while_somebody_looks() {
    every_case_holds_with(weir_dataplane::TRACED);
}

/// So does the program that counts by interface, and each frame that it has counted is in one of the three numbers.
#[test]
fn every_case_holds_while_frames_are_counted_by_interface() {
    every_case_holds_with(weir_dataplane::BY_INTERFACE);
}

/// Every rule of the source has a case that goes through it, and every case goes through the rule that it
/// names. Prints how many do.
#[test]
fn every_rule_has_its_cases() {
    in_own_namespace(|| {
        stay_on_one_cpu();
        let files = format::files();
        let listed = rules::listed();
        let marked = rules::Marked::build();
        let cases: Vec<_> = files
            .iter()
            .flat_map(|file| file.case.iter().map(|case| (&file.name[..], case)))
            .collect();
        let mut wrong = rules::check_names(&marked.names, &listed, &cases);
        let mut counts: BTreeMap<&str, rules::Counts> = BTreeMap::new();
        let mut kernels = Kernels::new(Some(marked.object.clone()));
        let mut maps = Vec::new();
        for file in &files {
            for case in &file.case {
                let before = kernels.count();
                wrong.extend(world::run(&mut kernels, file, case).expect("the program loads"));
                if kernels.count() != before {
                    maps = marked.marks();
                }
                let met = marked.take(&maps);
                met.iter().for_each(|name| counts.entry(name).or_default().met += 1);
                counts.entry(&case.rule).or_default().named += 1;
                if !met.contains(&&case.rule[..]) {
                    let place = format!("corpus/{}: {}", file.name, case.name);
                    wrong.push(format!("{place}: does not go through {}", case.rule));
                }
            }
        }
        println!("{:<28} {:>6} {:>6}", "rule", "cases", "named");
        for name in listed.rules.keys() {
            let rules::Counts { named, met } = counts.get(&name[..]).copied().unwrap_or_default();
            let apart = listed.apart(name);
            println!("{name:<28} {met:>6} {named:>6}  {}", apart.unwrap_or_default());
            match apart {
                None if met == 0 => wrong.push(format!("rule {name}: no case goes through it")),
                Some(_) if met > 0 => {
                    wrong.push(format!(
                        "rule {name}: cases go through it; it is neither elsewhere nor nowhere"
                    ));
                }
                _ => {}
            }
        }
        let [all, elsewhere, nowhere] =
            [&listed.rules, &listed.elsewhere, &listed.nowhere].map(BTreeMap::len);
        let through = all - elsewhere - nowhere;
        println!("{all} rules, {through} with cases, {elsewhere} elsewhere, {nowhere} nowhere");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    })
    .expect("needs root");
}

/// A rule that no case goes through is tested where its entry says, or says why it cannot be.
#[test]
fn rules_without_cases_name_their_tests() {
    let wrong = rules::check_apart(&rules::listed());
    assert!(wrong.is_empty(), "corpus/rules.toml:\n{}", wrong.join("\n"));
}

/// All faults of corpus/mutations.toml can be put into the source as it is now, whether or not they are tried here.
#[test]
fn every_mutation_applies() {
    let mut wrong = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let (sources, files) = (weir_dataplane::other::sources(), format::files());
    for (at, mutation) in mutations::listed().into_iter().enumerate() {
        let number = at + 1;
        if let Err(error) = mutations::apply(&mutation, &mut sources.clone()) {
            wrong.push(format!("{number}. {}: {}: {error}", mutation.file, mutation.what));
        }
        if let (Some(case), false) = (&mutation.case, mutation.names_a_case(&files)) {
            let file = &mutation.file;
            wrong.push(format!("{number}. {file}: {}: there is no case {case:?}", mutation.what));
        }
        if let Some(first) = numbers.insert(mutation.what.clone(), number) {
            wrong.push(format!("{number}. {}: {first}. has these words, too", mutation.what));
        }
    }
    assert!(numbers.len() >= TRIED, "only {} mutations", numbers.len());
    assert!(wrong.is_empty(), "corpus/mutations.toml:\n{}", wrong.join("\n"));
}

/// Faults that are tried whenever the tests run.
const TRIED: usize = 40;

/// The faults that are tried, by their places: all if `WEIR_MUTATIONS` says `all`, those in whose description it
/// stands, or without it those that always are, and as many others, of those whose case is known, as `WEIR_SEED` draws.
fn chosen(all: &[mutations::Mutation]) -> Vec<usize> {
    let only = std::env::var("WEIR_MUTATIONS").unwrap_or_default();
    let places = 0..all.len();
    match &*only {
        "all" => places.collect(),
        "" => {
            let given = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok());
            let seed = given.unwrap_or_else(rand::random);
            println!("WEIR_SEED={seed}");
            let (mut chosen, others): (Vec<usize>, Vec<usize>) =
                places.partition(|at| all[*at].always);
            // The others take all cases, which is for `make mutations`.
            let others = others.into_iter().filter(|at| all[*at].case.is_some());
            let others: Vec<usize> = others.collect();
            let more = TRIED.saturating_sub(chosen.len());
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            chosen.extend(others.choose_multiple(&mut rng, more));
            chosen
        }
        words => places.filter(|at| all[*at].what.contains(words)).collect(),
    }
}

/// Each fault of corpus/mutations.toml is found by a case; without `WEIR_MUTATIONS=all` forty of them, others in
/// each run. Every processor has one to compile and to load.
#[test]
fn every_mutation_is_found() {
    let (files, all) = (format::files(), mutations::listed());
    let chosen = chosen(&all);
    assert!(!chosen.is_empty(), "no mutation is described so");
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        stay_on_one_cpu();
        while let Some(&at) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mutation = &all[at];
            let begin = Instant::now();
            let found = mutations::find(mutation, &files, &format!("mutation-{at}"));
            let seconds = begin.elapsed().as_secs();
            let what = format!("{}. {}: {}", at + 1, mutation.file, mutation.what);
            match found {
                Ok(by) => println!(
                    "{what}: found in {seconds} s: {}",
                    by.split_whitespace().take(4).collect::<Vec<_>>().join(" ")
                ),
                Err(error) => {
                    let error: String = error.chars().take(2000).collect();
                    println!("{what}: NOT FOUND: {error}");
                    wrong.lock().expect("nobody panicked").push(format!("{what}: {error}"));
                }
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(chosen.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| in_own_namespace(work).expect("needs root"));
        }
    });
    let wrong = wrong.into_inner().expect("nobody panicked");
    println!("{} mutations, {} not found", chosen.len(), wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
