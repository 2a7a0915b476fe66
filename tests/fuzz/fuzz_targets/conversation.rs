//! Any bytes, executed: the replies do not depend on the cuts, a neighbour's counter is unchanged,
//! and the memory cap holds. The first eight bytes choose the cuts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((seed, wire)) = data.split_first_chunk() else { return };
    tests::check_conversation(u64::from_le_bytes(*seed), wire);
});
