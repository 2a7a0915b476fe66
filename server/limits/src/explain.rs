//! The limit of a key, and the reason: captures, counted key, override, parents, later limits.
//!
//! Here: the whole result of a lookup, for an operator. Not here: the lookup that requests use
//! (`search`), verdicts (`server`).

use protocol::KEY_BYTES_MAX;

use super::capture::CaptureClass;
use super::pattern::{Captures, Glob, Pattern};
use super::regex::Regex;
use super::{ChargeCost, Limit, LimitMatch, LimitedKeyError, Limits, OverrideSource, PARENTS_MAX};

/// Returns why `key` cannot stand on a line of the text protocol. `None`: it can.
#[must_use]
pub fn key_mistake(key: &[u8]) -> Option<String> {
    let is_key = (1..=KEY_BYTES_MAX).contains(&key.len())
        && !key.iter().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control());
    let mistake =
        || format!("a key has 1 to {KEY_BYTES_MAX} bytes, and no blanks or control characters");
    (!is_key).then(mistake)
}

/// Most limits that are listed because they match a key too.
const LATER_MAX: usize = 20;

/// A limited key in an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedKey {
    /// The key as a client writes it.
    pub key: Vec<u8>,
    /// The counted key.
    pub counted: Vec<u8>,
    /// The name of its limit.
    pub limit: String,
    /// The policy in force; several and a ban are separated by `;`.
    pub policy: String,
    /// The limit is in shadow: its policy only watches. `block` does not say so in its text.
    pub shadow: bool,
    /// The key of the override in force, as written, and its origin.
    pub overridden: Option<(String, OverrideSource)>,
    /// The cost, made of that of a request on the asked key.
    pub cost: ChargeCost,
    /// Nanoseconds for which the cost of a parent is held, if its child's limit says so.
    pub hold: Option<u64>,
}

/// The limit of a key, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The key and its limit.
    pub key: ExplainedKey,
    /// The key is a companion: it shows a figure of [`Explanation::key`], and is never charged.
    pub companion: bool,
    /// The captures of the pattern: names and values.
    pub captures: Vec<(String, Vec<u8>)>,
    /// The keys that are charged too, in the order of [`Limits::parents`].
    pub parents: Vec<ExplainedKey>,
    /// The names of limits that match the key and come later: they never see it.
    pub later: Vec<String>,
}

impl ExplainedKey {
    /// The policies in force, each as a client writes it.
    pub fn policies(&self) -> impl Iterator<Item = &str> + Clone {
        self.policy.split(';').filter(|text| !text.starts_with("ban="))
    }

    fn of(found: &LimitMatch<'_>, cost: ChargeCost, hold: Option<u64>) -> Self {
        Self {
            key: found.base.to_vec(),
            counted: found.key.to_vec(),
            limit: found.limit.name.to_string(),
            policy: found.policy.to_string(),
            shadow: found.policy.shadow,
            cost,
            hold,
            overridden: found.overridden.map(|id| {
                let row = found.limit.overrides.as_ref().and_then(|all| all.row(id));
                (row.map_or_else(String::new, |(text, _)| text.to_owned()), id.source)
            }),
        }
    }
}

impl Pattern {
    /// The names of the captures, by slot.
    pub(super) fn capture_names(&self, text: &str) -> Vec<String> {
        let names = match self {
            Self::Glob(_) => Glob::parse(text).map(|(_, names)| names),
            Self::Regex(_) => Regex::parse(text).map(|(_, names)| names),
        };
        // The text was parsed before.
        names.unwrap_or_default()
    }
}

impl Limit {
    fn capture_names(&self) -> Vec<String> {
        self.pattern.capture_names(&self.text)
    }

    /// The name of the first address that ends at `byte` before another capture, and is not counted
    /// by its network.
    pub(super) fn capture_before(&self, byte: u8) -> Option<String> {
        let Pattern::Glob(glob) = &self.pattern else { return None };
        let (_, before_last) = glob.steps.split_last()?;
        let step = before_last.iter().find(|step| {
            step.class == CaptureClass::Ip && step.then.bytes.first() == Some(&Some(byte))
        })?;
        self.capture_names().get(usize::from(step.slot)).cloned()
    }

    /// The limit's `key` as written.
    #[must_use]
    pub fn key_text(&self) -> Option<String> {
        self.key.as_ref()?.text(&self.capture_names())
    }

    /// The limit's `parents` as written.
    pub fn parent_texts(&self) -> impl Iterator<Item = String> {
        let names = if self.parents.is_empty() { Vec::new() } else { self.capture_names() };
        self.parents.iter().filter_map(move |parent| parent.text(&names))
    }
}

/// Why an override applies to a counted key. `text` is the override as written.
#[must_use]
pub fn override_reason(text: &str, source: &str, counted: &str) -> &'static str {
    match text.strip_suffix('*') {
        _ if source == OverrideSource::Where.word() => "its captures match",
        _ if text == counted => "it is this key",
        Some(prefix) if counted.starts_with(prefix) => "the key begins so",
        _ => "the address is in the network",
    }
}

impl Limits {
    /// Returns the limit of a key and the reason. `None`: the key is not limited.
    ///
    /// # Errors
    ///
    /// The counted key or a parent's is invalid, or there are too many parents.
    pub fn explain(&self, key: &[u8]) -> Result<Option<Explanation>, LimitedKeyError> {
        let mut scratch = Vec::new();
        let Some(found) = self.find(key, &mut scratch)? else { return Ok(None) };
        let names = found.limit.pattern.capture_names(&found.limit.text);
        let captures = (0..).zip(names);
        let captures =
            captures.map(|(slot, name)| (name, found.captures.get(found.base, slot).to_vec()));
        let mut parents = Vec::new();
        let key = ExplainedKey::of(&found, found.cost(), None);
        self.explain_parents((&found, found.cost()), &key, &mut parents)?;
        Ok(Some(Explanation {
            key,
            companion: found.companion.is_some(),
            captures: captures.collect(),
            parents,
            later: self.later(found.limit, found.base),
        }))
    }

    fn explain_parents(
        &self,
        (of, cost): (&LimitMatch<'_>, ChargeCost),
        child: &ExplainedKey,
        parents: &mut Vec<ExplainedKey>,
    ) -> Result<(), LimitedKeyError> {
        for (template, rule) in of.limit.parents.iter().zip(&of.limit.charging.rules) {
            let (mut key, mut scratch) = (Vec::new(), Vec::new());
            template.render(of.base, &of.captures, &mut key)?;
            let Some((limit, captures)) = self.lookup(&key) else { continue };
            let parent = limit.found::<true>(&key, captures, None, &mut scratch)?;
            let cost = rule.cost_of(cost).weighted(parent.weight());
            let explained = ExplainedKey::of(&parent, cost, rule.hold);
            let is_same = |other: &ExplainedKey| {
                other.limit == explained.limit && other.counted == explained.counted
            };
            if is_same(child) || parents.iter().any(is_same) {
                continue;
            }
            if parents.len() == PARENTS_MAX {
                return Err(LimitedKeyError::TooManyParents);
            }
            parents.push(explained);
            self.explain_parents((&parent, cost), child, parents)?;
        }
        Ok(())
    }

    /// The names of limits after `first` that match `key` too, at most [`LATER_MAX`].
    fn later(&self, first: &Limit, key: &[u8]) -> Vec<String> {
        let later = self.limits.iter().skip(first.index() + 1);
        let matching = later.filter(|limit| limit.pattern.matches(key, &mut Captures::default()));
        matching.take(LATER_MAX).map(|limit| limit.name.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Parents;

    const FILE: &[u8] = br#"
        [[limit]]
        name = "user"
        match = "user:{tenant}:{id:digits}"
        key = "u/{tenant}/{id}"
        policy = "fixed:5/m"
        parents = ["tenant:{tenant}", "everyone"]
        overrides = [{ key = "u/acme/7", policy = "fixed:50/m" }]
        [[limit]]
        name = "tenant"
        match = "tenant:{tenant}"
        policy = "fixed:100/m"
        parents = ["everyone"]
        [[limit]]
        name = "everyone"
        match = "everyone"
        policy = "fixed:1000/m"
        [[limit]]
        name = "rest"
        match = "user:*"
        policy = "fixed:1/m"
    "#;

    fn limits() -> Limits {
        Limits::parse("limits.toml", FILE).expect("a good file")
    }

    #[test]
    fn a_key_for_a_line_has_no_blanks() {
        for key in [&b""[..], b"a b", b"a\r\nflush_all", &[b'k'; 251], b"a\0"] {
            assert!(key_mistake(key).is_some());
        }
        for key in [&b"k"[..], &[b'k'; 250], b"\xff\xfe", "schlüssel".as_bytes()] {
            assert_eq!(key_mistake(key), None);
        }
    }

    #[test]
    fn a_key_is_explained_with_captures_and_parents() {
        let explained = limits().explain(b"user:acme:7").expect("short keys").expect("a limit");
        assert_eq!(explained.key.limit, "user");
        assert_eq!(explained.key.counted, b"u/acme/7");
        assert_eq!(explained.key.policy, "fixed:50/m");
        let inline = ("u/acme/7".to_owned(), OverrideSource::Inline);
        assert_eq!(explained.key.overridden, Some(inline));
        assert!(!explained.companion);
        let capture = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
        assert_eq!(explained.captures, [capture("tenant", b"acme"), capture("id", b"7")]);
        let parents: Vec<_> =
            explained.parents.iter().map(|parent| parent.limit.as_str()).collect();
        assert_eq!(parents, ["tenant", "everyone"]);
        assert_eq!(explained.parents[0].key, b"tenant:acme");
        assert_eq!(explained.later, ["rest"]);
        assert_eq!(limits().explain(b"other"), Ok(None));
    }

    #[test]
    fn a_block_in_a_shadow_limit_is_a_shadow() {
        let file = br#"
            [[limit]]
            name = "watched"
            match = "w:{x}"
            policy = "fixed:1/h"
            shadow = true
            overrides = [{ key = "w:b", policy = "block" }]
            [[limit]]
            name = "enforced"
            match = "e:{x}"
            policy = "fixed:1/h"
        "#;
        let limits = Limits::parse("limits.toml", file).expect("a good file");
        for (key, policy, shadow) in
            [("w:a", "fixed:1/h,shadow", true), ("w:b", "block", true), ("e:a", "fixed:1/h", false)]
        {
            let explained = limits.explain(key.as_bytes()).expect("short").expect("a limit");
            assert_eq!((explained.key.policy.as_str(), explained.key.shadow), (policy, shadow));
        }
    }

    proptest! {
        #[test]
        fn the_parents_are_those_that_a_request_charges(
            tenant in "[a-c]{1,3}", id in "[0-9]{1,3}", kind in 0..3
        ) {
            let limits = limits();
            let key = match kind {
                0 => format!("user:{tenant}:{id}"),
                1 => format!("tenant:{tenant}"),
                _ => "everyone".to_owned(),
            };
            let (mut scratch, mut parents) = (Vec::new(), Parents::default());
            let found = limits.find(key.as_bytes(), &mut scratch).expect("short").expect("a limit");
            limits.parents(&found, &mut parents).expect("few parents");
            let explained = limits.explain(key.as_bytes()).expect("short").expect("a limit");
            prop_assert_eq!(parents.len(), explained.parents.len());
            for (parent, row) in parents.iter().zip(&explained.parents) {
                prop_assert_eq!(parent.key, row.counted.as_slice());
                prop_assert_eq!(limits.get(parent.limit).map(Limit::name), Some(row.limit.as_str()));
                prop_assert_eq!(parent.policy.to_string(), row.policy.clone());
                prop_assert_eq!((parent.cost, parent.hold), (row.cost, row.hold));
            }
        }
    }
}
