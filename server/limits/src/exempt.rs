//! Exemptions: keys that no limit applies to.
//!
//! Here: reading the entries of `exempt`, whether an entry can match a key of a limit, and finding
//! the entry of a key. Not here: the limit of a key (`search`), the record of the entries in a
//! store (`map_text`).
//!
//! An entry is a network or an address, which the capture named `ip` matches, or a pattern of whole
//! keys as a client writes them. The search is one walk through a trie and one binary search.

use std::net::IpAddr;
use std::sync::Arc;

use protocol::KEY_BYTES_MAX;

use super::capture::{CaptureClass, ip};
use super::companion::Companion;
use super::error::BadOverrides;
use super::file::File;
use super::index::PatternIndex;
use super::networks::{Network, Networks};
use super::pattern::{Captures, Glob, Pattern};
use super::shape::Shape;
use super::toml_writer::Quoted;
use super::where_rules::{bad_prefix, network_in};
use super::with_line::WithLine;
use super::{Limit, Limits, LimitsError};

/// Most exemptions.
pub(super) const EXEMPTIONS_MAX: usize = 1_000;

/// Most bytes of the list as a cluster's map writes it, as for a limit.
const LIST_BYTES_MAX: usize = super::TEXT_BYTES_MAX;

/// The name of the capture that networks are compared with.
const ADDRESS: &str = "ip";

/// The slot of a limit without that capture.
const NO_SLOT: u8 = u8::MAX;

/// The keys that no limit applies to.
#[derive(Debug)]
pub(super) struct Exemptions {
    /// All entries as written, in file order.
    texts: Box<[Box<str>]>,
    /// The entries that are patterns, and the number of each.
    patterns: Box<[(Pattern, u32)]>,
    index: PatternIndex,
    networks: Networks,
}

/// One entry.
#[derive(Debug)]
enum Exemption {
    Network(Network),
    Keys(Glob),
}

/// Returns the slot of the capture that networks are compared with; `names` are the captures of a
/// pattern, by slot.
pub(super) fn slot_of_address(names: &[String]) -> u8 {
    let slot = names.iter().position(|name| name == ADDRESS);
    slot.and_then(|slot| u8::try_from(slot).ok()).unwrap_or(NO_SLOT)
}

/// Writes the list as a line of a limits file.
pub(super) fn as_toml<'t>(entries: impl IntoIterator<Item = &'t str>) -> String {
    let entries: Vec<String> = entries.into_iter().map(|text| Quoted(text).to_string()).collect();
    format!("exempt = [{}]\n", entries.join(", "))
}

impl Exemptions {
    /// The number of the first entry whose pattern matches the key.
    fn of_key(&self, key: &[u8]) -> Option<u32> {
        let mut best = u32::MAX;
        self.index.candidates(key, |list| {
            for candidate in list.iter().take_while(|candidate| candidate.limit < best) {
                let pattern = || &self.patterns[candidate.limit as usize].0;
                if candidate.matches(key, &mut Captures::default(), pattern) {
                    best = candidate.limit;
                    return;
                }
            }
        });
        self.patterns.get(best as usize).map(|(_, number)| *number)
    }

    /// The number of the smallest network that has the address of a key.
    fn of_address(&self, key: &[u8], limit: &Limit, captures: &Captures) -> Option<u32> {
        self.networks.any()?;
        self.networks.find(ip(captures.get(key, limit.ip_slot))?)
    }
}

impl Exemption {
    /// Reads an entry, and checks that it can match a key of a limit.
    fn parse(text: &str, limits: &Limits) -> Result<Self, String> {
        if text.is_empty() || text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err("a key is not empty and has neither blanks nor control bytes".into());
        }
        let address = text.parse::<IpAddr>().ok().map(Network::of_one);
        if let Some(network) = address.or_else(|| Network::parse(text)) {
            return Self::network(network, limits);
        }
        if let Some((word, _)) = network_in(text) {
            return Err(match Network::parse(word) {
                Some(_) => format!("a network stands alone: write `{word}`"),
                None => bad_prefix(word),
            });
        }
        let (glob, _) = Glob::parse(text)?;
        if let ([step], true) = (&glob.steps[..], glob.first.bytes.is_empty())
            && step.takes_the_rest()
        {
            return Err("it is every key: for no limits at all remove them".into());
        }
        let is_met = if glob.steps.is_empty() && glob.first.bytes.iter().all(Option::is_some) {
            let key: Vec<u8> = glob.first.bytes.iter().filter_map(|byte| *byte).collect();
            key.len() <= KEY_BYTES_MAX && limits.lookup_any(&key).is_some()
        } else {
            let shape = Shape::of_glob(&glob);
            let mut limits = limits.limits.iter().filter_map(Limit::indexed_pattern);
            limits.any(|pattern| Shape::of(pattern).meets(&shape))
        };
        if is_met {
            Ok(Self::Keys(glob))
        } else {
            Err("it cannot match: no limit has such a key".into())
        }
    }

    fn network(network: Network, limits: &Limits) -> Result<Self, String> {
        network.check()?;
        let has_address = |limit: &Limit| match &limit.pattern {
            _ if limit.ip_slot == NO_SLOT => false,
            Pattern::Glob(glob) => glob.steps.iter().any(|step| {
                let class = step.class;
                step.slot == limit.ip_slot && (class.is_address() || class == CaptureClass::Any)
            }),
            Pattern::Regex(_) => true,
        };
        if limits.limits.iter().any(has_address) {
            return Ok(Self::Network(network));
        }
        Err(format!("it cannot match: no limit captures `{{{ADDRESS}:ip}}` or `{{{ADDRESS}}}`"))
    }
}

/// Exemptions that are being made.
#[derive(Default)]
struct ExemptionsBuilder {
    texts: Vec<Box<str>>,
    patterns: Vec<(Pattern, u32)>,
    networks: Vec<(Network, u32)>,
}

impl ExemptionsBuilder {
    /// Adds an entry unless an earlier one has all of its keys.
    fn push(&mut self, text: &str, limits: &Limits) -> Result<(), String> {
        let number = self.texts.len() as u32;
        match Exemption::parse(text, limits)? {
            Exemption::Network(network) => {
                let mut before = self.networks.iter();
                if let Some((_, by)) = before.find(|(other, _)| other.contains(network)) {
                    return Err(format!("`{}` has it already", self.texts[*by as usize]));
                }
                self.networks.push((network, number));
            }
            Exemption::Keys(glob) => {
                let pattern = Pattern::Glob(glob);
                if self.patterns.iter().any(|(other, _)| other.is_same(&pattern)) {
                    return Err("it is in the list already".to_owned());
                }
                self.patterns.push((pattern, number));
            }
        }
        self.texts.push(text.into());
        Ok(())
    }

    fn build(self) -> Option<Arc<Exemptions>> {
        (!self.texts.is_empty()).then(|| {
            let index = PatternIndex::new(self.patterns.iter().map(|(pattern, _)| Some(pattern)));
            Arc::new(Exemptions {
                texts: self.texts.into(),
                patterns: self.patterns.into(),
                index,
                networks: Networks::new(&self.networks),
            })
        })
    }
}

impl Limits {
    /// Sets the exemptions, which are checked with all limits.
    pub(super) fn set_exemptions(
        &mut self,
        file: &File<'_>,
        entries: &[WithLine<String>],
        bad: BadOverrides,
    ) -> Result<(), LimitsError> {
        if let Some(at) = entries.get(EXEMPTIONS_MAX) {
            let reason = format!("`exempt` has at most {EXEMPTIONS_MAX} entries");
            return Err(file.refuse(at.line, reason));
        }
        let bytes = as_toml(entries.iter().map(|at| at.value.as_str())).len();
        if let Some(first) = entries.first().filter(|_| bytes > LIST_BYTES_MAX) {
            let reason = format!("`exempt` has {bytes} bytes, and may have {LIST_BYTES_MAX}");
            return Err(file.refuse(first.line, reason));
        }
        let mut builder = ExemptionsBuilder::default();
        for WithLine { value, line } in entries {
            match builder.push(value, self) {
                Ok(()) => {}
                Err(reason) if bad == BadOverrides::Refused => {
                    return Err(file.refuse(*line, format!("`{value}`: {reason}")));
                }
                Err(reason) => {
                    tracing::warn!(entry = value, reason, "an exemption has no effect");
                }
            }
        }
        self.exemptions = builder.build();
        self.apply_exemptions();
        Ok(())
    }

    /// Makes lookups heed the exemptions from now on.
    pub(super) fn apply_exemptions(&mut self) {
        self.direct_bytes = if self.exemptions.is_some() { 0 } else { KEY_BYTES_MAX };
    }

    /// The exemptions as written, in file order.
    pub fn exemptions(&self) -> impl Iterator<Item = &str> {
        let texts = self.exemptions.iter().flat_map(|all| all.texts.iter());
        texts.map(|text| &**text)
    }

    /// Returns the exemption that takes `key` from all limits, as written; `None`: there is none.
    #[must_use]
    pub fn exemption(&self, key: &[u8]) -> Option<&str> {
        let all = self.exemptions.as_ref()?;
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return None;
        }
        let number = self.exempting(all, key, self.lookup_any(key).as_ref())?;
        all.texts.get(number as usize).map(|text| &**text)
    }

    /// [`Limits::lookup`] of a key of any length, where there may be exemptions.
    #[cold]
    #[inline(never)]
    pub(super) fn lookup_exempting(&self, key: &[u8]) -> Option<(&Limit, Captures)> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return None;
        }
        let found = self.lookup_any(key)?;
        let all = self.exemptions.as_ref();
        let exempting = all.and_then(|all| self.exempting(all, key, Some(&found)));
        exempting.is_none().then_some(found)
    }

    /// The number of the exemption of a key; `found` is its limit. A companion of an exempt key is
    /// exempt too.
    fn exempting(
        &self,
        all: &Exemptions,
        key: &[u8],
        found: Option<&(&Limit, Captures)>,
    ) -> Option<u32> {
        let own = all.of_key(key);
        let own = own
            .or_else(|| found.and_then(|(limit, captures)| all.of_address(key, limit, captures)));
        own.or_else(|| {
            let (base, companion) = Companion::split(key)?;
            if !self.companions.has(companion) {
                return None;
            }
            let (limit, captures) = self.lookup_any(base)?;
            if !limit.companions.has(companion) {
                return None;
            }
            all.of_key(base).or_else(|| all.of_address(base, limit, &captures))
        })
    }
}
