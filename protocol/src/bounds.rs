//! Every bound on what a client may send, with its source.
//!
//! Not here: the operator's bounds (memory, connections), which are in the server's configuration.

/// Longest key in bytes. memcached, `doc/protocol.txt`, Keys. It holds for the decoded key too.
pub const KEY_BYTES_MAX: usize = 250;

/// Longest command line, without its line end, that may still be waiting for one.
/// memcached 1.6 closes the connection past it without a word (measured: 2048 fine, 2049 not).
pub const LINE_BYTES_MAX: usize = 2048;

/// Longest `get` or `gets` line. memcached has no bound here (its own tests send 128 KB); one
/// megabyte is over 4000 keys of the longest kind, and everything has a bound.
pub const GET_LINE_BYTES_MAX: usize = 1 << 20;

/// Longest opaque token of a meta command (measured on memcached 1.6.18 and 1.6.45).
pub const OPAQUE_BYTES_MAX: usize = 31;

/// Longest policy token. Ours: the longest that says everything once has some 150 bytes.
pub const POLICY_BYTES_MAX: usize = 250;

/// Longest token of `id=`. Ours: a UUID has 36 bytes, and the server remembers each for a minute.
pub const ID_BYTES_MAX: usize = 64;

/// Most keys of one `takem`. Ours: all of them are locked at once.
pub const TAKE_KEYS_MAX: usize = 16;

/// Longest text of one limit behind `cluster limit`. Ours: the cluster's map keeps no more of one.
pub const LIMIT_BYTES_MAX: usize = 32_768;

/// What memcached counts beside key and value when it compares an item with `-I`: a 48-byte
/// header, eight bytes of cas unique, the key's NUL and the value's CRLF. Counted here likewise,
/// so that the same values fit.
pub const ITEM_OVERHEAD_BYTES: usize = 48 + 8 + 1 + 2;

/// The operator's bound that decoding has to know.
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
