//! Any bytes, decoded to their end: no panic, always a step forward, and a front never decides
//! otherwise than the whole.

#![no_main]

libfuzzer_sys::fuzz_target!(|wire: &[u8]| tests::check_decoding(wire));
