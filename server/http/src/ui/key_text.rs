//! Keys between pages and requests: their bytes, and texts that stand for them.

use std::borrow::Cow;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Stands for the missing end of a key, before the digits of its hash.
const CUT_MARK: char = '…';
/// Digits of a hash after the mark.
const CUT_DIGITS: usize = 12;
/// Forms of blanks and line ends in a text that stands for a key.
const ESCAPES: [&str; 3] = ["%20", "%0D", "%0A"];

/// A key of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageKey(Vec<u8>);

impl PageKey {
    /// Decodes the key of a query: `key`, or `exact`, whose value is percent-encoded once more.
    pub(super) fn of_query(query: &str) -> Self {
        let value = |name: &str| {
            let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let (_, value) = pairs.into_iter().find(|(found, _)| *found == name)?;
            Some(percent_decode_str(&value.replace('+', " ")).collect::<Vec<u8>>())
        };
        let exact = value("exact").map(|text| String::from_utf8_lossy(&text).into_owned());
        Self::of_fields(exact.as_deref().unwrap_or_default(), &value("key").unwrap_or_default())
    }

    /// Returns the key of two fields: `exact`, which is percent-encoded, or else `key`.
    pub(super) fn of_fields(exact: &str, key: &[u8]) -> Self {
        let exact: Vec<u8> = percent_decode_str(exact).collect();
        // No key has such blanks; other blanks may belong to it.
        Self(if exact.is_empty() { key } else { &exact }.trim_ascii().to_vec())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key as text; other bytes are replaced.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    pub(super) fn is_text(&self) -> bool {
        str::from_utf8(&self.0).is_ok()
    }

    /// Returns the name of the field that carries the key without loss.
    pub(super) fn field(&self) -> &'static str {
        if self.is_text() { "key" } else { "exact" }
    }

    /// Returns the value of this field.
    pub(super) fn value(&self) -> String {
        if self.is_text() { self.text().into_owned() } else { self.encoded() }
    }

    /// Returns the key percent-encoded.
    pub(super) fn encoded(&self) -> String {
        percent_encode(&self.0, NON_ALPHANUMERIC).to_string()
    }

    /// Returns the path of the key's page.
    pub(super) fn path(&self) -> String {
        format!("/ui/key?key={}", self.encoded())
    }
}

/// Returns whether a text that is shown may not be the key itself: it is shortened, or has escapes,
/// or bytes that are no text.
pub(super) fn is_doubtful(shown: &str) -> bool {
    let is_cut = shown.rsplit_once(CUT_MARK).is_some_and(|(_, digits)| {
        digits.len() == CUT_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    });
    let is_odd = |char: char| char == char::REPLACEMENT_CHARACTER || char.is_ascii_control();
    is_cut || ESCAPES.iter().any(|escape| shown.contains(escape)) || shown.contains(is_odd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_a_query_keeps_its_bytes() {
        for (query, bytes) in [
            ("key=x:%FF%FE&cost=2", &b"x:\xff\xfe"[..]),
            ("cost=2&key=%C2%A0a%E3%80%80", "\u{a0}a\u{3000}".as_bytes()),
            ("key=+a%2Bb%20", b"a+b"),
            ("key=a&exact=x%3A%25FF", b"x:\xff"),
            ("key=a&exact=", b"a"),
            ("key", b""),
            ("", b""),
        ] {
            let key = PageKey::of_query(query);
            assert_eq!(key.bytes(), bytes, "{query}");
            let path = key.path();
            let again = path.split_once('?').map(|(_, query)| PageKey::of_query(query));
            assert_eq!(again, Some(key.clone()), "{path}");
            let value = key.value();
            let exact = if key.is_text() { "" } else { &value };
            assert_eq!(PageKey::of_fields(exact, value.as_bytes()), key, "{query}");
        }
    }

    #[test]
    fn text_is_doubted_unless_it_is_the_key() {
        for exact in ["user:7", "ä…", "a%2Fb", "50%", "a…ba987654321x", "\u{a0}"] {
            assert!(!is_doubtful(exact), "{exact}");
        }
        for other in ["k…ba9876543210", "a%20b", "x\u{fffd}", "a\tb"] {
            assert!(is_doubtful(other), "{other}");
        }
    }
}
