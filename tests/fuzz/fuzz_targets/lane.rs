//! Any bytes as a peer's input on a transport link: no panic, no frame is accepted before it is
//! whole, and an accepted frame encodes to the same bytes.

#![no_main]

use bytes::BytesMut;
use cluster::message::{DecodedFrame, FrameBounds, decode};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    read_all(data);
    // Most random lengths are wrong, so the input is tried again with the right one.
    let mut whole = (data.len() as u32).to_le_bytes().to_vec();
    whole.extend_from_slice(data);
    read_all(&whole);
});

fn read_all(wire: &[u8]) {
    let bounds = FrameBounds { frame_bytes_max: 4096 };
    let mut left = BytesMut::from(wire);
    loop {
        let before = left.clone();
        match decode(&mut left, bounds) {
            Err(_) => return,
            Ok(DecodedFrame::Incomplete { needed }) => {
                assert!(needed > left.len() && needed <= bounds.frame_bytes_max + 4);
                assert_eq!(left, before, "what is not whole stays");
                return;
            }
            Ok(DecodedFrame::Frame(frame)) => {
                let taken = &before[..before.len() - left.len()];
                let mut again = BytesMut::new();
                frame.encode(bounds, &mut again).expect("it came within these bounds");
                assert_eq!(again, taken, "{frame:?}");
            }
        }
    }
}
