use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;
use weir_host::files::beside;

use super::*;

mod journal;

type Model = HashMap<[u8; 20], StateRecord>;

fn key(number: u64) -> [u8; 20] {
    let mut key = [7; 20];
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

fn add(number: u64, backend: u16, seconds: u32) -> StateRecord {
    StateRecord { op: Op::Add, key: key(number), backend, seconds, flags: backend as u8 }
}

fn remove(number: u64) -> StateRecord {
    StateRecord { op: Op::Remove, ..add(number, 0, 0) }
}

fn apply(model: &mut Model, record: StateRecord) {
    match record.op {
        Op::Add => model.insert(record.key, record),
        Op::Remove => model.remove(&record.key),
    };
}

fn as_model(live: Vec<StateRecord>) -> Model {
    let count = live.len();
    let model: Model = live.into_iter().map(|record| (record.key, record)).collect();
    assert_eq!(model.len(), count, "a key is live twice");
    model
}

#[test]
fn replay_equals_the_model() {
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("states");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut model = Model::new();
        let (mut log, live) = StateLog::open(&path).unwrap();
        assert!(live.is_empty() && log.is_empty());
        for _ in 0..200_000 {
            let number = rng.random_range(0..3000);
            let record = if rng.random_bool(0.6) {
                add(number, rng.random(), rng.random())
            } else {
                remove(number)
            };
            log.append(&record).unwrap();
            apply(&mut model, record);
            if rng.random_bool(0.00005) {
                drop(log);
                let reopened = StateLog::open(&path).unwrap();
                assert_eq!(as_model(reopened.1), model);
                log = reopened.0;
            }
            if log.should_compact(model.len()) {
                log.compact(model.values().copied()).unwrap();
                assert_eq!(log.len(), model.len());
                assert_eq!(log.live_hint(), model.len());
            }
        }
        drop(log);
        let (log, live) = StateLog::open(&path).unwrap();
        assert_eq!(as_model(live), model, "seed {seed}");
        assert_eq!(log.ignored(), 0);
        assert!(!beside(&path).exists());
    }
}

/// A log is rewritten a part at a time, while others are appended: whenever the process dies, all of that is there;
/// and no part is larger than it may be.
#[test]
fn a_log_is_rewritten_in_parts() {
    const PART: usize = 100;
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("states");
        let (mut log, _) = StateLog::open(&path).unwrap();
        let mut model = Model::new();
        let mut change = |log: &mut StateLog, model: &mut Model| {
            let key = rng.random_range(0..2_000);
            let record = if rng.random_bool(0.4) { remove(key) } else { add(key, 1, key as u32) };
            log.append(&record).unwrap();
            apply(model, record);
        };
        (0..5_000).for_each(|_| change(&mut log, &mut model));
        log.begin_to_compact(model.values().copied().collect()).unwrap();
        let (before, mut parts) = (log.len(), 0);
        // Every other time it dies somewhere on the way.
        let most = if round % 2 == 0 { usize::MAX } else { round / 2 };
        while log.is_compacting() && parts < most {
            log.go_on_compacting(PART).unwrap();
            parts += 1;
            (0..30).for_each(|_| change(&mut log, &mut model));
        }
        if round % 2 == 0 {
            // A hundred of what is live, or was appended, for each thirty more.
            assert!((5..60).contains(&parts), "{parts} parts");
            assert!(log.len() < before && !beside(&path).exists());
        }
        drop(log);
        let (log, live) = StateLog::open(&path).unwrap();
        assert_eq!((as_model(live), log.ignored()), (model, 0), "round {round}");
        assert!(!beside(&path).exists());
    }
}

/// One that is rewritten at once meanwhile, or cannot take its place, goes on as it is.
#[test]
fn a_rewriting_that_is_given_up_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("states.log");
    let (mut log, _) = StateLog::open(&path).unwrap();
    log.begin_to_compact(vec![add(1, 1, 1), add(2, 2, 2)]).unwrap();
    log.go_on_compacting(1).unwrap();
    assert!(log.is_compacting());
    log.compact([add(3, 3, 3)]).unwrap();
    assert!(!log.is_compacting() && log.len() == 1);
    log.begin_to_compact(vec![add(4, 4, 4)]).unwrap();
    fs::remove_file(&path).unwrap();
    fs::create_dir_all(path.join("full")).unwrap();
    assert!((0..3).any(|_| log.go_on_compacting(10).is_err()));
    assert!(!log.is_compacting() && log.len() == 1);
    assert!(!beside(&path).exists());
}

/// A disc on which no file grows: what there was no room for is counted in the log itself, for the next process, until
/// it is written as a whole.
#[test]
fn states_without_room_are_counted_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("states.log");
    let (mut log, _) = StateLog::open(&path).unwrap();
    let mut appended = 0;
    log.fill_disc();
    while log.append(&add(appended, 1, 1)).is_ok() {
        appended += 1;
    }
    assert!(appended > 100 && log.missing() == 1);
    assert!(log.append(&add(appended + 1, 1, 1)).is_err());
    assert!(log.append(&remove(3)).is_err(), "nothing is lost by that");
    assert_eq!(log.missing(), 2);
    drop(log);
    let (mut log, live) = StateLog::open(&path).unwrap();
    assert_eq!((live.len() as u64, log.missing(), log.lost()), (appended, 2, None));
    // There is room again: it is whole once it takes its place.
    log.begin_to_compact(live).unwrap();
    log.fill_disc();
    (0..3).for_each(|n| assert!(log.append(&add(1_000_000 + n, 1, 1)).is_err()));
    assert_eq!(log.missing(), 5);
    while log.is_compacting() {
        log.go_on_compacting(1_000).unwrap();
    }
    assert_eq!(log.missing(), 3, "three came while it was written");
    log.compact([add(1, 1, 1)]).unwrap();
    assert_eq!(log.missing(), 0);
    drop(log);
    assert_eq!(StateLog::open(&path).unwrap().0.missing(), 0);
}

#[test]
fn live_states_come_in_the_order_of_their_last_add() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("states");
    let (mut log, _) = StateLog::open(&path).unwrap();
    for record in [add(1, 1, 1), add(2, 2, 2), add(1, 3, 3), add(4, 4, 4), remove(2)] {
        log.append(&record).unwrap();
    }
    drop(log);
    let (_, live) = StateLog::open(&path).unwrap();
    assert_eq!(live, [add(1, 3, 3), add(4, 4, 4)]);
}

/// A log of ten adds, edited by `edit`, opened again.
fn after(edit: impl FnOnce(&mut Vec<u8>)) -> Result<(usize, usize), StoreError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("states");
    let (mut log, _) = StateLog::open(&path).unwrap();
    for number in 0..10 {
        log.append(&add(number, 1, 1)).unwrap();
    }
    drop(log);
    let mut bytes = fs::read(&path).unwrap();
    edit(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let (mut log, live) = StateLog::open(&path)?;
    let result = (live.len(), log.ignored());
    // It can be appended to, and what is appended is read back.
    log.append(&add(100, 2, 2)).unwrap();
    drop(log);
    let (_, again) = StateLog::open(&path).unwrap();
    assert_eq!(again.len(), live.len() + 1);
    assert_eq!(again.last(), Some(&add(100, 2, 2)));
    Ok(result)
}

#[test]
fn a_truncated_file_keeps_its_whole_records() {
    assert_eq!(after(|_| {}).unwrap(), (10, 0));
    assert_eq!(after(|bytes| bytes.truncate(32 + 7 * 32)).unwrap(), (7, 0));
    assert_eq!(after(|bytes| bytes.truncate(32 + 7 * 32 + 31)).unwrap(), (7, 0));
    assert_eq!(after(|bytes| bytes.truncate(32)).unwrap(), (0, 0));
}

#[test]
fn a_torn_record_is_ignored() {
    // Killed before the op byte was written.
    assert_eq!(after(|bytes| bytes[32 + 9 * 32 + 31] = 0).unwrap(), (9, 0));
    // Damaged in whatever other way.
    for at in 0..32 {
        let hit = |bytes: &mut Vec<u8>| bytes[32 + 9 * 32 + at] ^= 0x40;
        assert_eq!(after(hit).unwrap(), (9, 1), "byte {at}");
    }
    // In the middle, the others stand.
    assert_eq!(after(|bytes| bytes[32 + 4 * 32] ^= 1).unwrap(), (9, 1));
    // A record at another place than its own is not one.
    assert_eq!(after(|bytes| bytes.copy_within(32..64, 32 + 5 * 32)).unwrap(), (9, 1));
}

#[test]
fn garbage_is_refused_with_a_reason() {
    let refused = |edit: fn(&mut Vec<u8>), reason: &str| {
        let error = after(edit).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }));
        let text = error.to_string();
        assert!(text.contains(reason) && text.contains("move it away"), "{text}");
    };
    refused(|bytes| bytes[0] = b'X', "does not begin like a state log");
    refused(|bytes| bytes[8] = 9, "of version 9, and this weir reads 1");
    refused(|bytes| bytes[12] = 33, "33 bytes, not 32");
    refused(|bytes| bytes.truncate(31), "it has 31 bytes");
    refused(Vec::clear, "it has 0 bytes");
}

#[test]
fn documents_are_replaced_as_a_whole() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Known {
        name: String,
        ids: Vec<u32>,
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.json");
    assert_eq!(Document::load::<Known>(&path).unwrap(), None);
    for round in 0..3 {
        let known = Known { name: "web".to_owned(), ids: vec![round; 3] };
        Document::save(&path, &known).unwrap();
        assert_eq!(Document::load(&path).unwrap(), Some(known));
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    fs::write(&path, "{\"name\": \"we").unwrap();
    let text = Document::load::<Known>(&path).unwrap_err().to_string();
    assert!(text.contains("control.json cannot be used"), "{text}");
    assert!(text.contains("line 1") && text.contains("move it away"), "{text}");
    let nowhere = dir.path().join("no/such/dir");
    assert!(matches!(Document::save(nowhere, &1), Err(StoreError::Io { .. })));
}

#[test]
fn a_run_directory_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let lock = RunLock::acquire(&run_dir).unwrap();
    let text = RunLock::acquire(&run_dir).unwrap_err().to_string();
    assert!(text.contains("in use by another weir"), "{text}");
    drop(lock);
    RunLock::acquire(&run_dir).unwrap();
}

#[test]
fn a_run_directory_that_others_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (run_dir, link) = (dir.path().join("run"), dir.path().join("link"));
    drop(RunLock::acquire(&run_dir).unwrap());
    fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::symlink(&run_dir, &link).unwrap();
    for (directory, mend) in [(&run_dir, "chmod go-w"), (&link, "leads to")] {
        let refused = RunLock::acquire(directory).unwrap_err();
        assert!(matches!(refused, StoreError::Unsafe { .. }), "{refused:?}");
        let said = refused.to_string();
        assert!(said.contains("cannot be used") && said.contains(mend), "{said}");
    }
    fs::set_permissions(&run_dir, fs::Permissions::from_mode(0o755)).unwrap();
    RunLock::acquire(&run_dir).unwrap();
}

/// A process that was killed lets go of its locks some moments later; one that runs does not.
#[test]
fn a_start_waits_for_a_lock_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let former = std::cell::Cell::new(Some(RunLock::acquire(&run_dir).unwrap()));
    let looks = std::cell::Cell::new(0);
    let take = || {
        looks.set(looks.get() + 1);
        // It ends while it is waited for.
        if looks.get() == 4 {
            drop(former.take());
        }
        RunLock::acquire(&run_dir)
    };
    let lock = await_free(take, Duration::ZERO).unwrap();
    assert_eq!(looks.get(), 4);
    let refused = await_free(|| RunLock::acquire(&run_dir), Duration::ZERO).unwrap_err();
    assert!(refused.to_string().contains("in use by another weir"), "{refused}");
    drop(lock);
    assert!(RunLock::await_free(&run_dir).is_ok());
    // What is no lock's fault is said at once.
    looks.set(0);
    let nowhere = dir.path().join("none");
    let take = || {
        looks.set(looks.get() + 1);
        NameLock::acquire(&nowhere)
    };
    assert!(matches!(await_free(take, Duration::ZERO), Err(StoreError::Io { .. })));
    assert_eq!(looks.get(), 1);
}

/// Mapped memory is written without a system call; the figures are printed.
#[test]
fn appending_takes_well_under_a_system_call() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = StateLog::open(dir.path().join("states")).unwrap();
    let records: Vec<StateRecord> = (0..4096).map(|n| add(n, 3, 4)).collect();
    const TIMES: u32 = 256;
    let mut file = std::fs::File::create(dir.path().join("written")).unwrap();
    // In turn, so that a machine that is busy with other things is busy for both.
    let (mut appended, mut written) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TIMES {
        let start = Instant::now();
        for record in &records {
            log.append(record).unwrap();
        }
        appended += start.elapsed();
        let start = Instant::now();
        for record in records.iter().take(256) {
            std::io::Write::write_all(&mut file, &[record.seconds as u8; 32]).unwrap();
        }
        written += start.elapsed() * 16;
    }
    let each = |time: Duration| time / (TIMES * 4096);
    let (append, write) = (each(appended), each(written));
    println!("append: {append:?} each, growing to {} MiB; write: {write:?}", log.len() >> 15);
    assert!(append * 2 < write, "{append:?} and {write:?}");
}

const CHILD_PATH: &str = "WEIR_STORE_TEST_PATH";
const CHILD_COMPACTS: &str = "WEIR_STORE_TEST_COMPACTS";

/// The record that the child appends as number `n`.
fn nth(n: u64, compacts: bool) -> StateRecord {
    // With compaction every record is an add, so that the states tell how far the child came.
    if !compacts && n % 3 == 2 {
        remove((n * 7) % 5000)
    } else {
        add((n * 11) % 5000, n as u16, n as u32)
    }
}

/// Not a test: what the child of the tests below does until it is killed.
#[test]
fn child() {
    let Ok(path) = env::var(CHILD_PATH) else {
        return;
    };
    let compacts = env::var(CHILD_COMPACTS).is_ok();
    let (mut log, _) = StateLog::open(path).unwrap();
    let mut model = Model::new();
    for n in 0.. {
        let record = nth(n, compacts);
        log.append(&record).unwrap();
        if compacts {
            apply(&mut model, record);
            if log.len() > model.len() + 10_000 {
                log.compact(model.values().copied()).unwrap();
            }
        }
        if n % 100 == 99 {
            println!("appended {}", n + 1);
        }
    }
}

/// Runs a child on the log, kills it after `delay`, and returns how much it acknowledged.
fn kill_a_child(path: &Path, compacts: bool, delay: Duration) -> u64 {
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["store::tests::child", "--exact", "--nocapture"])
        .env(CHILD_PATH, path)
        .stdout(Stdio::piped());
    if compacts {
        command.env(CHILD_COMPACTS, "1");
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut acknowledged = 0;
    let mut first = None;
    // Reads to the end of the pipe, which is after the kill: what was said before it counts.
    while let Some(Ok(line)) = lines.next() {
        if let Some(count) = line.strip_prefix("appended ").and_then(|n| n.parse().ok()) {
            acknowledged = count;
            let first = first.get_or_insert_with(Instant::now);
            if first.elapsed() >= delay {
                child.kill().unwrap();
            }
        }
    }
    assert!(!child.wait().unwrap().success());
    acknowledged
}

#[test]
fn a_killed_process_loses_nothing_that_it_appended() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("states");
        let delay = Duration::from_micros(rng.random_range(0..60_000));
        let acknowledged = kill_a_child(&path, false, delay);
        let (log, live) = StateLog::open(&path).unwrap();
        let appended = log.len() as u64;
        assert!(appended >= acknowledged && acknowledged > 0, "round {round}");
        assert_eq!(log.ignored(), 0);
        let mut model = Model::new();
        (0..appended).for_each(|n| apply(&mut model, nth(n, false)));
        assert_eq!(as_model(live), model, "round {round}: {appended} appended");
    }
}

#[test]
fn a_process_killed_while_it_compacts_loses_nothing() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for round in 0..8 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("states");
        let delay = Duration::from_micros(rng.random_range(0..60_000));
        let acknowledged = kill_a_child(&path, true, delay);
        let (_, live) = StateLog::open(&path).unwrap();
        let last = live.iter().map(|record| record.seconds).max();
        let appended = u64::from(last.unwrap()) + 1;
        assert!(appended >= acknowledged && acknowledged > 0, "round {round}");
        let mut model = Model::new();
        (0..appended).for_each(|n| apply(&mut model, nth(n, true)));
        assert_eq!(as_model(live), model, "round {round}: {appended} appended");
    }
}

/// What was to take a file's place, and cannot, does not stay beside it: it may be what fills the disc.
#[test]
fn what_cannot_take_a_place_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("states.log");
    let (mut log, _) = StateLog::open(&path).unwrap();
    log.append(&add(1, 1, 1)).unwrap();
    // A folder in its place.
    fs::remove_file(&path).unwrap();
    fs::create_dir_all(path.join("full")).unwrap();
    assert!(log.compact([add(1, 1, 1)]).is_err());
    assert!(Document::save(&path, &1).is_err());
    assert!(write_whole(&path, b"1").is_err());
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|one| one.unwrap().path()).collect();
    assert_eq!(left, [path]);
}
