//! The fast path of an algorithm: decides on a state of a few bytes without a buffer in between.
//!
//! Here: the trait of a fast path, and states of up to sixteen bytes. Not here: the meaning of the
//! bytes (each algorithm), and all uncommon cases ([`take_general`](super::take_general)).

use protocol::Policy;

use super::{Attempt, Decision};
use crate::store::state_bytes::StateBytes;
use crate::time::Now;

/// An algorithm restricted to the parameters that most policies have.
pub(crate) trait FastPath: Copy {
    /// The type of its states.
    type State: StateBytes;

    /// The fast path of `policy`; `None` if its parameters are not the common ones.
    fn of(policy: &Policy) -> Option<Self>;

    /// Returns the decision of [`take_general`](super::take_general) and the state after it, which
    /// differs only if the decision is `changed`. Returns `None` if the general path is needed.
    fn take(self, state: &[u8], now: Now, attempt: &Attempt) -> Option<(Decision, Self::State)>;
}

/// A state of eight to sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes16 {
    /// The first byte is the lowest; the bytes past `len` are 0.
    pub(super) bits: u128,
    pub(super) len: usize,
}

impl Bytes16 {
    /// Reads a state; `None` if its length is not in this range.
    #[inline]
    pub(super) fn read(state: &[u8]) -> Option<Self> {
        let len = state.len();
        let (first, last) = state.first_chunk().zip(state.last_chunk())?;
        if len > size_of::<u128>() {
            return None;
        }
        let first = u128::from(u64::from_le_bytes(*first));
        let last = u128::from(u64::from_le_bytes(*last));
        // The bytes in which the two halves overlap are equal.
        Some(Self { bits: first | last << (8 * (len - size_of::<u64>())), len })
    }
}

impl StateBytes for Bytes16 {
    #[inline]
    fn len(self) -> usize {
        self.len
    }

    #[inline]
    fn write_at_end(self, place: &mut [u8]) {
        let start = place.len() - self.len;
        let place = &mut place[start..];
        let last = (self.bits >> (8 * (self.len - size_of::<u64>()))) as u64;
        if let Some(first) = place.first_chunk_mut() {
            *first = (self.bits as u64).to_le_bytes();
        }
        last.write_at_end(place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_read_and_write() {
        let bytes: Vec<u8> = (1..=17).collect();
        for len in 0..=bytes.len() {
            let state = &bytes[..len];
            let Some(read) = Bytes16::read(state) else {
                assert!(!(8..=16).contains(&len), "{len}");
                continue;
            };
            assert_eq!(read.len(), len);
            assert_eq!(&read.bits.to_le_bytes()[..len], state);
            assert!(read.bits.to_le_bytes()[len..].iter().all(|byte| *byte == 0));
            let mut place = vec![0xff; len + 3];
            read.write_at_end(&mut place);
            assert_eq!(&place[..3], [0xff; 3]);
            assert_eq!(&place[3..], state);
        }
        let mut place = [0xff; 9];
        0x0807_0605_0403_0201_u64.write_at_end(&mut place);
        assert_eq!(place, [0xff, 1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
