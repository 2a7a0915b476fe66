//! Ids in transit between nodes: with their key, or many of a partition at once.
//!
//! Here: the encoding. Not here: the cache (`idempotency`).
//!
//! ```text
//! id:            hash 16 bytes | given at ms u32 | n u8 | answer n bytes
//! key with id:   WITH_ID u8 | id | change of the key u8 | its copy, if it was changed
//! ```
//!
//! A record of a partition names one key. The id of the request that caused the record is part of
//! the record's information on that key, so no copy has the one without the other.

use super::CachedReply;
use crate::hasher::IdHash;
use crate::time::Now;

/// First byte of a key's copy with an id; no copy of an item begins with it.
const WITH_ID: u8 = 0b1000_0110;

const UNCHANGED: u8 = 0;
const GONE: u8 = 1;
const CHANGED: u8 = 2;

/// An id and its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdCopy {
    /// The hash of key and id.
    pub hash: IdHash,
    /// The time of the reply: the low bits of the partition's time in milliseconds.
    pub at_ms: u32,
    /// The reply.
    pub answer: CachedReply,
}

/// The change of the key of a request with an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyChange<'a> {
    /// The key is unchanged.
    Unchanged,
    /// The key has no item any more.
    Gone,
    /// The key has this item.
    Changed(&'a [u8]),
}

impl IdCopy {
    /// Returns the record of a reply made now.
    #[must_use]
    pub fn new(now: Now, hash: IdHash, answer: CachedReply) -> Self {
        Self { hash, at_ms: super::ms_of(now), answer }
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.0.to_le_bytes());
        out.extend_from_slice(&self.at_ms.to_le_bytes());
        let answer = self.answer.encode();
        out.push(answer.len() as u8);
        out.extend_from_slice(&answer);
    }

    /// Decodes the record at the front of `bytes`, and returns it with the following bytes; `None`
    /// if there is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (hash, rest) = bytes.split_first_chunk()?;
        let (at_ms, rest) = rest.split_first_chunk()?;
        let (&length, rest) = rest.split_first()?;
        let (answer, rest) = rest.split_at_checked(length.into())?;
        let (hash, at_ms) = (IdHash(u128::from_le_bytes(*hash)), u32::from_le_bytes(*at_ms));
        Some((Self { hash, at_ms, answer: CachedReply::decode(answer)? }, rest))
    }

    /// Appends a key's copy with this id. `copy` appends the copy itself and returns whether the
    /// key has an item; it is not called if the key is `unchanged`.
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

    /// Splits a key's copy that has an id; the error is a damaged one.
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
