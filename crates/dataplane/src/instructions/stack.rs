//! Stack that chains of calls take, as the kernel's verifier adds it up.

use super::machine::code;
use libbpf_rs::libbpf_sys::bpf_insn;
use std::collections::BTreeMap;

/// Bytes that kernels before 6.8 round a function's stack up to; later ones take half.
const STEP: u32 = 32;
/// The register that holds the frame's address.
const FRAME: u8 = 10;
const FUNCTION: u8 = 1;

/// A function: what it has on the stack, and whom it calls.
#[derive(Default)]
struct Function {
    bytes: u32,
    calls: Vec<usize>,
}

/// What the deepest chain of calls of a loaded program takes, from its first function on, in bytes.
pub(super) fn deepest(program: &[bpf_insn]) -> u32 {
    let target = |at: usize| at.wrapping_add_signed(program[at].imm as isize + 1);
    let is_call = |at: &usize| {
        program[*at].code == code::JMP | code::CALL && program[*at].src_reg() == FUNCTION
    };
    let mut functions = BTreeMap::from([(0, Function::default())]);
    for at in (0..program.len()).filter(is_call) {
        functions.entry(target(at)).or_default();
    }
    let starts: Vec<usize> = functions.keys().copied().chain([program.len()]).collect();
    for part in starts.windows(2) {
        let function = functions.get_mut(&part[0]).expect("it starts there");
        let mut copy = None;
        for (at, &next) in program.iter().enumerate().take(part[1]).skip(part[0]) {
            let through = match next.code & code::CLASS {
                code::LDX => next.src_reg() == FRAME,
                code::ST | code::STX => next.dst_reg() == FRAME,
                _ => false,
            };
            let below = match next.code {
                _ if through => i32::from(next.off),
                // The address of something on the stack is a copy of the frame's, less a number.
                ADD if copy == Some(next.dst_reg()) => next.imm,
                _ => 0,
            };
            function.bytes = function.bytes.max((-below).max(0) as u32);
            if next.code == MOVE {
                copy = (next.src_reg() == FRAME).then(|| next.dst_reg());
            }
            if is_call(&at) {
                function.calls.push(target(at));
            }
        }
    }
    chain(&functions, &mut BTreeMap::new(), 0)
}

/// `dst += imm` and `dst = src`, of 64 bits.
const ADD: u8 = code::ALU64;
const MOVE: u8 = code::ALU64 | code::SOURCE_REGISTER | 0xb0;

fn chain(
    functions: &BTreeMap<usize, Function>,
    known: &mut BTreeMap<usize, u32>,
    at: usize,
) -> u32 {
    if let Some(&bytes) = known.get(&at) {
        return bytes;
    }
    let function = &functions[&at];
    let below = function.calls.iter().map(|&callee| chain(functions, known, callee)).max();
    let bytes = function.bytes.max(1).next_multiple_of(STEP) + below.unwrap_or(0);
    known.insert(at, bytes);
    bytes
}
