//! Ids as they travel between nodes: with the key that they came with, or many of a partition at once.
//!
//! ```text
//! id:            hash 16 bytes | given at ms u32 | n u8 | answer n bytes
//! key with id:   WITH_ID u8 | id | what became of the key u8 | its copy, if it was changed
//! ```
//!
//! A record of a partition's history names one key. The id of the request that made the record is part of
//! what it says of that key, so no copy has the one without the other.

use super::{CachedReply, IdHash};
use crate::time::Now;

/// First byte of a key's copy that brings an id along; no copy of an item begins so.
const WITH_ID: u8 = 0b1000_0110;

const UNCHANGED: u8 = 0;
const GONE: u8 = 1;
const CHANGED: u8 = 2;

/// An id and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdCopy {
    /// Of key and id.
    pub hash: IdHash,
    /// When it was answered: the lower bits of the partition's time in milliseconds.
    pub at_ms: u32,
    /// What was answered.
    pub answer: CachedReply,
}

/// What became of the key that an id came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange<'a> {
    /// Nothing.
    Unchanged,
    /// It is gone.
    Gone,
    /// It is this.
    Changed(&'a [u8]),
}

impl IdCopy {
    /// An answer that is given now.
    #[must_use]
    pub fn new(now: Now, hash: IdHash, answer: CachedReply) -> Self {
        Self { hash, at_ms: super::ms_of(now), answer }
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.0.to_le_bytes());
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        let answer = self.answer.encode();
        out.push(answer.len() as u8);
        out.extend_from_slice(&answer);
    }

    /// The id at the front of `bytes`, and what follows it; `None` if it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (hash, rest) = bytes.split_first_chunk()?;
        let (at_ms, rest) = rest.split_first_chunk()?;
        let (&length, rest) = rest.split_first()?;
        let (answer, rest) = rest.split_at_checked(length.into())?;
        let (hash, at_ms) = (IdHash(u128::from_le_bytes(*hash)), u32::from_le_bytes(*at_ms));
        Some((Self { hash, at_ms, answer: CachedReply::decode(answer)? }, rest))
    }

    /// Appends the beginning of a key's copy that brings this id along. `copy` appends the copy itself
    /// and says whether the key is there; it is not asked where the key is `unchanged`.
    pub fn encode_with(
        &self,
        out: &mut Vec<u8>,
        unchanged: bool,
        copy: impl FnOnce(&mut Vec<u8>) -> bool,
    ) {
        out.push(WITH_ID);
        self.encode(out);
        let place = out.len();
        out.push(UNCHANGED);
        if !unchanged {
            out[place] = if copy(out) { CHANGED } else { GONE };
        }
    }

    /// Takes a key's copy apart, if it brings an id along; the error is one that is damaged.
    #[must_use]
    pub fn split(copy: &[u8]) -> Option<Result<(Self, KeyChange<'_>), ()>> {
        let [WITH_ID, bytes @ ..] = copy else { return None };
        let parts = Self::decode(bytes).and_then(|(id, rest)| {
            let change = match rest {
                [UNCHANGED] => KeyChange::Unchanged,
                [GONE] => KeyChange::Gone,
                [CHANGED, copy @ ..] => KeyChange::Changed(copy),
                _ => return None,
            };
            Some((id, change))
        });
        Some(parts.ok_or(()))
    }
}
