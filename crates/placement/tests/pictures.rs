//! The pictures in docs/placement.md are right.

use weir_placement::{Anchor, Candidate, Horizon, HrwTable, Incremental, NONE, Ring};

fn candidate(name: &str) -> Candidate<'_> {
    Candidate { name, backend: number(name), weight: 1 }
}

/// Backends are numbered by their letters.
fn number(name: &str) -> u16 {
    u16::from(name.as_bytes()[0])
}

fn letters(backends: &[u16]) -> String {
    let letter = |&backend: &u16| if backend == NONE { '-' } else { backend as u8 as char };
    backends.iter().map(letter).collect()
}

#[test]
fn table() {
    let mut table = HrwTable::new(16).unwrap();
    let show = |table: &HrwTable| {
        let flag = |row: usize| if table.may_differ()[0] >> row & 1 != 0 { '!' } else { '.' };
        let flags: String = (0..16).map(flag).collect();
        [letters(table.rows()), letters(table.rows_all()), flags]
    };
    for name in ["A", "B", "C"] {
        table.add(candidate(name)).unwrap();
    }
    table.add_horizon(candidate("D")).unwrap();
    assert_eq!(show(&table), ["BBCCAACCCBCBACCA", "DBCCDACCCDCDACCA", "!...!....!.!...."]);
    table.retire(number("B")).unwrap();
    assert_eq!(show(&table), ["CACCAACCCACCACCA", "DBCCDACCCDCDACCA", "!!..!....!.!...."]);
    table.admit(number("D")).unwrap();
    assert_eq!(show(&table), ["DACCDACCCDCDACCA", "DBCCDACCCDCDACCA", ".!.............."]);
}

#[test]
fn ring() {
    let mut ring = Ring::new(2).unwrap();
    for name in ["A", "B", "C"] {
        ring.add(candidate(name)).unwrap();
    }
    ring.retire(number("C")).unwrap();
    let line = |lookup: &dyn Fn(u64) -> Option<u16>| {
        letters(&(0..64).map(|i| lookup(i << 58).unwrap_or(NONE)).collect::<Vec<_>>())
    };
    assert_eq!(
        [line(&|hash| ring.verdict(hash).map(|v| v.backend)), line(&|hash| ring.lookup_all(hash))],
        [
            "BBBBBBBBBBBBAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABBBBBBBBBBBBBBB",
            "BBBBBBBBBBBBACCCCCCCCCCCCCCCCAAAAAAAAAAAAAAAAAAAABBBBBBBBBBBBBBB",
        ]
    );
}

#[test]
fn anchor() {
    let mut anchor = Anchor::new(6).unwrap();
    let check = |anchor: &Anchor, a: [u32; 6], k: [u32; 6], owners: &str| {
        let tables = anchor.tables();
        assert_eq!((tables.anchor, tables.successor), (&a[..], &k[..]));
        assert_eq!(letters(tables.owner), owners);
    };
    for name in ["A", "B", "C", "D", "E"] {
        anchor.add(candidate(name)).unwrap();
    }
    check(&anchor, [0, 0, 0, 0, 0, 5], [0, 1, 2, 3, 4, 5], "ABCDE-");
    anchor.remove(number("B")).unwrap();
    check(&anchor, [0, 4, 0, 0, 0, 5], [0, 4, 2, 3, 4, 5], "A-CDE-");
    anchor.remove(number("D")).unwrap();
    check(&anchor, [0, 4, 0, 3, 0, 5], [0, 4, 2, 3, 4, 5], "A-C-E-");
    anchor.add(candidate("F")).unwrap();
    check(&anchor, [0, 4, 0, 0, 0, 5], [0, 4, 2, 3, 4, 5], "A-CFE-");
}
