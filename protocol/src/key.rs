//! The key of an item: 1 to 250 bytes without blank or line end.
//!
//! Checked once, when a line is decoded, and trusted from then on. Not here: how keys are hashed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::bounds::KEY_BYTES_MAX;

/// A key, borrowed from the read buffer; only a base64 key (meta flag `b`) owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key<'a>(Repr<'a>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Repr<'a> {
    Plain(&'a [u8]),
    Decoded(Box<[u8]>),
}

impl<'a> Key<'a> {
    /// A key as it stands on the line; `None` when it is empty or longer than 250 bytes.
    ///
    /// The caller has split the line at blanks, so neither blank nor line end is in `word`.
    #[must_use]
    pub fn plain(word: &'a [u8]) -> Option<Self> {
        (1..=KEY_BYTES_MAX).contains(&word.len()).then_some(Self(Repr::Plain(word)))
    }

    /// A key written in base64; `None` when it does not decode to 1 to 250 bytes.
    #[must_use]
    pub fn base64(word: &[u8]) -> Option<Key<'static>> {
        let bytes = STANDARD.decode(word).ok()?;
        (1..=KEY_BYTES_MAX)
            .contains(&bytes.len())
            .then(|| Key(Repr::Decoded(bytes.into_boxed_slice())))
    }

    /// The key's bytes; never empty, at most 250.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Repr::Plain(word) => word,
            Repr::Decoded(bytes) => bytes,
        }
    }
}

/// Appends `key` in base64, as the meta flag `k` answers for a key that came in base64.
pub(crate) fn write_base64(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(STANDARD.encode(key).as_bytes());
}
