//! The journal of a document.

use super::*;
use std::collections::BTreeMap;

type Numbers = BTreeMap<String, u64>;

/// What a new process makes of the files.
fn read(path: &Path) -> Numbers {
    let found = Journal::read::<Numbers, (String, u64)>(path).expect("readable");
    let (mut document, changes) = found.expect("there is one");
    document.extend(changes);
    document
}

fn change(n: u64) -> (String, u64) {
    (format!("key {}", n % 7), n)
}

#[test]
fn what_was_appended_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runtime.json");
    assert!(Journal::read::<Numbers, (String, u64)>(&path).unwrap().is_none());
    let mut expected = Numbers::new();
    let mut journal = Journal::new(path.clone());
    assert!(journal.is_to_be_rewritten());
    journal.rewrite(&expected).unwrap();
    for round in 0..50 {
        let changes: Vec<_> = (0..round % 4).map(|n| change(round * 10 + n)).collect();
        journal.append(&changes).unwrap();
        expected.extend(changes);
        assert_eq!(read(&path), expected);
        if round % 20 == 19 {
            journal.rewrite(&expected).unwrap();
            assert_eq!(read(&path), expected);
        }
    }
    // A file of a version that knew no log.
    let old = Numbers::from([change(1)]);
    Document::save(&path, &old).unwrap();
    assert_eq!(read(&path), old);
}

#[test]
fn a_log_that_grows_long_asks_to_be_rewritten() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = Journal::new(directory.path().join("runtime.json"));
    journal.rewrite(&Numbers::new()).unwrap();
    let changes: Vec<_> = (0..1_000).map(change).collect();
    let appended = (0..1_000).take_while(|_| {
        journal.append(&changes).unwrap();
        !journal.is_long()
    });
    assert!((2..100).contains(&appended.count()));
    journal.rewrite(&Numbers::new()).unwrap();
    assert!(!journal.is_long());
}

/// The log ends anywhere, or a byte of it is another: what stood whole before is read, and no
/// more. A process that is killed in between the two files loses nothing.
#[test]
fn a_torn_tail_is_no_record() {
    let seed: u64 =
        std::env::var("WEIR_SEED").map_or_else(|_| rand::random(), |s| s.parse().unwrap());
    println!("WEIR_SEED={seed}");
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let directory = tempfile::tempdir().unwrap();
    let (path, log) = (directory.path().join("runtime.json"), directory.path().join("runtime.log"));
    let mut journal = Journal::new(path.clone());
    let base = Numbers::from([change(1_000_000)]);
    journal.rewrite(&base).unwrap();
    // What is read of so many bytes of the log.
    let mut wholes = vec![(0, base.clone())];
    for _ in 0..20 {
        // What changes together is there together, or not at all.
        let count = random.random_range(1..4);
        let mut one = || (format!("key {}", random.random_range(0..5)), random.random());
        let together: Vec<(String, u64)> = (0..count).map(|_| one()).collect();
        journal.append(&together).unwrap();
        let mut next = wholes.last().unwrap().1.clone();
        next.extend(together);
        wholes.push((fs::metadata(&log).unwrap().len() as usize, next));
    }
    let bytes = fs::read(&log).unwrap();
    let expected = |length: usize| &wholes.iter().rev().find(|(at, _)| *at <= length).unwrap().1;
    for length in 0..=bytes.len() {
        fs::write(&log, &bytes[..length]).unwrap();
        assert_eq!(&read(&path), expected(length), "{length} bytes of {}", bytes.len());
        // Zeros and noise, as a file system may leave them.
        let mut rest = vec![0; 40];
        random.fill(&mut rest[20..]);
        fs::write(&log, [&bytes[..length], &rest].concat()).unwrap();
        if length >= 24 {
            assert_eq!(&read(&path), expected(length), "{length} bytes and noise");
        }
    }
    for at in 24..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1 << random.random_range(0..8);
        fs::write(&log, &other).unwrap();
        assert_eq!(&read(&path), expected(at), "byte {at} is another");
    }
    // Killed after the document was replaced.
    fs::write(&log, &bytes).unwrap();
    let all = wholes.pop().unwrap().1;
    Document::save(&path, &all).unwrap();
    assert_eq!(read(&path), all);
}

/// What a process leaves that dies while it writes is no damage; what somebody has cut off, or changed, is.
#[test]
fn damage_is_told_from_a_torn_tail() {
    let directory = tempfile::tempdir().unwrap();
    let (path, log) = (directory.path().join("runtime.json"), directory.path().join("runtime.log"));
    let damage = || Journal::damage(&path).map(|damage| damage.to_string());
    let mut journal = Journal::new(path.clone());
    assert_eq!(damage(), None, "there is nothing");
    journal.rewrite(&Numbers::new()).unwrap();
    assert_eq!(damage(), None, "without a log");
    let mut ends = Vec::new();
    for n in 1..4 {
        journal.append(&[change(n)]).unwrap();
        ends.push(fs::metadata(&log).unwrap().len() as usize);
    }
    let bytes = fs::read(&log).unwrap();
    assert_eq!(damage(), None);
    for length in 0..bytes.len() {
        fs::write(&log, &bytes[..length]).unwrap();
        let said = (length < 24).then(|| format!("was cut off, with {length} bytes left"));
        assert_eq!(damage(), said, "{length} bytes");
    }
    // With a record behind it, and in the last one, whose length may be one that has not come yet.
    for at in 24..bytes.len() {
        let mut other = bytes.clone();
        other[at] ^= 1;
        fs::write(&log, &other).unwrap();
        let from = ends.iter().rev().find(|end| **end <= at).copied().unwrap_or(24);
        let said = format!(
            "is damaged: the {} bytes from byte {from} on are left out",
            bytes.len() - from
        );
        let length = (from..from + 4).contains(&at);
        assert!(damage() == Some(said) || length && from == ends[1], "byte {at}: {:?}", damage());
    }
    // One that belongs to another document says nothing, whatever is in it.
    let mut other = bytes.clone();
    other[16] ^= 1;
    other[40] ^= 1;
    fs::write(&log, &other).unwrap();
    assert_eq!(damage(), None);
    // Nor is what is cut off said twice.
    fs::write(&log, &bytes[..1]).unwrap();
    Journal::new(path.clone()).rewrite(&read(&path)).unwrap();
    assert_eq!(damage(), None);
}

/// A log of the version before had a record for each change.
#[test]
fn a_log_of_the_version_before_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let (path, log) = (directory.path().join("runtime.json"), directory.path().join("runtime.log"));
    let text = Document::save(&path, &Numbers::from([change(1)])).unwrap();
    let mut bytes = [&b"WEIRJNL\0"[..], &1u32.to_le_bytes(), &[0; 4]].concat();
    bytes.extend(xxhash_rust::xxh3::xxh3_64(&text).to_le_bytes());
    for n in [2, 3] {
        let body = serde_json::to_vec(&change(n)).unwrap();
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&body, bytes.len() as u64);
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(sum.to_le_bytes());
        bytes.extend(body);
    }
    fs::write(&log, &bytes).unwrap();
    assert_eq!(read(&path), Numbers::from([change(1), change(2), change(3)]));
}

#[test]
fn a_write_that_fails_leaves_no_half_record() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runtime.json");
    let mut journal = Journal::new(path.clone());
    journal.rewrite(&Numbers::new()).unwrap();
    journal.append(&[change(1)]).unwrap();
    let before = read(&path);
    let log = directory.path().join("runtime.log");
    let whole = fs::read(&log).unwrap();
    journal.fill_disc();
    let error = journal.append(&[change(2)]).unwrap_err().to_string();
    assert!(error.contains("runtime.log") && error.contains("space"), "{error}");
    assert_eq!((read(&path), fs::read(&log).unwrap()), (before, whole));
}

#[test]
fn what_is_no_log_or_of_another_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runtime.json");
    let mut journal = Journal::new(path.clone());
    journal.rewrite(&Numbers::new()).unwrap();
    journal.append(&[change(1)]).unwrap();
    let log = directory.path().join("runtime.log");
    for (at, words) in [(0, "does not begin like"), (8, "is of version")] {
        let mut bytes = fs::read(&log).unwrap();
        bytes[at] += 1;
        fs::write(&log, &bytes).unwrap();
        let error = Journal::read::<Numbers, (String, u64)>(&path).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("runtime.log"), "{error}");
        bytes[at] -= 1;
        fs::write(&log, &bytes).unwrap();
    }
    assert_eq!(read(&path).len(), 1);
}

/// Its checksum is right, so somebody has written it so: a newer version, with a change that this one does not know.
#[test]
fn a_record_that_is_not_known_is_another_versions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runtime.json");
    let mut journal = Journal::new(path.clone());
    journal.rewrite(&Numbers::new()).unwrap();
    journal.append(&[change(1)]).unwrap();
    journal.append(&["a change of another kind"]).unwrap();
    let error = Journal::read::<Numbers, (String, u64)>(&path).unwrap_err().to_string();
    for words in ["runtime.log", "another version of weir may have written it"] {
        assert!(error.contains(words), "{error}");
    }
}
