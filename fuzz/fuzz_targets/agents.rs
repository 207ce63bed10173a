//! What agents and balancers, and balancers of a fleet, send to each other (`proto/agents.proto`): whatever comes is
//! read or refused, and what is taken means the same when it is written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use weir_rpc::message::{self, Connection};
use weir_rpc::{quic, serving};
use weir_rpc::{
    Balancers, Endpoints, Event, Events, FromAgent, FromBalancer, Kind, MOST_BALANCERS,
    MOST_ENDPOINTS, MOST_OF_A_MESSAGE, MOST_OF_A_WEIGHT, MOST_OF_WORDS, MOST_QUIC, MOST_SERVED, PROTOCOL, QuicLb, Serving, TableAsked, TablePart, from_agent, from_balancer,
};

/// A message that can be read; it is written and read again. By bytes: no number that is none equals itself.
fn read<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let said = M::decode(bytes).ok()?;
    let written = said.encode_to_vec();
    let again = M::decode(&*written).expect("what was written can be read");
    assert!(again.encode_to_vec() == written, "it is written in one way");
    Some(said)
}

fn assert_same(connections: &[Connection]) {
    assert!(connections.len() <= MOST_OF_A_MESSAGE);
    for one in connections {
        let raw = weir_rpc::Connection::from(*one);
        assert_eq!(Connection::try_from(&raw), Ok(*one));
    }
}

fn assert_endpoints(said: &Endpoints) {
    let Ok(list) = message::endpoints(said) else { return };
    assert!(list.len() <= MOST_ENDPOINTS);
    let endpoint = list.iter().map(|one| (*one).into()).collect();
    assert_eq!(message::endpoints(&Endpoints { endpoint, number: said.number }), Ok(list));
}

fn assert_balancers(said: &Balancers) {
    let Ok(list) = message::balancers(said) else { return };
    assert!(list.peers.len() <= MOST_BALANCERS);
    assert_eq!(message::balancers(&Balancers::from(&list)), Ok(list));
}

fn assert_serving(said: &Serving) {
    let Ok(list) = serving::serving(said) else { return };
    assert!(list.len() <= MOST_SERVED && list.len() <= said.served.len());
    let (message, left) = serving::message(&list);
    assert_eq!((serving::serving(&message), left), (Ok(list), 0));
}

fn assert_quic(said: &QuicLb) {
    let Ok(list) = quic::quic_lb(said) else { return };
    assert!(list.len() <= MOST_QUIC);
    for config in list.iter().flat_map(|one| &one.configs) {
        let length = config.server_id.len() + usize::from(config.nonce_length);
        assert!(config.config_id <= 6 && length <= 19, "{config:?}");
    }
    let (message, left) = quic::message(&list);
    assert_eq!((quic::quic_lb(&message), left), (Ok(list), 0));
}

fn assert_events(said: &Events) {
    let Ok(list) = message::events(said) else { return };
    assert!(list.len() <= said.event.len() && said.first <= said.next);
    let connections: Vec<Connection> = list.iter().map(|(_, one)| *one).collect();
    assert_same(&connections);
    let event = list
        .iter()
        .map(|(kind, one)| Event {
            kind: Kind::from(*kind) as i32,
            connection: Some((*one).into()),
        })
        .collect();
    assert_eq!(message::events(&Events { event, first: said.first, next: said.next }), Ok(list));
}

fn from_agent(what: &from_agent::What) {
    use from_agent::What;
    match what {
        What::Hello(hello) => {
            let Ok(addresses) = message::hello(hello) else { return };
            assert!(hello.protocol == PROTOCOL && hello.instance.len() == 16);
            assert!(hello.first <= hello.next && addresses.len() <= MOST_ENDPOINTS);
            for address in addresses {
                let bytes = message::bytes_of(address);
                assert_eq!(message::address_of("address", &bytes), Ok(address));
            }
        }
        What::Events(events) => assert_events(events),
        What::Dumped(dumped) => {
            if let Ok(connections) = message::dumped(dumped) {
                assert!(connections.len() == dumped.connection.len());
                assert_same(&connections);
            }
        }
        What::Collected(collected) => {
            if let Ok(connections) = message::collected(collected) {
                assert!(connections.len() == collected.connection.len());
                assert_same(&connections);
            }
        }
        What::Load(load) => {
            if let Ok(own) = message::load(load) {
                let good = |value: f64| value.is_finite() && value >= 0.0;
                assert!(good(load.cpu) && own.is_none_or(good), "{load:?}");
            }
        }
        What::Health(health) => {
            let health = message::health(health);
            assert!(health.why.len() <= MOST_OF_WORDS && !health.why.contains(char::is_control));
            assert!(health.weight.len() <= MOST_OF_A_WEIGHT);
        }
        What::DumpBegin(_) | What::DumpEnd(_) | What::Reached(_) => {}
    }
}

fn from_balancer(what: &from_balancer::What) {
    use from_balancer::What;
    match what {
        What::Welcome(welcome) => {
            assert_eq!(
                message::same_version(welcome.protocol).is_ok(),
                welcome.protocol == PROTOCOL
            );
            welcome.endpoints.iter().for_each(assert_endpoints);
            welcome.balancers.iter().for_each(assert_balancers);
            welcome.serving.iter().for_each(assert_serving);
            welcome.quic_lb.iter().for_each(assert_quic);
        }
        What::Serving(serving) => assert_serving(serving),
        What::QuicLb(quic) => assert_quic(quic),
        What::Balancers(balancers) => assert_balancers(balancers),
        What::Endpoints(endpoints) => assert_endpoints(endpoints),
        What::Mark(_) | What::Dump(_) | What::Collect(_) => {}
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 4 {
        0 => {
            if let Some(FromAgent { what: Some(what) }) = read(bytes) {
                from_agent(&what);
            }
        }
        1 => {
            if let Some(FromBalancer { what: Some(what) }) = read(bytes) {
                from_balancer(&what);
            }
        }
        2 => drop(read::<TableAsked>(bytes)),
        _ => drop(read::<TablePart>(bytes)),
    }
});
