//! The shim's functions, as in `shim/shim.c`.

use std::ffi::{c_char, c_int, c_void};

/// A frame in the region of a pool; the mbuf is the shim's alone to follow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub mbuf: *mut c_void,
    pub at: u32,
    pub len: u32,
}

impl Held {
    pub const NONE: Self = Self { mbuf: std::ptr::null_mut(), at: 0, len: 0 };
}

/// Buffers, in one region.
#[repr(C)]
#[derive(Debug)]
pub struct Pool {
    pub mempool: *mut c_void,
    pub base: *mut u8,
    pub bytes: usize,
}

/// A flow, and the queue that its packets go to: addresses and ports as on the wire.
#[repr(C)]
#[derive(Debug)]
pub struct RuleOfFlow {
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub src_port: u16,
    pub dst_port: u16,
    pub ipv6: u8,
    pub protocol: u8,
    pub queue: u16,
}

unsafe extern "C" {
    pub fn weir_dpdk_start(argc: c_int, argv: *mut *mut c_char) -> c_int;
    pub fn weir_dpdk_words(error: c_int) -> *const c_char;
    pub fn weir_dpdk_enter() -> c_int;
    pub fn weir_dpdk_leave();
    pub fn weir_dpdk_known(device: *const c_char) -> c_int;
    pub fn weir_dpdk_pool(pool: *mut Pool, name: *const c_char, buffers: u32, room: u16) -> c_int;
    pub fn weir_dpdk_pool_free(pool: *mut Pool);
    pub fn weir_dpdk_pool_left(pool: *const Pool) -> u32;
    pub fn weir_dpdk_open(
        device: *const c_char,
        name: *const c_char,
        pools: *const *const Pool,
        queues: u16,
        ring: u16,
        led: *mut u16,
        led_ring: u16,
        port: *mut u16,
        interface: *mut u32,
        most: *mut u16,
        step: *mut c_int,
    ) -> c_int;
    pub fn weir_dpdk_close(port: u16, name: *const c_char);
    pub fn weir_dpdk_missed(port: u16, full: *mut u64, no_buffer: *mut u64);
    pub fn weir_dpdk_copy_mac(from: u16, to: u16);
    pub fn weir_dpdk_link(port: u16) -> c_int;
    pub fn weir_dpdk_receive(
        port: u16,
        queue: u16,
        pool: *const Pool,
        frames: *mut Held,
        room: u16,
        foreign: *mut u64,
    ) -> u16;
    pub fn weir_dpdk_send(
        port: u16,
        queue: u16,
        pool: *const Pool,
        frames: *const Held,
        count: u16,
    ) -> u16;
    pub fn weir_dpdk_rule_make(
        port: u16,
        wanted: *const RuleOfFlow,
        rule: *mut *mut c_void,
        step: *mut c_int,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    pub fn weir_dpdk_rule_rest(
        port: u16,
        rule: *mut *mut c_void,
        why: *mut c_char,
        room: usize,
    ) -> c_int;
    pub fn weir_dpdk_rule_end(port: u16, rule: *mut c_void, why: *mut c_char, room: usize)
    -> c_int;
    pub fn weir_dpdk_free(frames: *const Held, count: u16);
    pub fn weir_dpdk_make(pool: *const Pool, bytes: *const u8, len: u16, frame: *mut Held)
    -> c_int;
}
