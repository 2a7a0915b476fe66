//! Overrides: other policies for some keys of a limit.
//!
//! Here: finding the override of a counted key: an exact key, else the longest prefix (`acme:*`),
//! else the smallest network (`login:10.0.0.0/8`: a literal, then an address up to the key's end).
//! None of the three searches is linear. Not here: checking that an override can match (`rules`).

use hashbrown::HashMap;
use protocol::Policy;

use super::networks::{Network, Networks};
use super::pattern::{CaptureClass, ip};
use super::trie::Trie;

/// Maximum length of an address as text: IPv6 with an IPv4 tail.
const ADDRESS_BYTES_MAX: usize = 45;

/// The keys of one override.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum OverrideKeys {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Network(Vec<u8>, Network),
}

/// The overrides of one limit, indexed by their number in the file.
#[derive(Debug, Default)]
pub(super) struct Overrides {
    policies: Vec<Policy>,
    exact: HashMap<Vec<u8>, u32>,
    prefixes: Trie,
    /// Indexed by the literal before the address.
    networks: HashMap<Vec<u8>, Networks>,
    /// Lengths of these literals, longest first.
    literal_lens: Vec<usize>,
}

impl Overrides {
    pub(super) fn new(overrides: Vec<(OverrideKeys, Policy)>) -> Self {
        let mut new = Self::default();
        let mut prefixes = Vec::new();
        let mut networks = HashMap::<Vec<u8>, Vec<(Network, u32)>>::new();
        for (number, (keys, policy)) in (0..).zip(overrides) {
            new.policies.push(policy);
            match keys {
                OverrideKeys::Exact(key) => drop(new.exact.insert(key, number)),
                OverrideKeys::Prefix(prefix) => prefixes.push((prefix, number)),
                OverrideKeys::Network(literal, network) => {
                    networks.entry(literal).or_default().push((network, number));
                }
            }
        }
        new.prefixes = Trie::new(prefixes.iter().map(|(p, n)| (p.as_slice(), *n)).collect());
        new.literal_lens = networks.keys().map(Vec::len).collect();
        new.literal_lens.sort_unstable_by(|one, other| other.cmp(one));
        new.literal_lens.dedup();
        let ranges = networks.into_iter();
        new.networks = ranges.map(|(literal, of)| (literal, Networks::new(&of))).collect();
        new
    }

    /// Returns the override of a counted key.
    #[inline]
    pub(super) fn find(&self, key: &[u8]) -> Option<(usize, &Policy)> {
        let index = self.number(key)? as usize;
        Some((index, self.policies.get(index)?))
    }

    fn number(&self, key: &[u8]) -> Option<u32> {
        if !self.exact.is_empty()
            && let Some(number) = self.exact.get(key)
        {
            return Some(*number);
        }
        let mut longest = None;
        self.prefixes.walk(key, |number| longest = Some(number));
        longest.or_else(|| self.network(key))
    }

    fn network(&self, key: &[u8]) -> Option<u32> {
        let (shortest, longest) = (self.literal_lens.last()?, self.literal_lens.first()?);
        // The address ends the key, so the literal includes at least every byte before the trailing
        // run of address bytes.
        let bytes =
            key.iter().rev().take(ADDRESS_BYTES_MAX).take_while(|b| CaptureClass::Ip.has(**b));
        let start = key.len() - bytes.count();
        if start > *longest || key.len() <= *shortest {
            return None;
        }
        let lens = self.literal_lens.iter().filter(|len| (start..key.len()).contains(*len));
        lens.copied().find_map(|len| {
            let (literal, address) = key.split_at(len);
            self.networks.get(literal)?.find(ip(address)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(keys: Vec<OverrideKeys>) -> Overrides {
        let policy = Policy::parse(b"unlimited").expect("a policy");
        Overrides::new(keys.into_iter().map(|keys| (keys, policy)).collect())
    }

    fn network(literal: &str, text: &str) -> OverrideKeys {
        OverrideKeys::Network(literal.into(), Network::parse(text).expect(text))
    }

    #[test]
    fn exact_key_beats_longest_prefix_beats_network() {
        let overrides = overrides(vec![
            OverrideKeys::Exact("l:10.0.0.1".into()),
            OverrideKeys::Prefix("l:10.0.0.".into()),
            OverrideKeys::Prefix("l:10.0.".into()),
            network("l:", "10.0.0.0/8"),
            network("l:", "10.9.0.0/16"),
            network("l:", "2001:db8::/32"),
            network("", "10.0.0.0/8"),
        ]);
        for (key, expected) in [
            ("l:10.0.0.1", Some(0)),
            ("l:10.0.0.2", Some(1)),
            ("l:10.0.9.2", Some(2)),
            ("l:10.8.0.1", Some(3)),
            ("l:10.9.0.1", Some(4)),
            ("l:2001:db8::1", Some(5)),
            ("l:::ffff:10.9.0.1", Some(4)),
            ("10.9.0.1", Some(6)),
            ("l:11.0.0.1", None),
            ("l:10.9.0.1x", None),
            ("l:", None),
        ] {
            let found = overrides.find(key.as_bytes()).map(|(index, _)| index);
            assert_eq!(found, expected, "{key}");
        }
    }
}
