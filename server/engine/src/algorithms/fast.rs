//! The short way of an algorithm: a state of a few bytes is decided on without memory in between.
//!
//! Here: what such a way is, the states that it works on, and how their bytes are written. Not here: what their bytes mean (each
//! algorithm), and all that is not so usual ([`take_general`](super::take_general)).

use protocol::Policy;

use super::{Attempt, Decision};
use crate::time::Now;

/// An algorithm with the parameters that most policies have.
pub(crate) trait FastPath: Copy {
    /// A state that it keeps.
    type State: StateBytes;

    /// The parameters of a policy that has these.
    fn of(policy: &Policy) -> Option<Self>;

    /// What [`take_general`](super::take_general) decides, and the state after it, which is another only if the
    /// decision says so. `None` for what is not usual.
    fn take(self, state: &[u8], now: Now, attempt: &Attempt) -> Option<(Decision, Self::State)>;
}

/// The bytes of a state.
pub(crate) trait StateBytes: Copy {
    /// How many.
    fn len(self) -> usize;

    /// Writes it over the end of `place`, which is as long at least.
    fn write_at_end(self, place: &mut [u8]);
}

/// Of any length.
impl StateBytes for &[u8] {
    #[inline]
    fn len(self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn write_at_end(self, place: &mut [u8]) {
        let start = place.len() - self.len();
        place[start..].copy_from_slice(self);
    }
}

/// Of eight bytes.
impl StateBytes for u64 {
    #[inline]
    fn len(self) -> usize {
        size_of::<u64>()
    }

    #[inline]
    fn write_at_end(self, place: &mut [u8]) {
        if let Some(end) = place.last_chunk_mut() {
            *end = self.to_le_bytes();
        }
    }
}

/// Of eight to sixteen bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes16 {
    /// The first byte is the lowest; those past the end are 0.
    pub(super) bits: u128,
    pub(super) len: usize,
}

impl Bytes16 {
    /// Reads a state; `None` if it is none of these.
    #[inline]
    pub(super) fn read(state: &[u8]) -> Option<Self> {
        let len = state.len();
        let (first, last) = state.first_chunk().zip(state.last_chunk())?;
        if len > size_of::<u128>() {
            return None;
        }
        let first = u128::from(u64::from_le_bytes(*first));
        let last = u128::from(u64::from_le_bytes(*last));
        // Where they overlap they are the same.
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
    fn what_is_read_is_written_again() {
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
