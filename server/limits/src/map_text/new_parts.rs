//! The parts of a limit that nodes of earlier versions cannot read.
//!
//! Here: naming the first such part, so that no limit with one is put while such nodes are in the
//! cluster. Not here: the version of the cluster, refusing the change (`server`).

use protocol::{Algorithm, Policy, Window, Zone};

use super::super::capture::{CaptureClass, REST};
use super::super::charge_cost::ParentRule;
use super::super::file::{Draft, File, PatternText};
use super::super::pattern::Glob;
use super::{EXEMPT, LimitText, one_draft};

/// Returns the first part of a limit that a node cannot read before feature version
/// [`LIMITS_VERSION`](cluster::map::LIMITS_VERSION), in words for an operator; `None`: every node
/// reads the limit.
#[must_use]
pub fn new_part(text: &LimitText) -> Option<&'static str> {
    if text.name == EXEMPT {
        return Some("`exempt`");
    }
    let toml = text.toml.as_bytes();
    // A text with a mistake is refused elsewhere.
    let draft = one_draft(&File::new("", toml), &text.name, toml).ok()?;
    new_pattern(&draft).or_else(|| new_field(&draft))
}

/// A field, or a form of it.
fn new_field(draft: &Draft) -> Option<&'static str> {
    if !draft.wheres.is_empty() {
        return Some("an override with `where`");
    }
    let mut policies = draft.policies();
    if let Some(policy) = policies.clone().find(|policy| policy.is_list()) {
        return Some(if policy.ban().is_some() { "a ban" } else { "a list of policies" });
    }
    if policies.any(has_named_zone) {
        return Some("a time zone by name");
    }
    if draft.weight != 1 || draft.overrides.iter().any(|one| one.weight.is_some()) {
        return Some("`weight`");
    }
    if draft.parents.iter().any(|parent| parent.rule != ParentRule::default()) {
        return Some("a parent with `cost` or `hold`");
    }
    (draft.order != 0).then_some("`order`")
}

/// Whether a policy has windows of a zone that is not an offset.
fn has_named_zone(policy: &Policy) -> bool {
    let Algorithm::Fixed { window, .. } = policy.algorithm else { return false };
    matches!(window, Window::Calendar { zone: Zone::Named(_), .. })
}

/// A class of a capture.
fn new_pattern(draft: &Draft) -> Option<&'static str> {
    let PatternText::Match(text) = &draft.pattern.value else { return None };
    let (glob, _) = Glob::parse(text).ok()?;
    if glob.steps.iter().any(|step| matches!(step.class, CaptureClass::Net(_))) {
        return Some("a capture of the class `ip/<bits>`");
    }
    // A `}` of a literal stands behind a `\\`.
    text.contains(&format!(":{REST}}}")).then_some("a capture of the class `any`")
}

/// The reason against a limit with such a part.
#[must_use]
pub fn being_updated(name: &str, part: &str) -> String {
    let of = if name == EXEMPT { "the limits".to_owned() } else { format!("limit {name}") };
    format!("the cluster is being updated: until no older node is in it, {of} cannot have {part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_earlier_versions_cannot_read_are_named() {
        let limit = |pattern: &str, more: &str| LimitText {
            name: "a".to_owned(),
            toml: format!("[[limit]]\nname='a'\nmatch='{pattern}'\npolicy='fixed:5/s'\n{more}\n"),
        };
        let overrides = |entry: &str| format!("overrides = [{{ {entry}, policy = 'block' }}]");
        let of_key = |policy: &str| format!("overrides = [{{ key = 'a:1', policy = {policy} }}]");
        for (pattern, more, expected) in [
            ("a:{x:ip}", "", None),
            (r"a:{x}:any\}", "", None),
            ("a:ip/64:{x}", "", None),
            ("a:{x}", "order = 0", None),
            ("a:{x}", &overrides("key = 'a:1'"), None),
            ("a:{x}", "order = -1", Some("`order`")),
            ("a:{x}", "weight = 1", None),
            ("a:{x}", "weight = 2", Some("`weight`")),
            ("a:{x}", &overrides("key = 'a:1', weight = 1"), Some("`weight`")),
            ("a:{x}", "parents = ['b']", None),
            (
                "a:{x}",
                "parents = [{ key = 'b', cost = 1 }]",
                Some("a parent with `cost` or `hold`"),
            ),
            ("a:{x}", &of_key("['fixed:1/m', 'fixed:9/h']"), Some("a list of policies")),
            ("a:{x}", "ban = { refusals = 3, within = '1m', for = '1h' }", Some("a ban")),
            ("a:{x}", &of_key("'fixed:1/d,align=calendar,tz=+8'"), None),
            (
                "a:{x}",
                &of_key("'fixed:1/d,align=calendar,tz=Europe/Berlin'"),
                Some("a time zone by name"),
            ),
            ("a:{x}", &overrides("where = { x = '1' }"), Some("an override with `where`")),
            ("a:{x:ip/64}", "", Some("a capture of the class `ip/<bits>`")),
            ("a:{x:any}", "", Some("a capture of the class `any`")),
        ] {
            assert_eq!(new_part(&limit(pattern, more)), expected, "{pattern} {more}");
        }
    }

    #[test]
    fn exemptions_are_new_for_all_limits() {
        let text = LimitText { name: EXEMPT.to_owned(), toml: "exempt = [\"a\"]\n".to_owned() };
        let part = new_part(&text).expect("earlier nodes do not read the record");
        let reason = being_updated(EXEMPT, part);
        assert!(reason.ends_with("is in it, the limits cannot have `exempt`"), "{reason}");
    }
}
