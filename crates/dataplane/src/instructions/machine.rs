//! Interprets the program as the loader gives it to the kernel, and counts.
//!
//! Maps are the kernel's own: a lookup reads the map, an update changes it. What a lookup found is
//! a copy, so counters of lanes stay as they were.

use super::broken;
use crate::abi::types;
use crate::error::{Context, Error};
use crate::kernel::monotonic;
use libbpf_rs::libbpf_sys::bpf_insn;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object};
use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

/// A loaded program and its maps, by the numbers that its instructions have for them.
pub(super) struct Code {
    /// The balancer, and the program that it goes on in.
    programs: [Vec<bpf_insn>; 2],
    maps: HashMap<i32, MapHandle>,
}

impl Code {
    /// The balancer of an object.
    pub fn of(object: &Object) -> Result<Self, Error> {
        let program = |name: &str| {
            let found = object.progs().find(|program| program.name() == name);
            let found = found.ok_or_else(|| broken(&format!("no program {name}")))?;
            Ok::<_, Error>(found.insns().to_vec())
        };
        let programs = [program("weir_balance")?, program("weir_apart")?];
        let mut maps = HashMap::new();
        for map in object.maps() {
            let handle = MapHandle::try_from(&map).context(|| "duplicate a map".into())?;
            maps.insert(map.as_fd().as_raw_fd(), handle);
        }
        Ok(Self { programs, maps })
    }

    /// What the deepest chain of calls takes of the stack, in either program, in bytes.
    pub fn stacks(&self) -> [u32; 2] {
        self.programs.each_ref().map(|program| super::stack::deepest(program))
    }

    /// Sends a frame through: the program's verdict, and the instructions until then.
    pub fn run(&self, frame: &[u8]) -> Result<(u64, u64), Error> {
        let mut machine = Machine {
            code: self,
            memory: Vec::new(),
            values: HashMap::new(),
            packet: (0, 0),
            now: 0,
            executed: 0,
        };
        let room = [&[0; HEADROOM][..], frame].concat();
        let start = machine.allot(room) + HEADROOM as u64;
        machine.packet = (start, start + frame.len() as u64);
        let verdict = machine.call(0, 0, [CONTEXT, 0, 0, 0, 0])?;
        Ok((verdict, machine.executed))
    }
}

/// Address of `struct xdp_md`; other addresses have the number of a piece of memory above
/// [`OFFSET_BITS`].
const CONTEXT: u64 = 1 << 60;
const OFFSET_BITS: u32 = 32;
/// Instructions after which a program counts as endless.
const ENOUGH: u64 = 1_000_000;
const STACK: usize = 512;
/// Bytes in front of a frame, as drivers leave them (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// What the kernel leaves of a frame at least.
const ETHERNET: u64 = 14;

struct Machine<'a> {
    code: &'a Code,
    memory: Vec<Vec<u8>>,
    /// Addresses of global variables' sections, by map.
    values: HashMap<i32, u64>,
    packet: (u64, u64),
    /// Jiffies: the moment at which the lane in use was resolved.
    now: u64,
    executed: u64,
}

/// The parts of an instruction's code (Documentation/bpf/standardization/instruction-set.rst).
pub(super) mod code {
    pub const CLASS: u8 = 0x07;
    pub const LD: u8 = 0;
    pub const LDX: u8 = 1;
    pub const ST: u8 = 2;
    pub const STX: u8 = 3;
    pub const ALU32: u8 = 4;
    pub const JMP: u8 = 5;
    pub const JMP32: u8 = 6;
    pub const ALU64: u8 = 7;
    pub const SOURCE_REGISTER: u8 = 0x08;
    pub const OPERATION: u8 = 0xf0;
    pub const CALL: u8 = 0x80;
    pub const EXIT: u8 = 0x90;
    pub const MODE: u8 = 0xe0;
    pub const MODE_MEMORY: u8 = 0x60;
    pub const MODE_ATOMIC: u8 = 0xc0;
    pub const SIZE: u8 = 0x18;
}

impl Machine<'_> {
    /// New memory; its address.
    fn allot(&mut self, bytes: Vec<u8>) -> u64 {
        self.memory.push(bytes);
        (self.memory.len() as u64) << OFFSET_BITS
    }

    fn bytes(&mut self, address: u64, length: usize) -> Result<&mut [u8], Error> {
        let piece = (address >> OFFSET_BITS) as usize;
        let offset = address as u32 as usize;
        piece
            .checked_sub(1)
            .and_then(|piece| self.memory.get_mut(piece))
            .and_then(|memory| memory.get_mut(offset..offset + length))
            .ok_or_else(|| broken(&format!("address {address:#x} is nobody's")))
    }

    fn load(&mut self, address: u64, length: usize) -> Result<u64, Error> {
        if (CONTEXT..CONTEXT + 64).contains(&address) {
            // The verifier makes pointers of these fields.
            let offset = (address - CONTEXT) as usize;
            return Ok(match offset {
                _ if offset == offset_of!(types::xdp_md, data) => self.packet.0,
                _ if offset == offset_of!(types::xdp_md, data_end) => self.packet.1,
                // What test runs come in by: the loopback device.
                _ if offset == offset_of!(types::xdp_md, ingress_ifindex) => 1,
                _ => return Err(broken("a field of the context that is not known")),
            });
        }
        let mut word = [0; 8];
        word[..length].copy_from_slice(self.bytes(address, length)?);
        Ok(u64::from_le_bytes(word))
    }

    fn store(&mut self, address: u64, length: usize, value: u64) -> Result<(), Error> {
        self.bytes(address, length)?.copy_from_slice(&value.to_le_bytes()[..length]);
        Ok(())
    }

    /// Runs a function of a program to its end.
    fn call(&mut self, program: usize, entry: usize, arguments: [u64; 5]) -> Result<u64, Error> {
        let mut registers = [0; 11];
        registers[1..6].copy_from_slice(&arguments);
        registers[10] = self.allot(vec![0; STACK]) + STACK as u64;
        let mut at = entry;
        loop {
            self.executed += 1;
            let Some(&next) =
                self.code.programs[program].get(at).filter(|_| self.executed < ENOUGH)
            else {
                return Err(broken("it runs beyond its end"));
            };
            at += 1;
            match next.code & code::CLASS {
                code::LD => {
                    let high = self.code.programs[program].get(at).map_or(0, |high| high.imm);
                    registers[usize::from(next.dst_reg())] = self.immediate(next, high)?;
                    at += 1;
                }
                code::LDX | code::ST | code::STX => self.access(next, &mut registers)?,
                code::ALU32 | code::ALU64 => alu(next, &mut registers)?,
                class @ (code::JMP | code::JMP32) => match next.code & code::OPERATION {
                    code::EXIT => return Ok(registers[0]),
                    code::CALL if class == code::JMP => {
                        let arguments = [1, 2, 3, 4, 5].map(|register| registers[register]);
                        const FUNCTION: u8 = 1;
                        const TAIL_CALL: i32 = 12;
                        // The balancer has one other part, and there is no way back from it; no program stands
                        // behind it.
                        if next.src_reg() == 0 && next.imm == TAIL_CALL {
                            if arguments[2] as u32 == 0 {
                                return self.call(1, 0, [CONTEXT, 0, 0, 0, 0]);
                            }
                            continue;
                        }
                        registers[0] = if next.src_reg() == FUNCTION {
                            self.call(
                                program,
                                at.wrapping_add_signed(next.imm as isize),
                                arguments,
                            )?
                        } else {
                            self.help(next.imm, arguments)?
                        };
                    }
                    _ if jumps(next, &registers)? => {
                        at = at.wrapping_add_signed(next.off as isize);
                    }
                    _ => {}
                },
                _ => unreachable!("three bits"),
            }
        }
    }

    /// A constant of 64 bits, a map, or the address of a global variable.
    fn immediate(&mut self, low: bpf_insn, high: i32) -> Result<u64, Error> {
        const MAP: u8 = 1;
        const VALUE: u8 = 2;
        match low.src_reg() {
            0 => Ok(u64::from(low.imm as u32) | u64::from(high as u32) << 32),
            MAP => Ok(low.imm as u64),
            VALUE => {
                if !self.values.contains_key(&low.imm) {
                    let value = self.lookup(low.imm as u64, &0u32.to_ne_bytes())?;
                    let value = value.ok_or_else(|| broken("a section without a value"))?;
                    let address = self.allot(value);
                    self.values.insert(low.imm, address);
                }
                Ok(self.values[&low.imm] + u64::from(high as u32))
            }
            other => Err(broken(&format!("an immediate of kind {other}"))),
        }
    }

    fn access(&mut self, next: bpf_insn, registers: &mut [u64; 11]) -> Result<(), Error> {
        let length = [4, 2, 1, 8][usize::from(next.code & code::SIZE) >> 3];
        let (to, from) = (usize::from(next.dst_reg()), usize::from(next.src_reg()));
        let at = |register: usize| registers[register].wrapping_add_signed(next.off.into());
        let class = next.code & code::CLASS;
        match next.code & code::MODE {
            code::MODE_MEMORY if class == code::LDX => {
                registers[to] = self.load(at(from), length)?;
            }
            code::MODE_MEMORY => {
                let value = if class == code::ST { next.imm as u64 } else { registers[from] };
                self.store(at(to), length, value)?;
            }
            code::MODE_ATOMIC => {
                const ADD: i32 = 0;
                const OR: i32 = 0x40;
                const FETCH: i32 = 1;
                const EXCHANGE: i32 = 0xe0;
                const COMPARE: i32 = 0xf0;
                let before = self.load(at(to), length)?;
                let after = match next.imm & !FETCH {
                    ADD => before.wrapping_add(registers[from]),
                    OR => before | registers[from],
                    EXCHANGE => registers[from],
                    COMPARE => {
                        let equal = before == registers[0];
                        self.store(at(to), length, if equal { registers[from] } else { before })?;
                        registers[0] = before;
                        return Ok(());
                    }
                    other => return Err(broken(&format!("atomic operation {other:#x}"))),
                };
                self.store(at(to), length, after)?;
                if next.imm & FETCH != 0 {
                    registers[from] = before;
                }
            }
            other => return Err(broken(&format!("memory mode {other:#x}"))),
        }
        Ok(())
    }

    fn map(&self, map: u64) -> Result<&MapHandle, Error> {
        self.code.maps.get(&(map as i32)).ok_or_else(|| broken("a map that is nobody's"))
    }

    fn lookup(&mut self, map: u64, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let map = self.map(map)?;
        let what = || format!("read map {:?}", map.name());
        if map.map_type() != MapType::PercpuArray {
            return map.lookup(key, MapFlags::ANY).context(what);
        }
        let values = map.lookup_percpu(key, MapFlags::ANY).context(what)?.unwrap_or_default();
        if map.name() == "quic_known" {
            // Of a CPU that has decoded an id in this place.
            let used = |known: &Vec<u8>| known.iter().any(|byte| *byte != 0);
            let first = values.first().cloned();
            return Ok(values.into_iter().find(used).or(first));
        }
        if map.name() != "lanes" {
            return Ok(values.into_iter().next());
        }
        // Of a CPU that has the next hop, at the moment when it got it.
        let resolved = |lane: &Vec<u8>| {
            let at = offset_of!(types::lane, resolved);
            lane.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        };
        let lane = values.into_iter().max_by_key(resolved);
        self.now = lane.as_ref().map_or(0, resolved);
        Ok(lane)
    }

    /// What the kernel does for programs, as far as this one asks.
    fn help(&mut self, helper: i32, [a, b, c, _, _]: [u64; 5]) -> Result<u64, Error> {
        const LOOKUP: i32 = 1;
        const UPDATE: i32 = 2;
        const DELETE: i32 = 3;
        const NANOSECONDS: i32 = 5;
        const ADJUST_HEAD: i32 = 44;
        const JIFFIES: i32 = 118;
        const RESERVE: i32 = 131;
        const SUBMIT: i32 = 132;
        const BUFFER_LENGTH: i32 = 188;
        match helper {
            LOOKUP => {
                let length = self.map(a)?.key_size() as usize;
                let key = self.bytes(b, length)?.to_vec();
                let found = self.lookup(a, &key)?;
                Ok(found.map_or(0, |value| self.allot(value)))
            }
            UPDATE | DELETE => {
                let sizes = (self.map(a)?.key_size() as usize, self.map(a)?.value_size() as usize);
                let key = self.bytes(b, sizes.0)?.to_vec();
                let done = if helper == UPDATE {
                    let value = self.bytes(c, sizes.1)?.to_vec();
                    self.map(a)?.update(&key, &value, MapFlags::ANY)
                } else {
                    self.map(a)?.delete(&key)
                };
                Ok(if done.is_ok() { 0 } else { u64::MAX })
            }
            NANOSECONDS => Ok(monotonic()),
            JIFFIES => Ok(self.now),
            ADJUST_HEAD => {
                let start = self.packet.0.wrapping_add_signed(i64::from(b as i32));
                let is_there = start >> OFFSET_BITS == self.packet.0 >> OFFSET_BITS;
                if !is_there || start + ETHERNET > self.packet.1 {
                    return Ok(u64::MAX);
                }
                self.packet.0 = start;
                Ok(0)
            }
            BUFFER_LENGTH => Ok(self.packet.1 - self.packet.0),
            RESERVE => Ok(self.allot(vec![0; b as usize])),
            SUBMIT => Ok(0),
            other => Err(broken(&format!("helper {other}, which no counted path may call"))),
        }
    }
}

/// The second operand of an instruction.
fn operand(next: bpf_insn, registers: &[u64; 11]) -> u64 {
    if next.code & code::SOURCE_REGISTER != 0 {
        registers[usize::from(next.src_reg())]
    } else {
        next.imm as u64
    }
}

fn alu(next: bpf_insn, registers: &mut [u64; 11]) -> Result<(), Error> {
    let wide = next.code & code::CLASS == code::ALU64;
    let narrow = |value: u64| if wide { value } else { u64::from(value as u32) };
    let to = usize::from(next.dst_reg());
    let (a, b) = (narrow(registers[to]), narrow(operand(next, registers)));
    let shift = b as u32 & if wide { 63 } else { 31 };
    registers[to] = narrow(match next.code & code::OPERATION {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        0x30 => a.checked_div(b).unwrap_or(0),
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a << shift,
        0x70 => a >> shift,
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(b).unwrap_or(a),
        0xa0 => a ^ b,
        0xb0 => b,
        0xc0 if wide => (a as i64 >> shift) as u64,
        0xc0 => u64::from((a as i32 >> shift) as u32),
        0xd0 => {
            registers[to] = swap(next, registers[to])?;
            return Ok(());
        }
        other => return Err(broken(&format!("operation {other:#x}"))),
    });
    Ok(())
}

/// To network byte order; to little-endian it only cuts.
fn swap(next: bpf_insn, value: u64) -> Result<u64, Error> {
    let big = next.code & code::SOURCE_REGISTER != 0;
    Ok(match (next.imm, big) {
        (16, true) => u64::from((value as u16).swap_bytes()),
        (32, true) => u64::from((value as u32).swap_bytes()),
        (64, true) => value.swap_bytes(),
        (16, false) => u64::from(value as u16),
        (32, false) => u64::from(value as u32),
        (64, false) => value,
        (width, _) => return Err(broken(&format!("a swap of {width} bits"))),
    })
}

fn jumps(next: bpf_insn, registers: &[u64; 11]) -> Result<bool, Error> {
    let wide = next.code & code::CLASS == code::JMP;
    let narrow = |value: u64| if wide { value } else { u64::from(value as u32) };
    let signed = |value: u64| if wide { value as i64 } else { i64::from(value as i32) };
    let a = narrow(registers[usize::from(next.dst_reg())]);
    let b = narrow(operand(next, registers));
    Ok(match next.code & code::OPERATION {
        0x00 => true,
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        0x50 => a != b,
        0x60 => signed(a) > signed(b),
        0x70 => signed(a) >= signed(b),
        0xa0 => a < b,
        0xb0 => a <= b,
        0xc0 => signed(a) < signed(b),
        0xd0 => signed(a) <= signed(b),
        other => return Err(broken(&format!("jump {other:#x}"))),
    })
}
