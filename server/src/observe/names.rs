//! The form in which keys are shown: as they are, or as hashes.
//!
//! Not here: the places that show them.

use protocol::write_escaped_key;

use super::sample::KeySample;
use crate::config::KeyDisplay;

/// Marks a key of which the end is missing.
const CUT_MARK: &str = "…";

/// Returns 12 hex digits that stand for the key of this hash.
fn digits(hash: u64) -> String {
    format!("{:012x}", hash & 0xffff_ffff_ffff)
}

/// Returns the form in which a key is shown. `limit` is the name of its limit. One word: blanks and
/// control bytes are written with `%` and two hex digits.
pub(crate) fn shown_key(
    display: KeyDisplay,
    hash: u64,
    (key, is_cut): (&[u8], bool),
    limit: Option<&str>,
) -> String {
    if display == KeyDisplay::Hashed {
        return format!("{}#{}", limit.unwrap_or("-"), digits(hash));
    }
    let mut bytes = Vec::with_capacity(key.len());
    write_escaped_key(&mut bytes, key);
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if is_cut {
        text.push_str(CUT_MARK);
        text.push_str(&digits(hash));
    }
    text
}

/// [`shown_key`] for the key of a sample.
pub(crate) fn shown_sample(
    display: KeyDisplay,
    hash: u64,
    key: &KeySample,
    limit: Option<&str>,
) -> String {
    shown_key(display, hash, (key.as_bytes(), key.is_cut()), limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_shown_whole_cut_or_hashed() {
        let long = [b'k'; 97];
        let hash = 0xfedc_ba98_7654_3210;
        let shown =
            |display, key: &[u8], limit| shown_sample(display, hash, &KeySample::new(key), limit);
        assert_eq!(shown(KeyDisplay::Full, b"user:7", Some("api")), "user:7");
        assert_eq!(shown(KeyDisplay::Full, b"a b\r\n", None), "a%20b%0D%0A");
        assert_eq!(shown(KeyDisplay::Full, b"\xff", None), "\u{fffd}");
        let cut = format!("{}…ba9876543210", "k".repeat(96));
        assert_eq!(shown(KeyDisplay::Full, &long, None), cut);
        assert_eq!(shown(KeyDisplay::Hashed, &long, Some("api")), "api#ba9876543210");
        assert_eq!(shown(KeyDisplay::Hashed, b"user:7", None), "-#ba9876543210");
    }
}
