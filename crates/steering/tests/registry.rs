//! What holds for every method whose tables can be published: a table survives its bytes and no
//! other table has them, bursts answer as single packets do, and an explanation is the decision.
//!
//! `WEIR_SEED=n` repeats a run.

mod seed;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_hash::{HashKey, Key};
use weir_steering::{
    BackendId, Body, Build, Decide, Decision, ELEMENT_BYTES, EventKind, Field, Flags, Image,
    ImageError, Member, MethodId, Note, Question, ROWS, RawHeader, Recall, Rehearsal, Role, Rows,
    ServiceConfig, ServiceId, ServiceState, Settings, Signals, SoftMemory, StateKey, TrackedFlow,
    cheetah, methods,
};

const BACKENDS: u16 = 12;

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed::seed())
}

fn config(method: MethodId, rng: &mut ChaCha8Rng) -> ServiceConfig {
    let mut settings = Settings::of(method);
    if settings.iter().any(|(setting, _)| setting.name == ROWS) {
        settings.set(ROWS, 5_000).unwrap();
    }
    ServiceConfig {
        settings,
        client_affinity: rng.random(),
        udp: rng.random(),
        seed: rng.random(),
        nonce: rng.random(),
        capacity: 100,
        max_states: 100_000,
        idle_seconds: 100,
    }
}

fn pool(rng: &mut ChaCha8Rng) -> Vec<Member> {
    (0..BACKENDS)
        .map(|backend| Member {
            backend: BackendId::of(backend),
            name: format!("b{backend}"),
            weight: rng.random_range(0..5),
            role: if rng.random_bool(0.3) { Role::Draining } else { Role::Serving },
        })
        .collect()
}

fn key(n: u32) -> StateKey {
    let mut address = [0; 16];
    address[10..12].fill(0xff);
    address[12..].copy_from_slice(&n.to_be_bytes());
    StateKey { address, src_port: 4000, dst_port: 443 }
}

/// A service with flows at random backends, and its table.
fn service(method: MethodId, rng: &mut ChaCha8Rng) -> (Box<dyn Build>, std::sync::Arc<Image>) {
    let make = method.info().builder.expect("its tables can be published");
    let mut builder = make(&config(method, rng), None);
    assert_eq!(builder.method(), method);
    for n in 0..2_000 {
        let backend = BackendId::new(rng.random_range(0..BACKENDS)).unwrap();
        builder.start(key(n), backend, 0).unwrap();
    }
    assert_eq!(builder.states(), if method.needs().states { 2_000 } else { 0 });
    let table = builder.build(1, &pool(rng), 0).unwrap().table;
    assert_eq!(table.method(), method);
    (builder, table)
}

fn bytes(image: &Image, base: u32) -> (Vec<u8>, Vec<u8>) {
    let mut body = vec![0; image.elements() * ELEMENT_BYTES];
    image.write_body(&mut body);
    (image.header_bytes(base).to_vec(), body)
}

fn read(header: &[u8], body: &[u8]) -> Result<Image, ImageError> {
    Image::read_from(header, |_, elements| {
        (body.len() == elements * ELEMENT_BYTES).then(|| body.to_vec())
    })
}

#[test]
fn tables_survive_their_bytes_and_damage_is_seen() {
    let mut rng = rng();
    for method in MethodId::published() {
        let (_, table) = service(method, &mut rng);
        let (header, body) = bytes(&table, 7);
        assert_eq!(read(&header, &body).unwrap(), *table, "{method}");
        assert_eq!(Image::range_of(&header), Some((7, table.elements() as u32)));
        let changes = ["first_slot", "flags", "generation", "first_a", "per_chunk"];
        // The plane says there where the connections are; that is no part of the table.
        let placed = |name: &str| method == MethodId::CheetahStateful && name == "chunks_b";
        let fixed = |field: &&Field| !changes.contains(&field.name) && !placed(field.name);
        for field in RawHeader::FIELDS.iter().filter(fixed) {
            for byte in field.offset..field.offset + field.bytes {
                let mut damaged = header.clone();
                damaged[byte] ^= 1 << rng.random_range(0..8);
                assert!(read(&damaged, &body).is_err(), "{method}: {} {byte}", field.name);
            }
        }
        let used = Image::bytes(&table).min(body.len());
        for _ in 0..200 {
            let mut damaged = body.clone();
            let at = rng.random_range(0..used);
            damaged[at] ^= 1 << rng.random_range(0..8);
            // What is left of the last element of a part is nobody's.
            let seen = read(&header, &damaged);
            assert!(seen.is_err() || seen.unwrap() == *table, "{method}: byte {at}");
        }
        let mut other = header.clone();
        let at = std::mem::offset_of!(RawHeader, layout);
        other[at] ^= 0x80;
        assert!(matches!(read(&other, &body), Err(ImageError::Layout { .. })), "{method}");
    }
    let mut header = vec![0; RawHeader::BYTES];
    header[std::mem::offset_of!(RawHeader, method)] = 255;
    assert_eq!(read(&header, &[]), Err(ImageError::Method(255)));
}

/// Also with keys that its cookies tell apart; and whoever knows nothing of keys finds no number in it.
#[test]
fn a_table_of_cookies_keeps_its_keys() {
    let mut rng = rng();
    let method = MethodId::Cheetah;
    for issue in 0..2 {
        let keys = [7, 8].map(|seed| Some(HashKey::from_seed(seed)));
        let mut config = config(method, &mut rng);
        config.settings.set_word(cheetah::ANSWERS, "backend").unwrap();
        config.settings = config.settings.with_cookie_keys(cheetah::CookieKeys::new(keys, issue));
        let mut builder = method.info().builder.expect("it is published")(&config, None);
        let table = builder.build(1, &pool(&mut rng), 0).unwrap().table;
        let (header, body) = bytes(&table, 7);
        assert_eq!(read(&header, &body).unwrap(), *table);
        let at = std::mem::offset_of!(RawHeader, slots);
        assert_eq!(header[at..at + 4], [0; 4]);
        let mut damaged = body.clone();
        let last = (table.elements() - 1) * ELEMENT_BYTES;
        damaged[last + rng.random_range(0..64)] ^= 1 << rng.random_range(0..8);
        assert!(read(&header, &damaged).is_err());
        // It reads what it tells.
        let Image::Cheetah(table) = &*table else { panic!("another method's") };
        assert_eq!(table.body().0.method.keys().map(|keys| keys.issue()), Some(issue as u8));
    }
}

/// A table takes what was said at most, also one of many more states than the service was made for.
#[test]
fn no_table_takes_more_than_was_said() {
    let mut rng = rng();
    for method in MethodId::published() {
        for states in [0, 1, 1_700, 1_800, 2_400, 20_000] {
            let make = method.info().builder.expect("its tables can be published");
            let mut config = config(method, &mut rng);
            config.max_states = states;
            let most = config.settings.most_table_bytes(states).expect("they take some");
            let mut builder = make(&config, None);
            let mut pool = pool(&mut rng);
            for n in 0..states as u32 {
                // Not where the first table would lead it.
                let backend = BackendId::new(n as u16 % BACKENDS).unwrap();
                builder.start(key(n), backend, 0).unwrap();
            }
            for generation in 1..4 {
                let table = builder.build(generation, &pool, 0).unwrap().table;
                let bytes = Image::bytes(&table);
                assert!(bytes <= most, "{method}, {states} states: {bytes} of {most}");
                pool.iter_mut().for_each(|member| member.weight = rng.random_range(0..5));
            }
        }
    }
    assert_eq!(Settings::of(MethodId::FullTracking).most_table_bytes(5), None);
}

/// What a data plane would say without being changed.
struct Mirror<'a>(&'a SoftMemory);

impl Recall for Mirror<'_> {
    fn pending(&self, question: &Question) -> Option<BackendId> {
        self.0.pending.get(&question.state()).copied()
    }

    fn pending_has_room(&self) -> bool {
        self.0.pending.len() < self.0.pending_limit
    }

    fn pinned(&self, question: &Question) -> Option<BackendId> {
        self.0.pinned.get(&question.state()).copied()
    }

    fn connection(&self, question: &Question) -> Option<TrackedFlow> {
        self.0.connections.get(&question.state()).copied()
    }

    fn incarnation(&self, backend: BackendId) -> Option<u32> {
        self.0.incarnations.get(&backend).copied()
    }

    fn is_down(&self, backend: BackendId) -> bool {
        self.0.down.contains(&backend)
    }

    fn known(&self, question: &Question) -> Option<BackendId> {
        let entry = self.connection(question)?;
        let live = self.0.incarnations.get(&entry.backend).is_some_and(|now| entry.is_of(*now))
            && !(question.signals.starts && self.0.down.contains(&entry.backend));
        live.then_some(entry.backend)
    }
}

fn memory(rng: &mut ChaCha8Rng) -> SoftMemory {
    let mut memory = SoftMemory::new(1_000_000, 64, 16);
    let incarnations = (0..BACKENDS).map(|backend| (BackendId::of(backend), 3));
    memory.incarnations.extend(incarnations);
    memory.incarnations.remove(&BackendId::of(rng.random_range(0..BACKENDS)));
    memory.down.insert(BackendId::of(rng.random_range(0..BACKENDS)));
    for n in (0..3_000).step_by(7) {
        let state = ServiceState { service: ServiceId(0), key: key(n) };
        memory.pending.insert(state, BackendId::of(rng.random_range(0..BACKENDS)));
        memory.pinned.insert(state, BackendId::of(rng.random_range(0..BACKENDS)));
        let entry = TrackedFlow::new(BackendId::of(rng.random_range(0..BACKENDS)), 3 - n % 2);
        memory.connections.insert(state, entry);
    }
    memory
}

fn question(table: &Image, n: u32, signals: Signals) -> Question {
    let key = key(n);
    let hash = key.hash(Decide::<StateKey>::hash_key(table));
    Question { signals, ..Question::later(key, hash) }
}

#[test]
fn bursts_answer_as_single_packets_do_and_leave_the_same_behind() {
    let mut rng = rng();
    for method in MethodId::published() {
        let (_, table) = service(method, &mut rng);
        for flags in 0..8 {
            let client = table.header().flags().0 & Flags::CLIENT;
            table.set_flags(Flags(flags | client));
            let before = memory(&mut rng);
            let keys: Vec<StateKey> = (0..3_001).map(|_| key(rng.random_range(0..3_000))).collect();
            let (mut one, mut many) = (copy(&before), copy(&before));
            let single: Vec<u16> = keys
                .iter()
                .map(|key| {
                    let hash = key.hash(Decide::<StateKey>::hash_key(&*table));
                    table.decide(&Question::later(*key, hash), &mut one).slot()
                })
                .collect();
            let mut bursts = vec![0; keys.len()];
            table.decide_burst(&keys, &mut bursts, &mut many);
            assert!(single == bursts, "{method}, flags {flags}");
            assert_eq!(trace(&one), trace(&many), "{method}, flags {flags}");
        }
    }
}

/// Pending and tracked flows, reports and marks, in order.
type Trace = (Vec<(ServiceState, BackendId)>, Vec<(ServiceState, BackendId, u16)>, usize, Vec<u64>);

fn trace(memory: &SoftMemory) -> Trace {
    let mut pending: Vec<_> = memory.pending.iter().map(|(s, b)| (*s, *b)).collect();
    pending.sort_unstable();
    let tracked = memory.connections.iter().map(|(s, c)| (*s, c.backend, c.incarnation));
    let mut tracked: Vec<_> = tracked.collect();
    tracked.sort_unstable();
    (pending, tracked, memory.events.len(), memory.strangers.clone())
}

fn copy(memory: &SoftMemory) -> SoftMemory {
    SoftMemory {
        pending: memory.pending.clone(),
        pending_limit: memory.pending_limit,
        pinned: memory.pinned.clone(),
        events: memory.events.clone(),
        marks: memory.marks.clone(),
        strangers: memory.strangers.clone(),
        mark_side: memory.mark_side,
        watched: memory.watched.clone(),
        watched_next: memory.watched_next.clone(),
        seen: memory.seen.clone(),
        seen_generation: memory.seen_generation,
        fragments: memory.fragments.clone(),
        bare: memory.bare,
        echoes: memory.echoes.clone(),
        connections: memory.connections.clone(),
        incarnations: memory.incarnations.clone(),
        down: memory.down.clone(),
        answers: memory.answers.clone(),
        slots: memory.slots.clone(),
        turns: memory.turns.clone(),
        loads: memory.loads.clone(),
        now: memory.now,
        fragment_clock: memory.fragment_clock,
    }
}

/// The rehearsal says what the decision will be, in every part, and changes nothing; what it says
/// would be told is what is told.
#[test]
fn an_explanation_is_the_decision() {
    let mut rng = rng();
    let mut told = [0; 4];
    for method in MethodId::published() {
        let (_, table) = service(method, &mut rng);
        for flags in 0..8 {
            let client = table.header().flags().0 & Flags::CLIENT;
            table.set_flags(Flags(flags | client));
            let mut real = memory(&mut rng);
            for round in 0..3_000 {
                let ends = rng.random_bool(0.2);
                let signals = *[Signals::FIRST, Signals::LATER, Signals { ends, ..Signals::LATER }]
                    .get(rng.random_range(0..3usize))
                    .unwrap();
                let question = question(&table, rng.random_range(0..6_000), signals);
                // It has no way to change anything; seen now and then.
                let before = (round % 64 == 0).then(|| trace(&real));
                let mirror = Mirror(&real);
                let mut rehearsal = Rehearsal::new(&mirror);
                let said: Decision = table.decide(&question, &mut rehearsal);
                let notes = rehearsal.notes().to_vec();
                if let Some(before) = before {
                    assert_eq!(trace(&real), before, "a rehearsal changes nothing");
                }
                let events = real.events.len();
                let done = table.decide(&question, &mut real);
                assert_eq!(said, done, "{method}: {notes:?}");
                let reports = notes.iter().filter(|n| matches!(n, Note::Report(..))).count();
                assert_eq!(real.events.len() - events, reports, "{method}");
                for note in notes {
                    match note {
                        Note::NotePending(backend) => {
                            assert_eq!(real.pending.get(&question.state()), Some(&backend));
                            told[0] += 1;
                        }
                        Note::Track(entry) => {
                            assert_eq!(real.connections.get(&question.state()), Some(&entry));
                            told[1] += 1;
                        }
                        Note::Report(backend, kind) => {
                            let event = real.events[events..].iter().find(|e| e.kind == kind);
                            assert_eq!(event.unwrap().backend, backend.get());
                            told[2] += u32::from(kind == EventKind::Start);
                        }
                        Note::Mark => told[3] += 1,
                        _ => {}
                    }
                }
            }
        }
    }
    println!("{told:?}: noted, tracked, reported, marked");
    assert!(told.iter().all(|&count| count > 1_000), "{told:?}");
}

/// A body says how large it is before it is read, whatever its header says.
#[test]
fn no_header_asks_for_what_cannot_be() {
    fn check<B: Body>(raw: &RawHeader) {
        if let Ok(elements) = B::elements_of(raw) {
            assert!(elements > 0);
        }
    }
    let mut rng = rng();
    for _ in 0..200_000 {
        let mut bytes: [u8; RawHeader::BYTES] = rng.random();
        if rng.random() {
            // Small numbers get further.
            bytes.iter_mut().for_each(|byte| *byte &= 0x11);
        }
        bytes[std::mem::offset_of!(RawHeader, method)] = rng.random_range(0..7);
        let raw = RawHeader::from_bytes(&bytes);
        check::<methods::concury::Body>(&raw);
        check::<Rows<methods::tracked::Method>>(&raw);
        check::<methods::jet::Body>(&raw);
        check::<methods::cheetah::Body<methods::cheetah::Stateless>>(&raw);
        check::<methods::residue::Body>(&raw);
        let _ = Image::read_from(&bytes, |_, _| None);
    }
}
