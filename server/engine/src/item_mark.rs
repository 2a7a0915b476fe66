//! The mark by which a change of an item is noticed.
//!
//! Not here: marking an item (`item_codec`).

use crate::time::Deadline;

/// Distinguishes a changed item from an unchanged one.
///
/// Two marks of a key are equal only if its copy was the same both times. Changes of other keys of
/// the engine may, rarely, make them differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemMark {
    pub(crate) cas: u64,
    pub(crate) client_flags: u32,
    pub(crate) unseen: u32,
    pub(crate) deadline: [u8; Deadline::BYTES],
    pub(crate) marks: u8,
}

impl ItemMark {
    /// The item's cas unique.
    #[must_use]
    pub fn cas(&self) -> u64 {
        self.cas
    }
}
