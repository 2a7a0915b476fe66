//! The types of captures: `{x:digits}`, `{x:ip/64}` and others.
//!
//! Here: the texts that each type accepts, and the text under which a network is counted. Not here:
//! the places of captures in a key (`pattern`).

use std::net::{IpAddr, Ipv6Addr};

/// The class of a capture that takes the rest of a key.
pub(super) const REST: &str = "any";

/// Maximum length of an address as text: IPv6 with an IPv4 tail.
pub(super) const ADDRESS_BYTES_MAX: usize = 45;

/// The longest prefix of an IPv6 network, in bits.
const PREFIX_BITS_MAX: u8 = 128;

/// The bytes that a capture accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptureClass {
    Any,
    Digits,
    Alnum,
    Hex,
    /// An IPv4 or IPv6 address that Rust's standard library can parse.
    Ip,
    /// An address that is counted by its network: IPv4 whole, IPv6 cut to this many bits, 1 to 128.
    Net(u8),
}

impl CaptureClass {
    /// Parses the class in `{name:class}`.
    ///
    /// # Errors
    ///
    /// The mistake.
    pub(super) fn named(name: &str, class: &str) -> Result<Self, String> {
        Ok(match class {
            "digits" => Self::Digits,
            "alnum" => Self::Alnum,
            "hex" => Self::Hex,
            "ip" => Self::Ip,
            _ => {
                let Some(bits) = class.strip_prefix("ip/") else {
                    let of = format!("digits, alnum, hex, ip, ip/<bits>, {REST}");
                    return Err(format!(
                        "`{{{name}:{class}}}`: a capture is one of {of}, or untyped"
                    ));
                };
                Self::Net(prefix_bits(bits).ok_or_else(|| {
                    format!("`{{{name}:{class}}}`: a prefix is 1 to {PREFIX_BITS_MAX} bits")
                })?)
            }
        })
    }

    /// Whether a text of this class may contain `byte`.
    #[inline]
    pub(super) fn has(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Digits => byte.is_ascii_digit(),
            Self::Alnum => byte.is_ascii_alphanumeric(),
            Self::Hex => byte.is_ascii_hexdigit(),
            Self::Ip | Self::Net(_) => byte.is_ascii_hexdigit() || matches!(byte, b'.' | b':'),
        }
    }

    /// Whether `text` as a whole belongs to this class.
    #[inline]
    pub(super) fn takes(self, text: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Ip | Self::Net(_) => ip(text).is_some(),
            bytes => text.iter().all(|byte| bytes.has(*byte)),
        }
    }

    /// Whether the texts of this class are addresses.
    #[inline]
    pub(super) fn is_address(self) -> bool {
        matches!(self, Self::Ip | Self::Net(_))
    }

    /// The texts of this class in words.
    pub(super) fn described(self) -> &'static str {
        match self {
            Self::Any => "text",
            Self::Digits => "digits",
            Self::Alnum => "letters and digits",
            Self::Hex => "hexadecimal digits",
            Self::Ip | Self::Net(_) => "addresses",
        }
    }
}

/// Parses the bits of a prefix.
fn prefix_bits(text: &str) -> Option<u8> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|bits| is_number && (1..=PREFIX_BITS_MAX).contains(bits))
}

/// Parses an address.
pub(super) fn ip(text: &[u8]) -> Option<IpAddr> {
    if text.len() > ADDRESS_BYTES_MAX {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok()
}

/// The first address of the network under which `address` is counted: IPv4 whole, also if it is
/// written as IPv6 (`::ffff:192.0.2.1`), and IPv6 with `bits` significant bits, 1 to 128.
pub(super) fn cut(address: IpAddr, bits: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let free = u32::from(PREFIX_BITS_MAX.saturating_sub(bits));
            let mask = u128::MAX.checked_shl(free).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_network_is_cut_to_its_prefix() {
        for (text, bits, expected) in [
            ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::"),
            ("2001:DB8:0001:2::6", 64, "2001:db8:1:2::"),
            ("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::"),
            ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"),
            ("ffff:ffff::", 1, "8000::"),
            ("::1", 64, "::"),
            ("192.0.2.77", 1, "192.0.2.77"),
            ("::ffff:192.0.2.77", 64, "192.0.2.77"),
        ] {
            let address = ip(text.as_bytes()).expect(text);
            assert_eq!(cut(address, bits).to_string(), expected, "{text}/{bits}");
        }
    }

    #[test]
    fn a_prefix_has_1_to_128_bits() {
        for bits in 1..=128 {
            assert_eq!(
                CaptureClass::named("n", &format!("ip/{bits}")),
                Ok(CaptureClass::Net(bits))
            );
        }
        for bits in ["", "0", "129", "+64", "64 ", "x", "256", "64/64"] {
            CaptureClass::named("n", &format!("ip/{bits}")).expect_err(bits);
        }
    }

    proptest! {
        /// The twin compares bit by bit.
        #[test]
        fn cut_keeps_the_first_bits_alone(bits in any::<u128>(), prefix in 1..=128_u8) {
            let address = IpAddr::V6(Ipv6Addr::from_bits(bits));
            let IpAddr::V6(net) = cut(address, prefix) else {
                prop_assert!(address.to_canonical().is_ipv4());
                return Ok(());
            };
            for bit in 0..128 {
                let at = |number: u128| number >> (127 - bit) & 1;
                let expected = if bit < u32::from(prefix) { at(bits) } else { 0 };
                prop_assert_eq!(at(net.to_bits()), expected);
            }
            prop_assert_eq!(cut(IpAddr::V6(net), prefix), IpAddr::V6(net).to_canonical());
        }
    }
}
