//! `tollgate check-limits FILE`: lists a limits file, or reports why it is refused.
//!
//! Here: the list, and what an operator should know about a good file. Not here: the limit of a key
//! (`explain`), the command line (`server/cli`).

use std::fmt::Write as _;
use std::path::Path;

use engine::algorithms::{Attempt, Decision, Verdict, take};
use engine::{Nanos, Now};
use protocol::{Algorithm, Policy, duration_text};

use super::{Limit, Limits, LimitsError, OverrideSource, ParentRule};

/// Most overrides of a limit that are listed or compared.
const OVERRIDES_SHOWN_MAX: usize = 1_000;

/// Most exemptions that are listed.
const EXEMPTIONS_SHOWN_MAX: usize = 100;

/// The decision on a key that was not used before.
fn first_decision(policy: &Policy, cost: u64) -> Decision {
    let now = Now { mono: Nanos(0), unix_ms: 0 };
    take(policy, &mut Vec::new(), now, &Attempt { cost, ..Attempt::default() })
}

/// The verdict on an attempt of `cost` units on a key that was not used before, in words.
#[must_use]
pub fn first_verdict(policy: &Policy, cost: u64) -> String {
    let decision = first_decision(policy, cost);
    match (decision.verdict, decision.retry) {
        (Verdict::Deny, None) => format!("never passes, the limit is {}", decision.limit),
        (Verdict::Deny, Some(_)) => format!("is refused at first, the limit is {}", decision.limit),
        _ => format!("passes, then {} of {} are left", decision.left(), decision.limit),
    }
}

/// Parses the file as the server would, with the files of overrides that it names. Returns the
/// limits and warnings.
///
/// # Errors
///
/// The file is refused or unreadable.
pub fn check_file(path: &Path) -> Result<(Limits, Vec<String>), LimitsError> {
    let limits = Limits::load(path)?;
    let mut warnings: Vec<String> = limits.warning(path).into_iter().collect();
    warnings.extend(limits.iter().flat_map(larger_overrides));
    warnings.extend(limits.iter().filter_map(unclear_address));
    Ok((limits, warnings))
}

impl Limit {
    /// The overrides that are written in the limit, as texts, policies and weights: those by key
    /// first.
    pub fn written_overrides(&self) -> impl Iterator<Item = (&str, &Policy, Option<u64>)> {
        self.override_rows(OverrideSource::Inline, "").chain(self.where_rows())
    }
}

/// Warnings of overrides that are larger than their limit.
fn larger_overrides(limit: &Limit) -> Vec<String> {
    let of_limit = first_decision(limit.policy(), 0).limit;
    let rows = limit.written_overrides().chain(limit.override_rows(OverrideSource::File, ""));
    let rows = rows.take(OVERRIDES_SHOWN_MAX).filter_map(|(text, policy, _)| {
        let own = first_decision(policy, 0).limit;
        (policy.algorithm != Algorithm::Unlimited && own > of_limit).then_some((text, own))
    });
    let mut rows: Vec<(&str, u64)> = rows.collect();
    let count = rows.len();
    rows.truncate(1);
    let warning = rows.into_iter().map(|(text, own)| {
        let others = if count > 1 { format!(", and {} more", count - 1) } else { String::new() };
        format!(
            "limit {}: its override `{text}` allows {own}, more than {of_limit}{others}: a plain \
             client compares the answer of incr with one number, so give it the larger one, or let \
             it use take",
            limit.name()
        )
    });
    warning.collect()
}

/// A warning of an address of which a part may become the capture behind it.
fn unclear_address(limit: &Limit) -> Option<String> {
    let name = limit.capture_before(b':')?;
    Some(format!(
        "limit {}: `:` ends `{{{name}:ip}}`, and IPv6 addresses have it too: who chooses an address \
         can move a part of it into the capture behind it, so write `{{{name}:ip/128}}`, or another \
         byte than `:`",
        limit.name()
    ))
}

/// Formats one line per limit: three columns (name, pattern, canonical policy), the first two
/// padded, and the file of overrides. Exemptions come first. Lines for order, key, weight, parents
/// and overrides follow.
#[must_use]
pub fn listing(limits: &Limits) -> String {
    let width = |column: fn(&Limit) -> &str| {
        limits.iter().map(|limit| column(limit).chars().count()).max().unwrap_or_default()
    };
    let (names, patterns) = (width(Limit::name), width(Limit::pattern));
    let mut out = String::new();
    for entry in limits.exemptions().take(EXEMPTIONS_SHOWN_MAX) {
        writeln!(out, "exempt  {entry}").expect("writing to a String cannot fail");
    }
    let more = limits.exemptions().count().saturating_sub(EXEMPTIONS_SHOWN_MAX);
    if more > 0 {
        writeln!(out, "exempt  {more} more").expect("writing to a String cannot fail");
    }
    for limit in limits {
        let (name, pattern, policy) = (limit.name(), limit.pattern(), limit.policy());
        write!(out, "{name:names$}  {pattern:patterns$}  {policy}")
            .expect("writing to a String cannot fail");
        if let Some(path) = limit.overrides_file() {
            let count = limit.override_table_len(OverrideSource::File);
            write!(out, "  {count} overrides in {path}").expect("writing to a String cannot fail");
        }
        out.push('\n');
        for (word, text) in details(limit) {
            writeln!(out, "    {word:<8}  {text}").expect("writing to a String cannot fail");
        }
    }
    out
}

/// The further properties of a limit: a word for each, and its text.
fn details(limit: &Limit) -> Vec<(&'static str, String)> {
    let mut details = Vec::new();
    if limit.order() != 0 {
        details.push(("order", limit.order().to_string()));
    }
    details.extend(limit.key_text().map(|key| ("key", key)));
    if limit.weight() != 1 {
        details.push(("weight", limit.weight().to_string()));
    }
    let parents = limit.parent_texts().zip(limit.parent_rules());
    details.extend(parents.map(|(parent, ParentRule { cost, hold })| {
        let cost = cost.map_or_else(String::new, |cost| format!("  cost {cost}"));
        let hold = hold.map(|nanos| format!("  hold {}", duration_text(nanos)));
        ("parent", format!("{parent}{cost}{}", hold.unwrap_or_default()))
    }));
    let overrides = limit.written_overrides().take(OVERRIDES_SHOWN_MAX);
    details.extend(overrides.map(|(text, policy, weight)| {
        let weight = weight.map_or_else(String::new, |weight| format!("  weight {weight}"));
        ("override", format!("{text}  {policy}{weight}"))
    }));
    let count = limit.written_overrides().count();
    if count > OVERRIDES_SHOWN_MAX {
        details.push(("override", format!("{} more", count - OVERRIDES_SHOWN_MAX)));
    }
    details
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_limit() {
        let file = br#"
            [[limit]]
            name = "login"
            match = "login:{ip}"
            policy = "fixed:5/60s"
            [[limit]]
            name = "b"
            regex = '^b\d+$'
            policy = "unlimited"
            weight = 5
            parents = ["login:1", { key = "login:2", cost = 1, hold = "120s" }]
        "#;
        let limits = Limits::parse("limits.toml", file).expect("a good file");
        let expected = "login  login:{ip}  fixed:5/m\nb      ^b\\d+$      unlimited\n    \
                        weight    5\n    parent    login:1\n    \
                        parent    login:2  cost 1  hold 2m\n";
        assert_eq!(listing(&limits), expected);
    }

    #[test]
    fn details_stand_below_their_limit() {
        let file = br#"
            [[limit]]
            name = "login"
            match = "login:{net:ip/64}:{user}"
            key = "l/{net}/{user}"
            policy = "fixed:5/60s"
            order = -2
            parents = ["all:{user}"]
            overrides = [
                { where = { user = ["root", "adm*"], net = "10.0.0.0/8" }, policy = "block" },
                { key = "l/10.0.0.1/ann", policy = "fixed:50/m" },
            ]
            [[limit]]
            name = "all"
            match = "all:{user}"
            policy = "fixed:50/m"
        "#;
        let limits = Limits::parse("limits.toml", file).expect("a good file");
        let expected = "login  login:{net:ip/64}:{user}  fixed:5/m\n    order     -2\n    key       \
            l/{net}/{user}\n    parent    all:{user}\n    override  l/10.0.0.1/ann  fixed:50/m\n    \
            override  where user = root | adm*, net = 10.0.0.0/8  block\n\
            all    all:{user}                fixed:50/m\n";
        assert_eq!(listing(&limits), expected);
        let warnings: Vec<String> = limits.iter().flat_map(larger_overrides).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let start = "limit login: its override `l/10.0.0.1/ann` allows 50, more than 5: a plain ";
        assert!(warnings[0].starts_with(start), "{warnings:?}");
    }

    #[test]
    fn an_address_that_ends_at_a_colon_is_warned_of() {
        for (pattern, warns) in [
            ("l:{a:ip}:{b}", true),
            ("l:{a:ip}:x", false),
            ("l:{a:ip}/{b}", false),
            ("l:{a:ip/128}:{b}", false),
            ("l:{a}:{b}", false),
            ("l:{b}:{a:ip}", false),
        ] {
            let text = format!("[[limit]]\nname='l'\nmatch='{pattern}'\npolicy='fixed:5/s'\n");
            let limits = Limits::parse("l.toml", text.as_bytes()).expect("a good file");
            let warning = limits.iter().find_map(unclear_address);
            assert_eq!(warning.is_some(), warns, "{pattern}");
        }
    }

    #[test]
    fn a_first_verdict_is_that_of_an_unused_key() {
        for (policy, cost, expected) in [
            ("fixed:5/m", 1, "passes, then 4 of 5 are left"),
            ("fixed:5/m", 6, "never passes, the limit is 5"),
            ("bucket:5/m,init=0", 1, "is refused at first, the limit is 5"),
            ("block", 1, "never passes, the limit is 0"),
        ] {
            let policy = Policy::parse(policy.as_bytes()).expect(policy);
            assert_eq!(first_verdict(&policy, cost), expected);
        }
    }
}
