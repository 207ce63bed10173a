use super::*;
use weir_wire::Protocol;

fn flow(number: u16) -> FlowKey {
    let from = ([10, 0, 0, 1], 1024 + number).into();
    FlowKey::new(from, ([10, 9, 0, 1], 80).into(), Protocol::Tcp)
}

fn rule(number: u16, queue: u16) -> Rule {
    Rule { flow: flow(number), queue: Queue(queue) }
}

fn answers<F>(nic: &mut Nic<F>) -> Vec<Answer> {
    let mut all = Vec::new();
    nic.answers(&mut |answer| all.push(answer));
    all
}

const MS: Duration = Duration::from_millis(1);

fn fixed(rules: usize) -> Profile {
    Profile { delay: Delay::Fixed(10 * MS), wavering: MS, ..Profile::sound(rules, 4) }
}

#[test]
fn a_rule_counts_from_its_time_on_and_wavers_before() {
    let mut nic = Nic::new(fixed(8), 1);
    nic.insert(Location(3), &rule(1, 2), Serial(1)).unwrap();
    assert_eq!(nic.lead(&flow(1)), Queue::SOFTWARE);
    nic.advance(Duration::from_micros(9_500));
    assert!(answers(&mut nic).is_empty());
    let met = |nic: &mut Nic<u8>| -> usize {
        (0..200).filter(|_| nic.lead(&flow(1)) == Queue(2)).count()
    };
    let both = met(&mut nic);
    assert!((50..150).contains(&both), "{both} of 200");
    nic.advance(10 * MS);
    let wanted = Answer { at: Location(3), serial: Serial(1), what: Answered::Done };
    assert_eq!(answers(&mut nic), [wanted]);
    assert_eq!(met(&mut nic), 200);
    assert_eq!(nic.lead(&flow(2)), Queue::SOFTWARE);
    nic.delete(Location(3), Serial(2)).unwrap();
    nic.advance(19 * MS);
    let both = met(&mut nic);
    assert!((50..150).contains(&both), "{both} of 200");
    nic.advance(20 * MS);
    assert_eq!(met(&mut nic), 0);
    assert_eq!(nic.in_force(), 0);
}

/// What was led to a queue stays there when the rule is gone: the race of the paper begins with that.
#[test]
fn frames_stay_in_the_queue_that_they_were_led_to() {
    let mut nic = Nic::new(fixed(8), 1);
    nic.insert(Location(0), &rule(1, 3), Serial(1)).unwrap();
    nic.advance(10 * MS);
    assert_eq!(nic.receive(Some(&flow(1)), 7), Ok(Queue(3)));
    nic.delete(Location(0), Serial(2)).unwrap();
    nic.advance(20 * MS);
    assert_eq!(nic.receive(Some(&flow(1)), 8), Ok(Queue::SOFTWARE));
    assert_eq!(nic.receive(None, 9), Ok(Queue::SOFTWARE));
    let mut got = Vec::new();
    assert!(nic.poll(Queue(3), 64, &mut |frame| got.push(frame)));
    assert_eq!(got, [7]);
    assert!(!nic.poll(Queue(0), 1, &mut |frame| got.push(frame)));
    assert_eq!(got, [7, 8]);
}

#[test]
fn commands_for_one_place_keep_their_order() {
    let profile = Profile { late: 0.5, late_by: 40, ..fixed(1) };
    for seed in 0..200 {
        let mut nic = Nic::<u8>::new(profile, seed);
        nic.insert(Location(0), &rule(1, 1), Serial(1)).unwrap();
        nic.delete(Location(0), Serial(2)).unwrap();
        nic.insert(Location(0), &rule(1, 2), Serial(3)).unwrap();
        let mut serials = Vec::new();
        for ms in 0..1_000u32 {
            nic.advance(ms * MS);
            serials.extend(answers(&mut nic).into_iter().map(|answer| answer.serial.0));
        }
        assert_eq!(serials, [1, 2, 3], "seed {seed}");
        assert_eq!(nic.lead(&flow(1)), Queue(2), "seed {seed}");
    }
}

#[test]
fn what_it_does_not_take_it_refuses_with_a_reason() {
    let mut nic = Nic::<u8>::new(Profile { rate: Some(1_000), ..fixed(4) }, 1);
    let queue = nic.insert(Location(0), &rule(1, 4), Serial(1));
    assert_eq!(queue, Err(Refusal::NoQueue { queue: Queue(4), queues: 4 }));
    let place = nic.insert(Location(4), &rule(1, 1), Serial(1));
    assert_eq!(place, Err(Refusal::NoPlace(Location(4))));
    let taken = (0..100).filter(|_| nic.insert(Location(0), &rule(1, 1), Serial(1)).is_ok());
    assert_eq!(taken.count(), 11, "a hundredth of a second's, and one");
    assert_eq!(nic.insert(Location(0), &rule(1, 1), Serial(1)), Err(Refusal::Busy));
    nic.advance(5 * MS);
    assert!(nic.delete(Location(0), Serial(2)).is_ok());
}

#[test]
fn a_full_queue_loses_frames_and_counts_them() {
    let mut nic = Nic::new(Profile { ring: 3, ..fixed(4) }, 1);
    let kept = (0..5).filter(|frame| nic.receive(None, *frame).is_ok()).count();
    assert_eq!((kept, nic.statistics().ring_full), (3, 2));
}

/// Every share is about what was asked for, and the same seed gives the same card.
#[test]
fn accidents_come_as_often_as_they_are_asked_for() {
    let run = |seed| {
        let profile = Profile {
            lost: 0.1,
            unanswered: 0.1,
            pretended: 0.1,
            refused: 0.1,
            late: 0.1,
            late_by: 3,
            ..fixed(4_000)
        };
        let mut nic = Nic::<u8>::new(profile, seed);
        for at in 0..4_000u16 {
            nic.insert(Location(at.into()), &rule(at, 1), Serial(1)).unwrap();
        }
        nic.advance(1_000 * MS);
        (nic.statistics(), answers(&mut nic))
    };
    let (statistics, said) = run(3);
    let about = |count: u64| (250..550).contains(&count);
    let Statistics { lost, late, unanswered, pretended, refused, inserted, .. } = statistics;
    assert!([lost, late, unanswered, pretended, refused].into_iter().all(about), "{statistics:?}");
    assert_eq!(lost + pretended + refused + inserted, 4_000);
    assert_eq!(said.len() as u64, 4_000 - lost - unanswered);
    assert_eq!(run(3), (statistics, said));
    let mut nic = Nic::<u8>::new(Profile { dropped: 0.5, ..fixed(100) }, 2);
    for at in 0..100u16 {
        nic.insert(Location(at.into()), &rule(at, 1), Serial(1)).unwrap();
    }
    (0..1_000u32).for_each(|ms| nic.advance(ms * MS));
    let dropped = nic.statistics().dropped;
    assert!((20..70).contains(&dropped), "{dropped}");
    assert_eq!(nic.in_force() as u64, 100 - dropped);
}
