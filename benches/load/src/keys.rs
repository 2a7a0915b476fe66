//! The keys and values of a run, computed from an index instead of kept.
//!
//! Here: index → 20-byte key, index and version → 32-byte value. Not here: which index is next
//! (`spread`). Nothing is stored because a table of a million keys would fill the cache that the
//! generator shares with the server it measures.

use kit::rng::mix;

/// Bytes of every key.
pub const KEY_BYTES: usize = 20;
/// Bytes of every value in [`Space::Value`].
pub const VALUE_BYTES: usize = 32;

/// The key spaces: `set` must not overwrite counters, nor one limit the state of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Decimal counters, changed only by `incr`.
    Counter,
    /// Values of [`VALUE_BYTES`], changed only by `set`.
    Value,
    /// Keys of a bucket that nothing refills in the time of a run.
    Bucket,
    /// Keys of a two-window count.
    Window,
    /// Keys of a log of calls.
    Log,
    /// Keys of a bucket that is full again before the next call.
    Idle,
    /// Keys of a bucket without remaining units.
    Empty,
    /// Keys that a limit of the generated limits file matches.
    Bound,
}

impl Space {
    /// The number of spaces.
    pub const COUNT: usize = 8;

    /// Whether a key's usage is the number of calls made, so that it can be read back.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        !matches!(self, Self::Value | Self::Idle)
    }
}

/// The key at `index`: four letters for the space, then 16 hexadecimal digits in no visible order.
#[must_use]
pub fn key(space: Space, index: u32) -> [u8; KEY_BYTES] {
    let mut key = match space {
        Space::Counter => *b"ctr:0123456789abcdef",
        Space::Value => *b"val:0123456789abcdef",
        Space::Bucket => *b"bkt:0123456789abcdef",
        Space::Window => *b"win:0123456789abcdef",
        Space::Log => *b"log:0123456789abcdef",
        Space::Idle => *b"idl:0123456789abcdef",
        Space::Empty => *b"mty:0123456789abcdef",
        Space::Bound => *b"bnd:0123456789abcdef",
    };
    // `mix` maps zero to itself; the offset spares the first key an all-zero name.
    key[4..].copy_from_slice(&hex(mix(u64::from(index) + 1)));
    key
}

/// The value of the key at `index` in its `version`; the bytes determine both.
#[must_use]
pub fn value(index: u32, version: u32) -> [u8; VALUE_BYTES] {
    let stamp = (u64::from(version) << 32) | u64::from(index);
    let mut value = [0; VALUE_BYTES];
    value[..16].copy_from_slice(&hex(stamp));
    value[16..].copy_from_slice(&hex(mix(stamp)));
    value
}

/// Sixteen hexadecimal digits, most significant first.
fn hex(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    digits[..8].copy_from_slice(&hex_half((number >> 32) as u32));
    digits[8..].copy_from_slice(&hex_half(number as u32));
    digits
}

/// Eight digits at once: each nibble is spread to a byte, then all bytes become letters together.
fn hex_half(number: u32) -> [u8; 8] {
    let mut v = u64::from(number);
    v = (v | (v << 16)) & 0x0000_ffff_0000_ffff;
    v = (v | (v << 8)) & 0x00ff_00ff_00ff_00ff;
    v = (v | (v << 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    // Adding six carries into bit four exactly for the nibbles above nine.
    let letters = ((v + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    let ascii = v + 0x3030_3030_3030_3030 + letters * u64::from(b'a' - b'9' - 1);
    ascii.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{Space, hex, key, value};

    #[test]
    fn hex_equals_the_standard_library() {
        for shift in 0..64 {
            for number in [0, 1, 9, 10, 15, u64::MAX, 0x0123_4567_89ab_cdef] {
                let number = number << shift;
                assert_eq!(hex(number), format!("{number:016x}").as_bytes());
            }
        }
    }

    #[test]
    fn keys_are_distinct_and_legal() {
        let mut seen = HashSet::new();
        for index in (0..200_000).chain(u32::MAX - 10..=u32::MAX) {
            for space in [Space::Counter, Space::Value] {
                let key = key(space, index);
                assert!(key.iter().all(u8::is_ascii_graphic));
                assert!(seen.insert(key), "{index} twice");
            }
        }
    }

    #[test]
    fn a_value_changes_with_its_key_and_its_version() {
        assert_ne!(value(1, 0), value(2, 0));
        assert_ne!(value(1, 0), value(1, 1));
        assert_eq!(value(7, 3), value(7, 3));
    }
}
