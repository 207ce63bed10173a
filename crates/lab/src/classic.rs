//! Instructions of classic BPF, as socket filters and `tc` take them.

pub(crate) const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(crate) const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
pub(crate) const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const BYTE_AFTER_HEAD: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
pub(crate) const HALF_AFTER_HEAD: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
pub(crate) const HEAD_OF_IPV4: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
pub(crate) const HEAD: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM;
pub(crate) const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
pub(crate) const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
pub(crate) const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
pub(crate) const ANY: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
pub(crate) const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
pub(crate) const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
