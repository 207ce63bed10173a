//! What `weir import` reads. What becomes of each stands beside, where a test of the control plane has it, too.

#![no_main]

#[path = "../readers/import.rs"]
mod reader;

libfuzzer_sys::fuzz_target!(|input: &[u8]| reader::read(input));
