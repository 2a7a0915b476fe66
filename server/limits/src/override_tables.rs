//! Tables of overrides that change while their limit stays: those of the API and of a file.
//!
//! Here: checking and compiling a table for a limit in force. Not here: the search in a table
//! (`overrides`), the records of overrides (`server`).

use std::sync::Arc;

use protocol::{COUNT_MAX, Policy, PolicyListError};

use super::counted_keys::CountedKeys;
use super::override_id::OverrideSource;
use super::overrides::{OverrideKeys, OverrideTable, OverrideTableBuilder, Overrides};
use super::wheres::WhereTable;
use super::{Limit, Limits, policy_fields};

/// Parses the policy of an override, with its weight if it has one: a policy, several separated by
/// `;`, `allow` or `block`, and behind a blank `weight=5`.
///
/// # Errors
///
/// The mistake.
pub fn parse_weighted_policy(text: &str) -> Result<(Policy, Option<u64>), String> {
    match text.split_once(' ') {
        Some((policy, weight)) => Ok((parse_policy(policy)?, Some(parse_weight(weight)?))),
        None => Ok((parse_policy(text)?, None)),
    }
}

/// Parses the weight of an override.
///
/// # Errors
///
/// The mistake.
pub(super) fn parse_weight(word: &str) -> Result<u64, String> {
    let digits = word.strip_prefix("weight=").unwrap_or_default();
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let weight = digits.parse().ok().filter(|weight| is_number && (1..=COUNT_MAX).contains(weight));
    weight.ok_or_else(|| format!("a weight is weight= and a number from 1 to {COUNT_MAX}"))
}

/// Parses the policy of an override: a policy, `allow` or `block`.
pub(super) fn parse_policy(text: &str) -> Result<Policy, String> {
    let token = if text == "allow" { "unlimited" } else { text };
    Policy::parse_list(token.as_bytes()).map_err(|error| match error {
        PolicyListError::Policy(0, why) if !token.contains(';') => why.to_string(),
        error => error.to_string(),
    })
}

impl Limit {
    /// Returns the policy with the flags and the ban of the limit, which hold for its overrides
    /// too.
    ///
    /// # Errors
    ///
    /// [`PolicyListError::Full`]: there is no room for one more list.
    pub fn with_flags(&self, policy: Policy) -> Result<Policy, PolicyListError> {
        let policy = policy_fields::flagged(policy, self.policy.over, self.policy.shadow);
        policy_fields::banned(policy, self.policy.ban())
    }

    /// Whether the same overrides make the same table for another version of the limit.
    pub(super) fn makes_tables_of(&self, other: &Self) -> bool {
        let flags = |limit: &Self| (limit.policy.over, limit.policy.shadow, limit.policy.ban());
        self.pattern.is_same(&other.pattern) && self.key == other.key && flags(self) == flags(other)
    }

    /// Replaces the overrides of one origin.
    pub(super) fn set_table(&mut self, source: OverrideSource, table: Option<Arc<OverrideTable>>) {
        let mut overrides = self.overrides.take().map_or_else(Overrides::default, |all| *all);
        overrides.set(source, table);
        self.overrides = (!overrides.is_empty()).then(|| Box::new(overrides));
        self.note_charges();
    }

    /// Notes whether a request on a key of the limit may be charged otherwise than with its cost
    /// on that key alone, and whether some key has several policies; after each change of the
    /// overrides.
    pub(super) fn note_charges(&mut self) {
        let all = self.overrides.as_ref();
        let of_override = all.is_some_and(|all| all.has_weights());
        let has_lists = self.policy.is_list() || all.is_some_and(|all| all.have_lists());
        self.charges_more = !self.parents.is_empty() || self.weight() != 1 || of_override;
        self.is_simple = !self.charges_more && !has_lists;
    }

    /// Returns the overrides of one origin.
    pub(super) fn table(&self, source: OverrideSource) -> Option<&Arc<OverrideTable>> {
        self.overrides.as_ref()?.table(source)
    }

    /// Whether the overrides of all origins are those of another limit.
    pub(super) fn has_overrides_of(&self, other: &Self) -> bool {
        OverrideSource::ALL.into_iter().all(|source| {
            match (self.table(source), other.table(source)) {
                (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.has_rows_of(other),
                (one, other) => one.or(other).is_none_or(|table| table.len() == 0),
            }
        }) && match (self.wheres(), other.wheres()) {
            (Some(one), Some(other)) => one.has_rows_of(other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }

    /// Returns the entries with `where`.
    pub(super) fn wheres(&self) -> Option<&WhereTable> {
        self.overrides.as_ref()?.wheres()
    }

    /// Returns the entries with `where`, in file order: their texts, policies and weights.
    pub fn where_rows(&self) -> impl Iterator<Item = (&str, &Policy, Option<u64>)> {
        let table = self.wheres().into_iter();
        table.flat_map(|table| {
            (0..table.len()).filter_map(|number| {
                let (text, policy) = table.row(number)?;
                Some((text, policy, table.weight(number as u32)))
            })
        })
    }

    /// Returns the number of overrides of all origins.
    #[must_use]
    pub fn override_count(&self) -> usize {
        self.overrides.as_ref().map_or(0, |overrides| overrides.len())
    }

    /// Returns the number of overrides of an origin.
    #[must_use]
    pub fn override_table_len(&self, source: OverrideSource) -> usize {
        self.table(source).map_or(0, |table| table.len())
    }

    /// Returns the overrides of an origin whose keys, as written, contain `part`, in their order:
    /// keys, policies, and weights of those that have one.
    pub fn override_rows<'l>(
        &'l self,
        source: OverrideSource,
        part: &'l str,
    ) -> impl Iterator<Item = (&'l str, &'l Policy, Option<u64>)> {
        let table = self.table(source).into_iter();
        table.flat_map(move |table| {
            table.containing(part).filter_map(|number| {
                let (key, policy) = table.row(number)?;
                Some((key, policy, table.weight(number as u32)))
            })
        })
    }
}

impl Limits {
    /// Parses the key of an override, and checks that it can match.
    pub(super) fn override_keys<'t>(
        &self,
        limit: &Limit,
        counted: &CountedKeys<'_>,
        key: &'t str,
    ) -> Result<OverrideKeys<'t>, String> {
        let keys = counted.keys(key)?;
        match self.taken_by(limit, keys) {
            Some(other) => Err(format!("it cannot match: `{}` takes that key", other.name)),
            None => Ok(keys),
        }
    }

    /// Checks that an override of `key` can match, that no override of the API has the same network
    /// in another spelling, and that a new prefix hides no network of the API.
    ///
    /// # Errors
    ///
    /// The mistake.
    pub fn check_override(&self, limit: &Limit, key: &str) -> Result<(), String> {
        let counted = CountedKeys::of(limit);
        let keys = self.override_keys(limit, &counted, key)?;
        let Some(table) = limit.table(OverrideSource::Api) else { return Ok(()) };
        let (literal, network) = match keys {
            OverrideKeys::Network(literal, network) => (literal, network),
            OverrideKeys::Prefix(prefix) => return check_prefix(table, key, prefix),
            OverrideKeys::Exact(_) => return Ok(()),
        };
        if let Some(prefix) = table.prefix_of(literal.as_bytes()) {
            return Err(format!("it is hidden: `{prefix}` comes before networks"));
        }
        let mut others = table.spellings(literal, network).filter(|text| *text != key);
        match others.find(|text| counted.keys(text) == Ok(keys)) {
            Some(other) => Err(format!("there is an override of it already: `{other}`")),
            None => Ok(()),
        }
    }

    /// Replaces the overrides of one origin: for each its key, its policy, and its weight if it has
    /// one. Returns those that are left out because they cannot match: the key and the reason. A
    /// limit that is not in force has no overrides.
    pub fn set_overrides<'r>(
        &mut self,
        name: &str,
        source: OverrideSource,
        rows: impl IntoIterator<Item = (&'r str, (Policy, Option<u64>))>,
    ) -> Vec<(String, String)> {
        let Some(limit) = self.by_name(name.as_bytes()) else { return Vec::new() };
        let counted = CountedKeys::of(limit);
        let mut left_out = Vec::new();
        let mut table = OverrideTableBuilder::default();
        for (text, (policy, weight)) in rows {
            match self.override_keys(limit, &counted, text) {
                Ok(keys) => match limit.with_flags(policy) {
                    Ok(_) if table.push(text, keys, (policy, weight)) => {}
                    Ok(_) => left_out.push((text.to_owned(), "there is one already".to_owned())),
                    Err(error) => left_out.push((text.to_owned(), error.to_string())),
                },
                Err(reason) => left_out.push((text.to_owned(), reason)),
            }
        }
        let flagged = |policy| limit.with_flags(policy).unwrap_or(policy);
        let (index, table) = (limit.index(), table.build_flagged(flagged));
        self.limits[index].set_table(source, table);
        left_out
    }

    /// Gives a limit the overrides of the API that it had before its text changed, with the flags
    /// and the ban that it has now.
    pub(super) fn keep_api_overrides(&mut self, index: usize, before: &Limit) {
        let Some(table) = before.table(OverrideSource::Api) else { return };
        let limit = &mut self.limits[index];
        if limit.makes_tables_of(before) {
            limit.set_table(OverrideSource::Api, Some(Arc::clone(table)));
            return;
        }
        let name = limit.name.clone();
        // An override that the new text cannot match is left out, as it will be in force.
        let _left_out = self.set_overrides(&name, OverrideSource::Api, table.written_rows());
    }
}

/// Refuses a prefix, written as `key`, that hides a network of the table, unless it is there
/// already.
fn check_prefix(table: &OverrideTable, key: &str, prefix: &str) -> Result<(), String> {
    if table.prefix_of(prefix.as_bytes()) == Some(key) {
        return Ok(());
    }
    match table.network_behind(prefix.as_bytes()) {
        Some(network) => Err(format!("it hides `{network}`: prefixes come before networks")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        let file = "[[limit]]\nname = 'a'\nmatch = 'a:{x}'\npolicy = 'fixed:5/s'\nover = true\n\
                    overrides = [{ key = 'a:1', policy = 'fixed:7/s' }]\n\
                    [[limit]]\nname = 'b'\nmatch = 'b:{x}'\npolicy = 'fixed:5/s'\n";
        Limits::parse("l.toml", file.as_bytes()).expect("a good file")
    }

    fn policy_of(limits: &Limits, key: &str) -> String {
        let mut scratch = Vec::new();
        let found = limits.find(key.as_bytes(), &mut scratch).expect("a short key");
        found.map(|found| found.policy().to_string()).unwrap_or_default()
    }

    #[test]
    fn a_weight_stands_behind_the_policy() {
        let parsed = |text| parse_weighted_policy(text).map(|(policy, w)| (policy.to_string(), w));
        assert_eq!(parsed("fixed:5/s"), Ok(("fixed:5/s".to_owned(), None)));
        assert_eq!(parsed("allow weight=7"), Ok(("unlimited".to_owned(), Some(7))));
        for wrong in ["block weight=0", "block weight=+1", "block 5", "block weight=", "block  "] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(parsed("block weight=9007199254740992").is_err());
    }

    #[test]
    fn network_of_the_api_in_another_spelling_is_refused() {
        let file = "[[limit]]\nname = 'a'\nmatch = 'a:{ip:ip}'\npolicy = 'fixed:5/s'\n\
                    overrides = [{ key = 'a:10.0.0.0/8', policy = 'block' }]\n";
        let mut limits = Limits::parse("l.toml", file.as_bytes()).expect("a good file");
        let policy = |text| (parse_policy(text).expect("a policy"), None);
        let rows = ["a:2001:0db8::/32", "a:2001:db8::/48", "a:192.0.2.0/24"];
        let rows = rows.map(|row| (row, policy("allow")));
        assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
        let check = |key: &str| limits.check_override(&limits.limits[0], key);
        let is_there = |text: &str| Err(format!("there is an override of it already: `{text}`"));
        for spelling in ["a:2001:db8::/32", "a:2001:DB8::/32", "a:2001:db8:0::/032"] {
            assert_eq!(check(spelling), is_there("a:2001:0db8::/32"), "{spelling}");
        }
        assert_eq!(check("a:2001:db8:0::/48"), is_there("a:2001:db8::/48"));
        // The same text replaces; other networks, and those of other origins, are others.
        for other in ["a:2001:0db8::/32", "a:2001:db8::/33", "a:192.0.2.0/25", "a:10.0.0.0/8"] {
            assert_eq!(check(other), Ok(()), "{other}");
        }
    }

    #[test]
    fn prefix_of_the_api_that_hides_a_network_is_refused() {
        let file = "[[limit]]\nname = 'a'\nmatch = 'a:{x}'\npolicy = 'fixed:5/s'\n\
                    overrides = [{ key = 'a:f:10.0.0.0/8', policy = 'block' }]\n";
        let mut limits = Limits::parse("l.toml", file.as_bytes()).expect("a good file");
        let policy = |text| (parse_policy(text).expect("a policy"), None);
        let check = |limits: &Limits, key: &str| limits.check_override(&limits.limits[0], key);
        let rows = ["a:l:10.0.0.0/8", "a:l:2001:db8::/32"].map(|row| (row, policy("block")));
        assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
        let hides = "it hides `a:l:10.0.0.0/8`: prefixes come before networks".to_owned();
        for prefix in ["a:l:*", "a:l*", "a:*", "*"] {
            assert_eq!(check(&limits, prefix), Err(hides.clone()), "{prefix}");
        }
        // Other literals, prefixes with a part of the address, and networks of other origins.
        for other in ["a:m:*", "a:l:1*", "a:l:10.*", "a:f:*", "a:l:10.0.0.1"] {
            assert_eq!(check(&limits, other), Ok(()), "{other}");
        }
        // A prefix that an earlier version accepted is replaced by its text, as any override.
        let rows = ["a:l:10.0.0.0/8", "a:l:*"].map(|row| (row, policy("block")));
        assert_eq!(limits.set_overrides("a", OverrideSource::Api, rows), []);
        assert_eq!(check(&limits, "a:l:*"), Ok(()));
        assert_eq!(check(&limits, "a:*"), Err(hides));
        let hidden = "it is hidden: `a:l:*` comes before networks".to_owned();
        assert_eq!(check(&limits, "a:l:10.0.0.0/8"), Err(hidden));
    }

    #[test]
    fn stored_network_that_cannot_match_leaves_the_others_in_force() {
        let mut limits = limits();
        let policy = |text| (parse_policy(text).expect("a policy"), None);
        let rows = ["a:::ffff:10.0.0.0/104", "a:10.0.0.0/8"].map(|row| (row, policy("block")));
        let left_out = limits.set_overrides("a", OverrideSource::Api, rows);
        let reason = "write it as IPv4: 10.0.0.0/8".to_owned();
        assert_eq!(left_out, [("a:::ffff:10.0.0.0/104".to_owned(), reason)]);
        assert_eq!(policy_of(&limits, "a:::ffff:10.0.0.1"), "block");
    }

    #[test]
    fn the_api_comes_before_inline_before_a_file() {
        let mut limits = limits();
        let policy = |text| (parse_policy(text).expect("a policy"), None);
        let rows = [("a:*", policy("fixed:9/s")), ("a:2", policy("block"))];
        assert_eq!(limits.set_overrides("a", OverrideSource::File, rows), []);
        assert_eq!(policy_of(&limits, "a:1"), "fixed:7/s,over");
        assert_eq!(policy_of(&limits, "a:2"), "block");
        assert_eq!(policy_of(&limits, "a:3"), "fixed:9/s,over");
        let before = limits.clone();
        let rows = [("a:1", policy("allow")), ("b:1", policy("block")), ("a:1", policy("block"))];
        let left_out = limits.set_overrides("a", OverrideSource::Api, rows);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert_eq!(policy_of(&limits, "a:1"), "unlimited");
        // A copy keeps its own table.
        assert_eq!(policy_of(&before, "a:1"), "fixed:7/s,over");
        assert_eq!(limits.set_overrides("a", OverrideSource::Api, []), []);
        assert_eq!(policy_of(&limits, "a:1"), "fixed:7/s,over");
        assert_eq!(limits.by_name(b"a").expect("a limit").override_count(), 3);
        assert_eq!(limits.set_overrides("c", OverrideSource::Api, []), [], "no such limit");
    }
}
