//! Any bytes, decoded to their end: no panic, every step consumes bytes, and a prefix is never
//! decided otherwise than the whole.

#![no_main]

libfuzzer_sys::fuzz_target!(|wire: &[u8]| tests::check_decoding(wire));
