//! Warnings of packets: they come with their cause, and go with it.

use super::*;
use weir_steering::cheetah::Answered;

fn about(world: &World, words: &str) -> Vec<String> {
    world.warnings().into_iter().filter(|said| said.contains(words)).collect()
}

/// Packets without the cookie that their backend was told: of services that have `answers = "backend"` now, and since
/// lately.
#[test]
fn missing_cookies_are_told_of_where_backends_are_to_write_them_and_only_lately() {
    const WORDS: &str = "did not have the cookie that their backend was told";
    let told = "method = \"cheetah\"\nanswers = \"backend\"";
    let mut world = World::with(1, told);
    let id = world.engine.services["a"].member("b1").expect("there").id;
    let more = |world: &mut World, packets: u32| {
        let memory = &mut world.engine.plane.memory;
        memory.bare += packets;
        memory.echoes.entry(id).or_default().bare = true;
        world.upkeep_later();
    };
    more(&mut world, 30);
    let said = about(&world, WORDS);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("30 packets") && said[0].contains("(a/b1)"), "{said:?}");
    assert!(said[0].contains("beside --vip it needs --service"), "{said:?}");
    world.engine.ahead += 60;
    more(&mut world, 12);
    assert!(about(&world, WORDS)[0].starts_with("42 packets"), "{:?}", world.warnings());
    world.engine.ahead += 600;
    world.upkeep_later();
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "there were none for long");
    more(&mut world, 5);
    assert!(about(&world, WORDS)[0].starts_with("5 packets"), "{:?}", world.warnings());

    let inline = config_with(&world.directory, 1, "method = \"cheetah\"");
    world.engine.reload_as(inline, true).expect("it is meant");
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "no backend is to write any");
    world.upkeep_later();
    assert_eq!(about(&world, WORDS), Vec::<String>::new());
    assert_eq!(world.engine.status().expect("readable").bare_packets, 47, "it counts on");
    let again = config_with(&world.directory, 1, told);
    world.engine.reload_as(again, true).expect("it is meant");
    world.upkeep_later();
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "those were before");
}

/// Many packets of a service whose answers are to pass, and no answer.
#[test]
fn answers_that_do_not_pass_are_missed() {
    const WORDS: &str = "no answer of its backends passed here";
    let mut world = World::with(1, "method = \"cheetah\"");
    let id = world.engine.services["a"].member("b1").expect("there").id;
    let more = |world: &mut World, packets: u64| {
        let lane = world.engine.plane.counters.lanes.entry(id).or_default();
        lane.packets += packets;
        world.engine.ahead += 60;
        world.upkeep_later();
    };
    world.upkeep_later();
    more(&mut world, 1_000);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "nobody waits for an answer");
    world.open(0..20);
    more(&mut world, 20);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "they may be on their way");
    more(&mut world, 400);
    let said = about(&world, WORDS);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("service a: 420 packets of its connections"), "{said:?}");
    assert!(said[0].contains("answers = \"backend\", and each backend a `weir agent`"), "{said:?}");

    let answers = &mut world.engine.plane.memory.answers;
    let one: &mut Answered = answers.values_mut().next().expect("connections with timestamps");
    one.outgoing(7, 1, true);
    more(&mut world, 10);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "one has passed");
}

/// Connections without timestamps, where loads are open connections: they are at no backend for the scheduler.
#[test]
fn connections_that_count_in_no_load_are_told_of_while_they_are_many() {
    const WORDS: &str = "have begun without TCP timestamps";
    for scheduler in ["least", "p2c", "awrr"] {
        let fields = format!("method = \"cheetah\"\nscheduler = {scheduler:?}");
        let mut world = World::with(1, &fields);
        world.engine.recount().expect("readable");
        world.start(0, 0..15);
        world.engine.recount().expect("readable");
        assert_eq!(about(&world, WORDS), Vec::<String>::new(), "{scheduler}: a few");
        world.start(0, 1_000..1_300);
        world.engine.recount().expect("readable");
        let said = about(&world, WORDS);
        assert_eq!(said.len(), 1, "{scheduler}: {said:?}");
        assert!(said[0].starts_with("service a: 300 connections"), "{said:?}");
        assert!(["(b1: ", ", b2: ", ", b3: "].iter().all(|one| said[0].contains(one)), "{said:?}");
        assert!(said[0].contains(&format!("looks idle to scheduler = {scheduler:?}")), "{said:?}");
        world.engine.ahead += 600;
        world.engine.recount().expect("readable");
        assert_eq!(about(&world, WORDS), Vec::<String>::new(), "{scheduler}: no more have come");
    }
    // What goes by told loads counts nothing.
    let told = "method = \"cheetah\"\nscheduler = \"least\"\nload = \"told\"";
    let mut world = World::with(1, told);
    world.engine.recount().expect("readable");
    world.start(0, 0..300);
    world.engine.recount().expect("readable");
    assert_eq!(about(&world, WORDS), Vec::<String>::new());
}

/// Frames that were forwarded and are lost on their way out: where they are many, and until they are not.
#[test]
fn frames_that_are_lost_are_told_of_while_they_are_many() {
    const WORDS: &str = "frames were lost within 20 s";
    // No interface has that number.
    const NUMBER: u32 = 2_000_000_000;
    let mut world = World::with(1, "method = \"concury\"");
    let id = world.engine.services["a"].member("b1").expect("there").id;
    let more = |world: &mut World, forwarded: u64, lost: u64| {
        let plane = &mut world.engine.plane;
        plane.counters.lanes.entry(id).or_default().packets += forwarded;
        *plane.lost.get_or_insert_default().entry(NUMBER).or_default() += lost;
        world.engine.ahead += 60;
        world.upkeep_later();
    };
    more(&mut world, 5_000, 5_000);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "those were before");
    more(&mut world, 400_000, 2_000);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "some of many");
    more(&mut world, 3_000, 3_000);
    let said = about(&world, WORDS);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].starts_with("3000 frames")
            && said[0].contains(&format!("by number {NUMBER}, where 3000 were forwarded in all"))
            && said[0].contains("`weir doctor`"),
        "{said:?}"
    );
    more(&mut world, 3_000, 0);
    assert_eq!(about(&world, WORDS), Vec::<String>::new(), "they get through");
}
