//! The parts of a limit that nodes of earlier versions cannot read.
//!
//! Here: naming the first such part, so that no limit with one is put while such nodes are in the
//! cluster. Not here: the version of the cluster (`node::updates`), refusing the change
//! (`node::limits`, `limits::service`).

use super::super::charge_cost::ParentRule;
use super::super::file::{Draft, File};
use super::{LimitText, one_draft};

/// Returns the first part of a limit that a node cannot read before feature version
/// [`LIMITS_VERSION`](cluster::map::LIMITS_VERSION), in words for an operator; `None`: every node
/// reads the limit.
#[must_use]
pub fn new_part(text: &LimitText) -> Option<&'static str> {
    let toml = text.toml.as_bytes();
    // A text with a mistake is refused elsewhere.
    let draft = one_draft(&File::new("", toml), &text.name, toml).ok()?;
    new_charge(&draft)
}

/// A weight, or a rule of a parent.
fn new_charge(draft: &Draft) -> Option<&'static str> {
    if draft.parents.iter().any(|parent| parent.rule != ParentRule::default()) {
        return Some("a parent with `cost` or `hold`");
    }
    let has_weight = draft.weight != 1 || draft.overrides.iter().any(|one| one.weight.is_some());
    has_weight.then_some("`weight`")
}

/// The reason against a limit with such a part.
#[must_use]
pub fn being_updated(name: &str, part: &str) -> String {
    format!(
        "the cluster is being updated: until no older node is in it, limit {name} cannot have {part}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_that_earlier_versions_cannot_read_are_named() {
        let limit = |more: &str| LimitText {
            name: "a".to_owned(),
            toml: format!("[[limit]]\nname='a'\nmatch='a:{{x}}'\npolicy='fixed:5/s'\n{more}\n"),
        };
        for (more, expected) in [
            ("weight = 1", None),
            ("parents = ['b', { key = 'c' }]", None),
            ("weight = 2", Some("`weight`")),
            ("parents = ['b', { key = 'c', cost = 0 }]", Some("a parent with `cost` or `hold`")),
            ("parents = [{ key = 'c', hold = '1s' }]", Some("a parent with `cost` or `hold`")),
            ("overrides = [{ key = 'a:1', policy = 'block', weight = 1 }]", Some("`weight`")),
        ] {
            assert_eq!(new_part(&limit(more)), expected, "{more}");
        }
    }
}
