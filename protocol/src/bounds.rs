//! Every bound on the input of a client, with its source.
//!
//! Here: the bounds of the protocol. Not here: the operator's bounds (memory, connections), which
//! are in the server's configuration.

/// Longest key in bytes. memcached, `doc/protocol.txt`, Keys. The bound also holds for a key
/// decoded from base64.
pub const KEY_BYTES_MAX: usize = 250;

/// Longest command line, in bytes without its line end, that may be incomplete. memcached 1.6
/// closes the connection on a longer one without a reply (measured).
pub const LINE_BYTES_MAX: usize = 2048;

/// Longest `get` or `gets` line in bytes. memcached has no bound here, and its own tests send 128
/// KB. Every input needs a bound; one megabyte holds over 4000 keys of the longest kind.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;

/// Longest opaque token of a meta command in bytes (measured on memcached 1.6.18 and 1.6.45).
pub const OPAQUE_BYTES_MAX: usize = 31;

/// Longest policy token in bytes. Our own bound: a token with every option once has some 150 bytes.
pub const POLICY_BYTES_MAX: usize = 250;

/// Longest `id=` token in bytes. Our own bound: a UUID has 36 bytes, and the server keeps each id
/// for a minute.
pub const ID_BYTES_MAX: usize = 64;

/// Most keys of one `takem`. Our own bound: all of them are locked at once.
pub const TAKE_KEYS_MAX: usize = 16;

/// Longest limit text behind `cluster limit`, in bytes. Our own bound: the cluster's map accepts no
/// longer one.
pub const LIMIT_BYTES_MAX: usize = 32_768;

/// The bytes that memcached counts beside key and value when it compares an item with `-I`: a
/// 48-byte header, eight bytes of cas unique, the key's NUL and the value's CRLF. The same count
/// here lets the same values fit.
pub const ITEM_OVERHEAD_BYTES: usize = 48 + 8 + 1 + 2;

/// The one bound of the operator that affects decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Largest item in bytes: key, value and [`ITEM_OVERHEAD_BYTES`] (memcached's `-I`).
    pub item_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { item_bytes_max: 1 << 20 }
    }
}

impl Bounds {
    /// Whether a value of `value_bytes` fits beside a key of `key_bytes`.
    #[must_use]
    pub fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        key_bytes + value_bytes + ITEM_OVERHEAD_BYTES <= self.item_bytes_max
    }
}
