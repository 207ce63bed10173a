//! A table of a method that the program does not know decides nothing: its packets are dropped for a
//! reason of their own, and leave nothing behind. In Rust such a table is not read.

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::PathBuf;
use weir_dataplane::{BackendEntry, KernelPlane, Limits, Verdict, run_frame};
use weir_hash::HashKey;
use weir_plane::{Outcome, Soft, VipKey};
use weir_steering::{
    BackendId, ELEMENT_BYTES, Flags, Image, ImageError, Member, MethodId, RawHeader, Role,
    ServiceId, SoftMemory, TrackedBuilder,
};
use weir_wire::craft::Frame;
use weir_wire::{FlowKey, Protocol, Reason, TcpFlags};

/// A data plane whose maps can be written from outside.
struct World {
    pins: PathBuf,
    plane: KernelPlane,
    /// The same tables in Rust.
    oracle: Soft,
    tables: Vec<Image>,
}

const SERVICES: [(&str, &str, Protocol); 3] = [
    ("10.1.0.1:80", "10.2.0.1:1000", Protocol::Tcp),
    ("[fd01::1]:80", "[fd02::1]:1000", Protocol::Tcp),
    ("10.1.0.1:53", "10.2.0.1:1000", Protocol::Udp),
];

fn flow(service: usize) -> FlowKey {
    let (to, from, protocol) = SERVICES[service];
    FlowKey::new(from.parse().unwrap(), to.parse().unwrap(), protocol)
}

impl World {
    fn new() -> Self {
        let pins = PathBuf::from(format!("/sys/fs/bpf/weir-test-method-{}", std::process::id()));
        let limits = Limits { services: 4, table_bytes: 1 << 16, ..Limits::default() };
        let (mut plane, _) = KernelPlane::open(Some(&pins), &limits).expect("load (needs root)");
        let mut oracle = Soft::new(SoftMemory::new(16, 1 << 4, 16));
        let mut tables = Vec::new();
        let entry = BackendEntry::new("10.1.1.3".parse().unwrap(), 9);
        plane.set_backend(BackendId::of(3), &entry.with_next_hop([2; 6], [4; 6], 0, true)).unwrap();
        let member =
            Member { backend: BackendId::of(3), name: "b3".into(), weight: 1, role: Role::Serving };
        for service in 0..SERVICES.len() {
            let FlowKey { dst, dst_port, protocol, .. } = flow(service);
            let vip = VipKey { address: dst, protocol, port: Some(dst_port) };
            let builder = TrackedBuilder::new(HashKey::from_seed(5), 251, false);
            let table = builder.build(1, std::slice::from_ref(&member)).unwrap();
            // Flags that other methods would act upon.
            let flags = Flags(Flags::RECORD | Flags::PENDING | Flags::MARK);
            plane.set_service(vip, ServiceId(service as u32)).unwrap();
            plane.publish_with(ServiceId(service as u32), &table, flags).unwrap();
            oracle.vips.insert(vip, ServiceId(service as u32));
            table.set_flags(flags);
            tables.push(table);
        }
        oracle.memory.incarnations.insert(BackendId::of(3), 9);
        Self { pins, plane, oracle, tables }
    }

    /// Gives all tables this method's number.
    fn set_method(&mut self, method: u8) {
        let map = MapHandle::from_pinned_path(self.pins.join("tables")).unwrap();
        let mut tables = map.lookup(&[0; 4], MapFlags::ANY).unwrap().unwrap();
        for header in tables.chunks_exact_mut(RawHeader::BYTES) {
            header[offset_of!(RawHeader, method)] = method;
        }
        map.update(&[0; 4], &tables, MapFlags::ANY).unwrap();
        for (service, table) in self.tables.iter().enumerate() {
            let mut header = table.header_bytes(0);
            header[offset_of!(RawHeader, method)] = method;
            let mut body = vec![0; table.elements() * ELEMENT_BYTES];
            table.write_body(&mut body);
            self.oracle.show_bytes(ServiceId(service as u32), &header, &body).unwrap();
        }
    }

    fn send(&mut self, service: usize, flags: TcpFlags) -> Verdict {
        let frame = Frame::new(flow(service)).tcp_flags(flags).build();
        let run = run_frame(self.plane.program(), &frame).unwrap();
        let touched = run.frame != frame;
        assert_eq!(touched, run.verdict == Verdict::Transmit);
        let alike = match self.oracle.process(&frame) {
            Outcome::Forwarded(backend) if backend == 3 => Verdict::Transmit,
            Outcome::Dropped(_) => Verdict::Drop,
            other => panic!("{other:?}"),
        };
        assert_eq!(run.verdict, alike, "in C and in Rust");
        run.verdict
    }

    /// What packets have left behind, counters apart.
    fn traces(&self) -> (usize, usize, usize, u64) {
        let side = self.plane.flip_marks(&mut std::iter::empty(), 0).unwrap();
        let marks = self.plane.take_marks(side).unwrap();
        let words = marks.words().iter().chain(marks.strangers());
        let marks = words.map(|word| u64::from(word.count_ones()));
        let mut reports = 0;
        self.plane.reports().unwrap().drain(|_| reports += 1).unwrap();
        let tracked = (0..SERVICES.len())
            .filter(|service| self.plane.connection(&flow(*service)).unwrap().is_some());
        (tracked.count(), self.plane.pending().unwrap().len(), reports, marks.sum())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        KernelPlane::unload(&self.pins).unwrap();
    }
}

#[test]
fn tables_of_unknown_methods_decide_nothing() {
    let mut world = World::new();
    let known: Vec<u8> = MethodId::published().map(MethodId::number).collect();
    let packets = [TcpFlags::SYN, TcpFlags::ACK, TcpFlags::FIN, TcpFlags::RST];
    let mut dropped = 0;
    for method in (0..=u8::MAX).filter(|method| !known.contains(method)) {
        world.set_method(method);
        for service in 0..SERVICES.len() {
            for flags in packets {
                assert_eq!(world.send(service, flags), Verdict::Drop, "method {method}");
                dropped += 1;
            }
            let error = world.plane.published(ServiceId(service as u32)).unwrap_err();
            assert!(error.to_string().contains(&format!("unknown method {method}")), "{error}");
        }
    }
    assert!(dropped > 2000);
    let wanted = BTreeMap::from([(Reason::UnknownMethod, (0, dropped))]);
    assert_eq!(world.plane.outcomes().unwrap(), wanted);
    assert_eq!(world.plane.counters((0..4).map(BackendId::of)).unwrap(), world.oracle.counters);
    assert!(world.oracle.memory.connections.is_empty());
    assert_eq!(world.plane.lane(BackendId::of(3)).unwrap(), Default::default());
    assert_eq!(world.traces(), (0, 0, 0, 0));

    // The tables are whole: under their own method they decide again.
    world.set_method(MethodId::Tracked.number());
    for service in 0..SERVICES.len() {
        assert_eq!(world.send(service, TcpFlags::ACK), Verdict::Transmit);
    }
    assert_eq!(world.plane.lane(BackendId::of(3)).unwrap().flows, SERVICES.len() as u64);
    assert_eq!(world.plane.counters((0..4).map(BackendId::of)).unwrap(), world.oracle.counters);
    assert_eq!(world.traces().0, SERVICES.len());
}

/// The same header, read in Rust.
#[test]
fn tables_of_unknown_methods_are_not_read() {
    let member =
        Member { backend: BackendId::of(3), name: "b3".into(), weight: 1, role: Role::Serving };
    let table = TrackedBuilder::new(HashKey::from_seed(5), 251, false).build(1, &[member]).unwrap();
    let mut body = vec![0; table.elements() * ELEMENT_BYTES];
    table.write_body(&mut body);
    for method in 0..=u8::MAX {
        let mut header = table.header_bytes(0);
        header[offset_of!(RawHeader, method)] = method;
        let read = Image::read_from(&header, |_, _| Some(body.clone()));
        match MethodId::published().find(|known| known.number() == method) {
            None => assert_eq!(read, Err(ImageError::Method(method))),
            Some(MethodId::Tracked) => assert_eq!(read.as_ref(), Ok(&table)),
            Some(_) => assert!(read.is_err(), "a table of another method's"),
        }
    }
}
