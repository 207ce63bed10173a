//! The far end of tunnels, where the kernel has no devices for them: an XDP program that takes a packet
//! out of the one around it, and leaves it to the kernel as if it had come so.
//!
//! It takes IP in IP, GRE without options, GUE (port 6080) and FOU (port 5555), each family in each. It is
//! written as instructions, so that it needs neither a compiler nor an object file.

use libbpf_rs::libbpf_sys;
use libbpf_rs::libbpf_sys::bpf_insn;

use crate::error::{Doing, Result};
use crate::netns::NetNs;
use crate::xdp;

/// Where GUE is received.
pub const GUE_PORT: u16 = 6080;
/// Where FOU is received, of both families: the packet inside says of which it is.
pub const FOU_PORT: u16 = 5555;

const ETHERNET: i16 = 14;
const IPV4: i16 = 20;
const IPV6: i16 = 40;
const UDP: i16 = 8;
const GUE: i16 = 4;
const GRE: i16 = 4;
/// Offsets of fields in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// Attaches the program to an interface of a namespace, in native mode. It stays until the interface goes.
///
/// # Errors
/// If the kernel refuses the program, or there is no such interface.
pub fn attach(netns: &NetNs, interface: &str) -> Result<()> {
    let program =
        xdp::load(&program(), c"decapsulate").doing(|| "loading the far end of tunnels".into())?;
    netns
        .enter(|| xdp::put_on(&program, interface))?
        .doing(|| format!("attaching XDP to {interface} in {}", netns.name()))
}

/// Registers: `CTX` and those behind it outlive calls.
const RESULT: u8 = 0;
const A1: u8 = 1;
const A2: u8 = 2;
const PACKET: u8 = 2;
const END: u8 = 3;
const LIMIT: u8 = 4;
const FIELD: u8 = 5;
const CTX: u8 = 6;
const PROTOCOL: u8 = 7;
/// Where the inner packet begins, and of which EtherType it is.
const AT: u8 = 8;
const TYPE: u8 = 9;
const STACK: u8 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Pass,
    Drop,
    OuterIpv6,
    Protocol,
    Gre,
    Udp,
    Fou,
    Gue,
    Ipv4,
    Ipv6,
    Cut,
}

#[derive(Default)]
struct Assembler {
    code: Vec<bpf_insn>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u32, dst: u8, src: u8, off: i16, imm: i32) {
        let mut one = bpf_insn { code: code as u8, off, imm, ..Default::default() };
        one.set_dst_reg(dst);
        one.set_src_reg(src);
        self.code.push(one);
    }

    fn set(&mut self, to: u8, value: i32) {
        self.put(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K, to, 0, 0, value);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.put(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_X, to, from, 0, 0);
    }

    fn add(&mut self, to: u8, value: i16) {
        let value = value.into();
        self.put(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_ADD | libbpf_sys::BPF_K, to, 0, 0, value);
    }

    fn add_to(&mut self, to: u8, from: u8) {
        self.put(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_ADD | libbpf_sys::BPF_X, to, from, 0, 0);
    }

    /// `size`: BPF_B, BPF_H, BPF_W or BPF_DW.
    fn load(&mut self, size: u32, to: u8, from: u8, off: i16) {
        self.put(libbpf_sys::BPF_LDX | size | libbpf_sys::BPF_MEM, to, from, off, 0);
    }

    fn store(&mut self, size: u32, to: u8, off: i16, from: u8) {
        self.put(libbpf_sys::BPF_STX | size | libbpf_sys::BPF_MEM, to, from, off, 0);
    }

    fn jump(&mut self, code: u32, dst: u8, src: u8, imm: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.put(libbpf_sys::BPF_JMP | code, dst, src, 0, imm);
    }

    fn go(&mut self, label: Label) {
        self.jump(libbpf_sys::BPF_JA, 0, 0, 0, label);
    }

    fn if_equal(&mut self, left: u8, right: i32, label: Label) {
        self.jump(libbpf_sys::BPF_JEQ | libbpf_sys::BPF_K, left, 0, right, label);
    }

    fn if_not(&mut self, left: u8, right: i32, label: Label) {
        self.jump(libbpf_sys::BPF_JNE | libbpf_sys::BPF_K, left, 0, right, label);
    }

    /// Goes on if so many bytes of the packet are there, from an offset that may be in a register.
    fn need(&mut self, from: Option<u8>, bytes: i16) {
        self.copy(LIMIT, PACKET);
        if let Some(from) = from {
            self.add_to(LIMIT, from);
        }
        self.add(LIMIT, bytes);
        let greater = libbpf_sys::BPF_JGT | libbpf_sys::BPF_X;
        self.jump(greater, LIMIT, END, 0, Label::Pass);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    fn end(&mut self, verdict: u32) {
        self.set(RESULT, verdict as i32);
        self.put(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT, 0, 0, 0, 0);
    }

    fn packet(&mut self) {
        self.load(libbpf_sys::BPF_W, PACKET, CTX, DATA);
        self.load(libbpf_sys::BPF_W, END, CTX, DATA_END);
    }

    fn finish(mut self) -> Vec<bpf_insn> {
        for (at, label) in &self.jumps {
            let to =
                self.labels.iter().find(|(one, _)| one == label).expect("every label is set").1;
            self.code[*at].off = (to as i64 - *at as i64 - 1) as i16;
        }
        self.code
    }
}

/// A 16-bit field of the network's, as a load has it.
fn wire(value: u16) -> i32 {
    value.to_be().into()
}

fn program() -> Vec<bpf_insn> {
    use libbpf_sys::{BPF_B, BPF_DW, BPF_H, BPF_W};
    let mut a = Assembler::default();
    a.copy(CTX, A1);
    a.packet();
    a.need(None, ETHERNET + IPV4);
    // Both addresses, which are written again in front of the inner packet.
    a.load(BPF_DW, FIELD, PACKET, 0);
    a.store(BPF_DW, STACK, -8, FIELD);
    a.load(BPF_W, FIELD, PACKET, 8);
    a.store(BPF_W, STACK, -16, FIELD);
    a.load(BPF_H, FIELD, PACKET, 12);
    a.if_equal(FIELD, wire(0x86dd), Label::OuterIpv6);
    a.if_not(FIELD, wire(0x0800), Label::Pass);
    a.load(BPF_B, FIELD, PACKET, ETHERNET);
    a.if_not(FIELD, 0x45, Label::Pass);
    a.load(BPF_B, PROTOCOL, PACKET, ETHERNET + 9);
    a.set(AT, (ETHERNET + IPV4).into());
    a.go(Label::Protocol);

    a.label(Label::OuterIpv6);
    a.need(None, ETHERNET + IPV6);
    a.load(BPF_B, PROTOCOL, PACKET, ETHERNET + 6);
    a.set(AT, (ETHERNET + IPV6).into());

    a.label(Label::Protocol);
    a.if_equal(PROTOCOL, 4, Label::Ipv4);
    a.if_equal(PROTOCOL, 41, Label::Ipv6);
    a.if_equal(PROTOCOL, 47, Label::Gre);
    a.if_equal(PROTOCOL, 17, Label::Udp);

    a.label(Label::Pass);
    a.end(libbpf_sys::XDP_PASS);

    a.label(Label::Drop);
    a.end(libbpf_sys::XDP_DROP);

    a.label(Label::Gre);
    a.need(Some(AT), GRE);
    a.load(BPF_H, FIELD, LIMIT, -4);
    a.if_not(FIELD, 0, Label::Pass);
    a.load(BPF_H, FIELD, LIMIT, -2);
    a.add(AT, GRE);
    a.if_equal(FIELD, wire(0x0800), Label::Ipv4);
    a.if_equal(FIELD, wire(0x86dd), Label::Ipv6);
    a.go(Label::Pass);

    a.label(Label::Udp);
    a.need(Some(AT), UDP + GUE);
    a.load(BPF_H, FIELD, LIMIT, -10);
    a.if_equal(FIELD, wire(GUE_PORT), Label::Gue);
    a.if_equal(FIELD, wire(FOU_PORT), Label::Fou);
    a.go(Label::Pass);

    a.label(Label::Gue);
    a.load(BPF_H, FIELD, LIMIT, -4);
    a.add(AT, UDP + GUE);
    // Variant 0, no options, and the protocol.
    a.if_equal(FIELD, wire(4), Label::Ipv4);
    a.if_equal(FIELD, wire(41), Label::Ipv6);
    a.go(Label::Pass);

    a.label(Label::Fou);
    a.load(BPF_B, FIELD, LIMIT, -4);
    a.add(AT, UDP);
    a.put(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_RSH | libbpf_sys::BPF_K, FIELD, 0, 0, 4);
    a.if_equal(FIELD, 4, Label::Ipv4);
    a.if_equal(FIELD, 6, Label::Ipv6);
    a.go(Label::Pass);

    a.label(Label::Ipv4);
    a.set(TYPE, wire(0x0800));
    a.go(Label::Cut);

    a.label(Label::Ipv6);
    a.set(TYPE, wire(0x86dd));

    a.label(Label::Cut);
    a.copy(A1, CTX);
    a.copy(A2, AT);
    a.add(A2, -ETHERNET);
    let call = libbpf_sys::BPF_JMP | libbpf_sys::BPF_CALL;
    a.put(call, 0, 0, 0, libbpf_sys::BPF_FUNC_xdp_adjust_head as i32);
    a.if_not(RESULT, 0, Label::Drop);
    a.packet();
    a.copy(LIMIT, PACKET);
    a.add(LIMIT, ETHERNET);
    a.jump(libbpf_sys::BPF_JGT | libbpf_sys::BPF_X, LIMIT, END, 0, Label::Drop);
    a.load(BPF_DW, FIELD, STACK, -8);
    a.store(BPF_DW, PACKET, 0, FIELD);
    a.load(BPF_W, FIELD, STACK, -16);
    a.store(BPF_W, PACKET, 8, FIELD);
    a.store(BPF_H, PACKET, 12, TYPE);
    a.end(libbpf_sys::XDP_PASS);
    a.finish()
}
