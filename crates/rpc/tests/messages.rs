//! Whatever comes as a message: it is refused with a reason, or means something, and never more.

use proptest::prelude::*;
use prost::Message;
use std::net::IpAddr;
use weir_rpc::message::{self, Connection, Endpoint, Kind, Peer};
use weir_rpc::written::{Writer, Written};
use weir_rpc::{
    Balancers, Collected, Dumped, Endpoints, Event, Events, FromAgent, FromBalancer, Hello, Load,
    MOST_BALANCERS, MOST_BYTES, MOST_OF_A_MESSAGE, MOST_OF_A_NAME, PROTOCOL, from_agent,
    from_balancer,
};

/// Looks at all that a message of an agent may mean.
fn take(said: &FromAgent) {
    match &said.what {
        Some(from_agent::What::Hello(one)) => drop(message::hello(one)),
        Some(from_agent::What::Events(one)) => drop(message::events(one)),
        Some(from_agent::What::Dumped(one)) => drop(message::dumped(one)),
        Some(from_agent::What::Collected(one)) => drop(message::collected(one)),
        Some(from_agent::What::Load(one)) => drop(message::load(one)),
        Some(from_agent::What::Health(one)) => drop(message::health(one)),
        _ => {}
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
        .prop_map(|address| address.to_canonical())
}

fn connection() -> impl Strategy<Value = Connection> {
    // A number of 0 stands in no message.
    let endpoint = prop_oneof![Just(0u32), any::<u32>()];
    let port = prop_oneof![Just(0u16), any::<u16>()];
    (endpoint, address(), port, proptest::option::of(1..=u16::MAX)).prop_map(
        |(endpoint, client, client_port, port)| Connection { endpoint, client, client_port, port },
    )
}

proptest! {
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(said) = FromAgent::decode(&bytes[..]) {
            take(&said);
        }
        if let Ok(said) = FromBalancer::decode(&bytes[..]) {
            match &said.what {
                Some(from_balancer::What::Endpoints(list)) => drop(message::endpoints(list)),
                Some(from_balancer::What::Balancers(list)) => drop(message::balancers(list)),
                Some(from_balancer::What::Serving(list)) => drop(weir_rpc::serving::serving(list)),
                Some(from_balancer::What::QuicLb(list)) => drop(weir_rpc::quic::quic_lb(list)),
                _ => {}
            }
        }
    }

    #[test]
    fn broken_messages_are_taken_or_refused(
        told in proptest::collection::vec(connection(), 0..20),
        collected in any::<bool>(), at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>(),
    ) {
        let connection = told.into_iter().map(Into::into).collect();
        let what = match collected {
            true => from_agent::What::Collected(Collected { number: 1, connection, last: true }),
            false => from_agent::What::Dumped(Dumped { connection }),
        };
        let said = FromAgent { what: Some(what) };
        let mut bytes = said.encode_to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = with;
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if let Ok(said) = FromAgent::decode(&bytes[..]) {
            take(&said);
        }
    }

    #[test]
    fn connections_come_as_they_were_said(
        told in proptest::collection::vec(connection(), 0..50), first in prop_oneof![Just(0u64), 0..u64::MAX / 2],
    ) {
        let kinds = [Kind::Opened, Kind::Closed, Kind::Lingers];
        let wanted: Vec<_> = told.iter().enumerate().map(|(at, one)| (kinds[at % 3], *one)).collect();
        let event = wanted.iter().map(|(kind, one)| Event {
            kind: weir_rpc::Kind::from(*kind).into(),
            connection: Some((*one).into()),
        });
        let next = first + told.len() as u64;
        let events = Events { first, next, event: event.collect() };
        let bytes = events.encode_to_vec();
        let mut writer = Writer::with_room(wanted.len());
        wanted.iter().for_each(|(kind, one)| writer.push(*kind, *one));
        let made: Written = FromAgent { what: Some(from_agent::What::Events(events)) }.into();
        prop_assert_eq!(writer.finish(first, next), made);
        prop_assert_eq!(message::events(&Events::decode(&bytes[..]).unwrap()).unwrap(), wanted);
        let dumped = Dumped { connection: told.iter().map(|one| (*one).into()).collect() };
        let bytes = dumped.encode_to_vec();
        prop_assert_eq!(message::dumped(&Dumped::decode(&bytes[..]).unwrap()).unwrap(), told.clone());
        let connection = told.iter().map(|one| (*one).into()).collect();
        let collected = Collected { number: 7, connection, last: true };
        let bytes = collected.encode_to_vec();
        prop_assert_eq!(message::collected(&Collected::decode(&bytes[..]).unwrap()).unwrap(), told);
    }

    #[test]
    fn endpoints_come_as_they_were_said(
        told in proptest::collection::vec((any::<u32>(), address(), proptest::option::of(1..=u16::MAX)), 0..50),
    ) {
        let told: Vec<_> =
            told.into_iter().map(|(id, address, port)| Endpoint { id, address, port }).collect();
        let list = Endpoints { number: 1, endpoint: told.iter().map(|one| (*one).into()).collect() };
        let bytes = list.encode_to_vec();
        prop_assert_eq!(message::endpoints(&Endpoints::decode(&bytes[..]).unwrap()).unwrap(), told);
    }
}

#[test]
fn the_largest_message_is_taken() {
    let one = Connection {
        endpoint: u32::MAX,
        client: "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(),
        client_port: u16::MAX,
        port: Some(u16::MAX),
    };
    let event = Event { kind: weir_rpc::Kind::Lingers.into(), connection: Some(one.into()) };
    let event = vec![event; MOST_OF_A_MESSAGE];
    let events = Events { first: u64::MAX - 1, next: u64::MAX, event };
    let said = FromAgent { what: Some(from_agent::What::Events(events.clone())) };
    assert!(said.encoded_len() <= MOST_BYTES, "{} bytes", said.encoded_len());
    let mut writer = Writer::with_room(MOST_OF_A_MESSAGE);
    (0..MOST_OF_A_MESSAGE).for_each(|_| writer.push(Kind::Lingers, one));
    assert_eq!(writer.finish(u64::MAX - 1, u64::MAX), Written::from(said));
    assert_eq!(message::events(&events).unwrap().len(), MOST_OF_A_MESSAGE);
    let mut more = events;
    more.event.push(more.event[0].clone());
    assert!(message::events(&more).unwrap_err().to_string().contains("4097"));
    let connection = vec![one.into(); MOST_OF_A_MESSAGE];
    let mut collected = Collected { number: u64::MAX, connection, last: true };
    let said = FromAgent { what: Some(from_agent::What::Collected(collected.clone())) };
    assert!(said.encoded_len() <= MOST_BYTES, "{} bytes", said.encoded_len());
    assert_eq!(message::collected(&collected).unwrap().len(), MOST_OF_A_MESSAGE);
    collected.connection.push(one.into());
    assert!(message::collected(&collected).unwrap_err().to_string().contains("4097"));
}

#[test]
fn what_is_wrong_is_said() {
    let hello = Hello {
        protocol: PROTOCOL,
        instance: vec![7; 16],
        addresses: vec![vec![10, 0, 0, 1]],
        ..Hello::default()
    };
    assert_eq!(message::hello(&hello).unwrap(), ["10.0.0.1".parse::<IpAddr>().unwrap()]);
    let refuse = |change: &dyn Fn(&mut Hello), words: &str| {
        let mut hello = hello.clone();
        change(&mut hello);
        let error = message::hello(&hello).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refuse(&|hello| hello.protocol = 2, "version 2");
    refuse(&|hello| hello.instance.clear(), "instance");
    refuse(&|hello| hello.first = 1, "next");
    refuse(&|hello| hello.addresses.push(vec![1; 5]), "5 bytes");
    refuse(&|hello| hello.addresses = vec![vec![1; 4]; 4097], "4097");
    for (cpu, load) in [(f64::NAN, None), (-1.0, None), (0.5, Some(f64::INFINITY))] {
        assert!(message::load(&Load { cpu, load, ..Load::default() }).is_err());
    }
    assert_eq!(
        message::load(&Load { cpu: 0.5, load: Some(2.0), ..Load::default() }),
        Ok(Some(2.0))
    );
    // A kind of a later version is passed over.
    let event = vec![Event { kind: 77, connection: None }];
    assert_eq!(message::events(&Events { first: 0, next: 1, event }), Ok(Vec::new()));
}

/// Who is called by a list is somebody that a certificate can name; the others stay names.
#[test]
fn balancers_come_as_they_were_said() {
    let peer = |name: &str, at: Option<(&str, u16)>| Peer {
        name: name.into(),
        at: at.map(|(host, port)| (host.to_owned(), port)),
    };
    let peers = vec![
        peer("lb1", Some(("10.0.0.9", 4479))),
        peer("lb2", Some(("2001:db8::9", 1))),
        peer("lb3", Some(("lb.example", u16::MAX))),
        peer("lb4", None),
    ];
    let told = message::Balancers { own: "lb1".into(), peers };
    let bytes = Balancers::from(&told).encode_to_vec();
    assert_eq!(message::balancers(&Balancers::decode(&bytes[..]).unwrap()), Ok(told));

    let raw = |name: &str, host: &str, port| weir_rpc::Peer {
        name: name.into(),
        host: host.into(),
        port,
    };
    let bad = [("a b", 1), ("", 1), ("http://lb", 1), ("lb", 0), ("lb", 65_536)];
    let mut list = Balancers { own: "x".into(), peer: vec![raw("", "lb", 1)] };
    list.peer.extend(bad.map(|(host, port)| raw("y", host, port)));
    let read = message::balancers(&list).unwrap();
    assert_eq!(read.peers, vec![peer("y", None); bad.len()]);

    // Names that nobody has who means well.
    let (longest, long) = ("n".repeat(MOST_OF_A_NAME), "n".repeat(MOST_OF_A_NAME + 1));
    let names = [longest.as_str(), long.as_str(), "a\nb"].map(|name| raw(name, "lb", 1));
    let list = |own: &str| Balancers { own: own.into(), peer: names.to_vec() };
    let read = message::balancers(&list(&longest)).unwrap();
    assert_eq!((read.own.as_str(), read.peers.len()), (longest.as_str(), 1));
    assert_eq!(message::balancers(&list(&long)).unwrap().own, "");

    // The largest one fits into a message.
    let host = format!("{0}.{0}.{0}.{1}", "h".repeat(63), "h".repeat(61));
    let name = "n".repeat(64);
    let list = vec![raw(&name, &host, 65_535); MOST_BALANCERS];
    let mut list = Balancers { own: name.clone(), peer: list };
    let what = from_balancer::What::Balancers(list.clone());
    assert!(FromBalancer { what: Some(what) }.encoded_len() <= MOST_BYTES);
    let read = message::balancers(&list).unwrap();
    assert!(read.peers.iter().all(|peer| peer.at.is_some()) && read.peers.len() == MOST_BALANCERS);
    list.peer.push(raw(&name, &host, 1));
    assert!(message::balancers(&list).unwrap_err().to_string().contains("257"));
}
