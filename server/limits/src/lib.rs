//! Limits on keys: the limits file, and the limit that a key matches.
//!
//! Here: parsing the bytes of a file, and finding the limit of a key. Not here: the decision of a
//! policy (`engine`), the verbs on a limited key, and when the file is read again (`server`).
//! Reference: `docs/reference/limits-file.md`.
//!
//! ```
//! use tollgate_limits::Limits;
//!
//! let file = br#"
//!     [[limit]]
//!     name   = "rack-attack"
//!     match  = "rack::attack:{window:digits}:req/ip:{ip}"
//!     key    = "rack::attack:req/ip:{ip}"
//!     policy = "sliding:300/5m,slices=10"
//! "#;
//! let limits = Limits::parse("limits.toml", file).expect("a good file");
//! let mut scratch = Vec::new();
//! let key = b"rack::attack:5812:req/ip:192.0.2.1";
//! let found = limits.find(key, &mut scratch).expect("a short key").expect("a bound key");
//! assert_eq!(found.limit().name(), "rack-attack");
//! assert_eq!(found.key(), b"rack::attack:req/ip:192.0.2.1");
//! ```

use std::path::Path;
use std::sync::Arc;

use hashbrown::HashMap;
use protocol::Policy;

use self::charge_cost::Charging;
pub use self::charge_cost::{ChargeCost, ParentRule};
pub use self::check::{check_file, first_verdict, listing};
pub use self::companion::{Companion, Companions};
use self::error::BadOverrides;
pub use self::error::{CAS_OF_REFUND, LimitedKeyError, LimitsError};
use self::exempt::Exemptions;
pub use self::explain::{ExplainedKey, Explanation, key_mistake, override_reason};
pub use self::file::ABOUT_BYTES_MAX;
use self::index::PatternIndex;
pub use self::key_hash::share_seeds;
pub use self::matched::{LimitMatch, Parent, Parents};
pub use self::options::{Deny, OnUnavailable};
pub use self::override_batch::OverrideBatch;
pub use self::override_id::{OverrideId, OverrideSource};
pub use self::override_tables::parse_weighted_policy;
pub use self::overrides::OverrideTable;
use self::overrides::Overrides;
pub use self::overrides_file::{OverridesRead, TableRead};
use self::pattern::{Captures, Pattern};
pub use self::place::{UNLIMITED, Unlimited};
use self::template::Template;

mod capture;
mod charge_cost;
mod check;
mod companion;
mod counted_keys;
mod date;
mod error;
mod exact_index;
mod excerpt;
mod exempt;
mod explain;
mod file;
pub mod files;
mod huge_table;
mod index;
mod key_hash;
pub mod map_text;
mod matched;
mod networks;
mod options;
mod override_batch;
mod override_id;
mod override_search;
mod override_tables;
mod overrides;
mod overrides_file;
mod pattern;
mod place;
mod policy_fields;
mod regex;
mod regex_set;
mod rules;
mod search;
mod shape;
mod template;
mod texts;
mod toml_writer;
mod trial;
mod trie;
mod where_rules;
mod wheres;
mod with_line;

/// Maximum size of a limits file.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The warning for a limits file without limits and without `allow_empty`.
#[must_use]
pub fn no_limits(path: &Path) -> String {
    let path = path.display();
    format!("{path} has no limits; `allow_empty = true` at its top says that this is meant")
}

/// Reads the bytes of the limits file at `path`, without parsing them.
///
/// # Errors
///
/// [`LimitsError::Unreadable`]: the system's error, no regular file, or more than 64 MiB.
pub fn read(path: &Path) -> Result<Vec<u8>, LimitsError> {
    files::read(path, FILE_BYTES_MAX)
        .map_err(|source| LimitsError::Unreadable { path: path.to_owned(), source })
}

/// Maximum size of a limit's TOML in bytes, in file, API and map alike.
pub const TEXT_BYTES_MAX: usize = 32_768;

/// Maximum number of parents of a key, ancestors included. With the key itself there are 16 keys,
/// the maximum of `takem`.
pub const PARENTS_MAX: usize = 15;

/// All limits of a file, in file order. Immutable: a new file makes new `Limits`, and so do new
/// overrides, for which a copy is made that shares what is expensive to compile.
#[derive(Debug, Clone, Default)]
pub struct Limits {
    limits: Vec<Limit>,
    /// Shared by copies of the limits.
    names: Arc<HashMap<Box<[u8]>, u32>>,
    index: PatternIndex,
    /// The index of the limit for keys that no other limit matches.
    fallback: Option<u32>,
    /// The companions that at least one limit has.
    companions: Companions,
    /// The keys that no limit applies to. Shared by copies of the limits.
    exemptions: Option<Arc<Exemptions>>,
    /// Keys of 1 to this many bytes are looked up without a look at exemptions: all keys, or none.
    direct_bytes: usize,
    allow_empty: bool,
    /// Overrides and parents that have no effect, which were left out.
    left_out: usize,
}

/// One `[[limit]]`.
#[derive(Debug, Clone)]
pub struct Limit {
    index: u32,
    name: Box<str>,
    /// The pattern as written.
    text: Box<str>,
    pattern: Pattern,
    policy: Policy,
    /// The counted key. `None`: the client's key.
    key: Option<Template>,
    parents: Vec<Template>,
    charging: Charging,
    /// Whether a request may be charged otherwise than with its cost on its own key alone.
    charges_more: bool,
    /// Whether every key of the limit has one policy, and is charged the cost of a request alone.
    is_simple: bool,
    /// Boxed, so that a limit without overrides stays small.
    overrides: Option<Box<Overrides>>,
    /// The path of the file with further overrides.
    overrides_file: Option<Arc<str>>,
    companions: Companions,
    on_unavailable: Option<OnUnavailable>,
    deny: Deny,
    order: i32,
    /// Whether it is `match = "*"` and `unlimited`, with nothing else that a request could see.
    is_fallback: bool,
    /// The slot of the capture named `ip`, for exempt networks; `u8::MAX` without one.
    ip_slot: u8,
}

impl Limits {
    /// Parses and checks a whole limits file. `name` is the file name in errors.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn parse(name: &str, text: &[u8]) -> Result<Self, LimitsError> {
        Self::compile(&file::File::new(name, text), text).map(|(limits, _)| limits)
    }

    fn compile(file: &file::File<'_>, text: &[u8]) -> Result<(Self, file::Drafts), LimitsError> {
        let (mut limits, drafts) = Self::compile_limits(file, text)?;
        limits.set_exemptions(file, &drafts.exempt, BadOverrides::Refused)?;
        Ok((limits, drafts))
    }

    /// Compiles a file without its exemptions.
    fn compile_limits(
        file: &file::File<'_>,
        text: &[u8],
    ) -> Result<(Self, file::Drafts), LimitsError> {
        let drafts = file.drafts(text)?;
        let limits = rules::compile(file, &drafts.limits, BadOverrides::Refused)?;
        drafts.limits.iter().try_for_each(|draft| rules::check_length(file, draft))?;
        Ok((Self { allow_empty: drafts.allow_empty, ..limits }, drafts))
    }

    /// Reads and parses the file at `path`, and the files of overrides that it names.
    ///
    /// # Errors
    ///
    /// A file is unreadable, a file of overrides has a mistake, or the errors of [`Limits::parse`].
    pub fn load(path: &Path) -> Result<Self, LimitsError> {
        let (text, name) = (read(path)?, path.display().to_string());
        let file = file::File::new(&name, &text).at(path);
        let (mut limits, _) = Self::compile(&file, &text)?;
        limits.read_override_files(&Self::default())?;
        Ok(limits)
    }

    /// The number of overrides and parents that have no effect and were left out, which happens to
    /// limits that are stored already.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Whether the file sets `allow_empty = true`, so that a file without limits is intended.
    #[must_use]
    pub fn allow_empty(&self) -> bool {
        self.allow_empty
    }

    /// The warning for an unintended file without limits at `path`.
    #[must_use]
    pub fn warning(&self, path: &Path) -> Option<String> {
        (self.is_empty() && !self.allow_empty).then(|| no_limits(path))
    }

    /// The number of limits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether there are no limits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limits in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, Limit> {
        self.limits.iter()
    }

    /// Returns the limit with this [`Limit::index`].
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Limit> {
        self.limits.get(index)
    }

    /// Returns the limit with this name, for `=name` in native verbs.
    #[must_use]
    pub fn by_name(&self, name: &[u8]) -> Option<&Limit> {
        self.get(*self.names.get(name)? as usize)
    }
}

impl<'l> IntoIterator for &'l Limits {
    type Item = &'l Limit;
    type IntoIter = std::slice::Iter<'l, Limit>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Limit {
    /// The position of the limit in the file, from 0. It may change when the file is read again.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index as usize
    }

    /// The name of the limit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limit's `match` or `regex` as written.
    #[must_use]
    pub fn pattern(&self) -> &str {
        &self.text
    }

    /// The limit's policy with `over` and `shadow`, for keys without an override.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The policy of a counted key: that of its override, or the limit's.
    #[must_use]
    pub fn policy_of(&self, counted_key: &[u8]) -> &Policy {
        self.overridden(counted_key).map_or(&self.policy, |(_, policy)| policy)
    }

    /// The decision while a key's owner is unreachable. `None`: the node's configuration decides.
    #[must_use]
    pub fn on_unavailable(&self) -> Option<OnUnavailable> {
        self.on_unavailable
    }

    /// The form in which the meta verbs report a denied attempt.
    #[must_use]
    pub fn deny(&self) -> Deny {
        self.deny
    }

    /// The companions of the limit's keys.
    #[must_use]
    pub fn companions(&self) -> Companions {
        self.companions
    }

    /// Whether the limit has the pattern, the policy, the options and the overrides of another one.
    #[must_use]
    pub fn reads_like(&self, other: &Self) -> bool {
        let parts =
            |limit: &Self| (limit.policy, limit.deny, limit.on_unavailable, limit.companions);
        self.pattern.is_same(&other.pattern)
            && (self.order, parts(self)) == (other.order, parts(other))
            && (&self.key, &self.parents) == (&other.key, &other.parents)
            && self.charging == other.charging
            && self.has_overrides_of(other)
    }

    /// The override of a counted key: its index and its policy.
    #[inline]
    fn overridden(&self, counted_key: &[u8]) -> Option<(OverrideId, &Policy)> {
        self.overrides.as_ref()?.find(counted_key)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is a third of what a found limit costs")]
    fn found<'a, const OVERRIDES: bool>(
        &'a self,
        base: &'a [u8],
        captures: Captures,
        companion: Option<Companion>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<LimitMatch<'a>, LimitedKeyError> {
        let key = match &self.key {
            None => base,
            Some(template) => {
                scratch.clear();
                template.render(base, &captures, scratch)?;
                scratch.as_slice()
            }
        };
        let found = if OVERRIDES { self.overridden(key) } else { None };
        let (overridden, policy) = match found {
            Some((id, policy)) => (Some(id), policy),
            None => (None, &self.policy),
        };
        Ok(LimitMatch { limit: self, policy, key, base, companion, overridden, captures })
    }
}

#[cfg(test)]
mod tests;
