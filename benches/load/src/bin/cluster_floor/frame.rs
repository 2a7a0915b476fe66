//! The frames between the two nodes, little-endian: length of the body (4 bytes), kind (1), zeros
//! (3), body.
//!
//! Here: one function to write each frame, and the reader. Not here: when they are sent (`peer`).
//!
//! | frame | body |
//! |---|---|
//! | records | number of this frame (8), records |
//! | acknowledgement | number of the last frame of records that is installed (8) |
//! | forward | segments (4), requests (4), requests of each segment (2), partitions (2), lines |
//! | answers | length of each segment's text (4), texts |

use load::keys::KEY_BYTES;

pub(crate) const HEAD_BYTES: usize = 8;
pub(crate) const RECORDS: u8 = 1;
pub(crate) const ACKNOWLEDGED: u8 = 2;
pub(crate) const FORWARD: u8 = 3;
pub(crate) const ANSWERS: u8 = 4;

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 44;

/// The new state of a counter, with what a copy needs to take over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) partition: u16,
    /// The number of the operation whose result this is.
    pub(crate) operation: u32,
    /// The number of the record in its partition.
    pub(crate) position: u64,
    pub(crate) count: u64,
    pub(crate) key: [u8; KEY_BYTES],
}

impl Record {
    #[inline]
    pub(crate) fn read(bytes: &[u8; RECORD_BYTES]) -> Self {
        let mut key = [0; KEY_BYTES];
        key.copy_from_slice(&bytes[24..]);
        Self {
            partition: u16_at(bytes, 0),
            operation: u32_at(bytes, 4),
            position: u64_at(bytes, 8),
            count: u64_at(bytes, 16),
            key,
        }
    }
}

#[inline]
pub(crate) fn write_record(out: &mut Vec<u8>, record: &Record) {
    let mut bytes = [0; RECORD_BYTES];
    bytes[..2].copy_from_slice(&record.partition.to_le_bytes());
    bytes[4..8].copy_from_slice(&record.operation.to_le_bytes());
    bytes[8..16].copy_from_slice(&record.position.to_le_bytes());
    bytes[16..24].copy_from_slice(&record.count.to_le_bytes());
    bytes[24..].copy_from_slice(&record.key);
    out.extend_from_slice(&bytes);
}

/// Begins a frame and returns its start, for [`end_frame`].
pub(crate) fn begin_frame(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind, 0, 0, 0]);
    start
}

/// Writes the length of the frame that began at `start`.
pub(crate) fn end_frame(out: &mut [u8], start: usize) {
    let length = (out.len() - start - HEAD_BYTES) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// The kind, the body and the length of the first frame; `None` if it is not whole.
pub(crate) fn first_frame(input: &[u8]) -> Option<(u8, &[u8], usize)> {
    let head = input.first_chunk::<HEAD_BYTES>()?;
    let end = HEAD_BYTES + u32_at(head, 0) as usize;
    Some((head[4], input.get(HEAD_BYTES..end)?, end))
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::{FORWARD, RECORD_BYTES, Record, begin_frame, end_frame, first_frame, write_record};

    #[test]
    fn a_record_is_read_as_written() {
        let record = Record {
            partition: 7,
            operation: 8,
            position: 9,
            count: 10,
            key: *b"ctr:0123456789abcdef",
        };
        let mut bytes = Vec::new();
        write_record(&mut bytes, &record);
        assert_eq!(Record::read(bytes.first_chunk::<RECORD_BYTES>().expect("a record")), record);
    }

    #[test]
    fn a_frame_is_read_once_whole() {
        let mut bytes = b"before".to_vec();
        let start = begin_frame(&mut bytes, FORWARD);
        bytes.extend_from_slice(b"body");
        end_frame(&mut bytes, start);
        let frame = &bytes[start..];
        for cut in 0..frame.len() {
            assert_eq!(first_frame(&frame[..cut]), None);
        }
        assert_eq!(first_frame(frame), Some((FORWARD, &b"body"[..], 12)));
    }
}
