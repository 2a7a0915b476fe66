//! The bytes of a limit state that are written in place.
//!
//! Here: the trait, and states that are a slice or a number. Not here: the meaning of the bytes
//! (`algorithms`).

/// The bytes of a state.
pub(crate) trait StateBytes: Copy {
    /// The number of bytes.
    fn len(self) -> usize;

    /// Writes the bytes over the end of `place`, which is at least as long.
    fn write_at_end(self, place: &mut [u8]);
}

/// A state of any length.
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

/// A state of eight bytes.
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
