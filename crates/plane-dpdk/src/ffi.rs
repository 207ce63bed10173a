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
        pool: *mut Pool,
        ring: u16,
        port: *mut u16,
        interface: *mut u32,
        step: *mut c_int,
    ) -> c_int;
    pub fn weir_dpdk_close(port: u16, name: *const c_char);
    pub fn weir_dpdk_missed(port: u16, full: *mut u64, no_buffer: *mut u64);
    pub fn weir_dpdk_copy_mac(from: u16, to: u16);
    pub fn weir_dpdk_link(port: u16) -> c_int;
    pub fn weir_dpdk_receive(
        port: u16,
        pool: *const Pool,
        frames: *mut Held,
        foreign: *mut u64,
    ) -> u16;
    pub fn weir_dpdk_send(port: u16, pool: *const Pool, frames: *const Held, count: u16) -> u16;
    pub fn weir_dpdk_free(frames: *const Held, count: u16);
    pub fn weir_dpdk_make(pool: *const Pool, bytes: *const u8, len: u16, frame: *mut Held)
    -> c_int;
}
