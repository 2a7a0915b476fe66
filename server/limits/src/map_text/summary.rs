//! The fields of a limit that lists and forms show.
//!
//! Not here: the limit in force (`super::super::Limit`).

use std::sync::Arc;

use super::super::LimitsError;
use super::super::file::{Draft, Drafts, File, PatternText};
use super::super::pattern::{Glob, Pattern};
use super::super::regex::Regex;
use super::super::rules;
use super::{EXEMPT, one_draft};

/// The fields of a limit that lists and forms show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitSummary {
    /// The name.
    pub name: String,
    /// The `match` or `regex` as written.
    pub pattern: String,
    /// The bytes that every matching key begins with, as far as they are UTF-8; empty if the
    /// pattern has a mistake.
    pub literal_front: String,
    /// The policy in canonical form.
    pub policy: String,
    /// Whether it only counts what it would deny.
    pub shadow: bool,
    /// The team that owns it.
    pub owner: Option<String>,
    /// Free text.
    pub note: Option<String>,
    /// Whether it is kept but not in force.
    pub disabled: bool,
    /// The end of its validity, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The parents' key templates as written.
    pub parents: Vec<String>,
    /// The path of the file with further overrides.
    pub overrides_file: Option<String>,
}

impl LimitSummary {
    /// Returns the fields of the TOML of the limit `name`.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn of(name: &str, toml: &str) -> Result<Self, LimitsError> {
        if name == EXEMPT {
            return Ok(Self { name: EXEMPT.to_owned(), ..Self::default() });
        }
        let title = format!("limit {name}");
        let file = File::new(&title, toml.as_bytes());
        one_draft(&file, name, toml.as_bytes()).map(Self::of_draft)
    }

    /// Returns the fields of the only limit of `toml`, which is checked by itself.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line; no limit, or several.
    pub fn check(toml: &str) -> Result<Self, LimitsError> {
        let file = File::new("limit", toml.as_bytes());
        let Drafts { limits: mut drafts, exempt, .. } = file.drafts(toml.as_bytes())?;
        match drafts.pop().filter(|_| exempt.is_empty()) {
            Some(draft) if drafts.is_empty() => {
                rules::check_one(&file, &draft)?;
                Ok(Self::of_draft(draft))
            }
            _ => Err(file.refuse_at_start("it is not one `[[limit]]`")),
        }
    }

    fn of_draft(draft: Draft) -> Self {
        let compiled = match &draft.pattern.value {
            PatternText::Match(text) => Glob::parse(text).map(|(glob, _)| Pattern::Glob(glob)),
            PatternText::Regex(text) => {
                Regex::parse(text).map(|(regex, _)| Pattern::Regex(Arc::new(regex)))
            }
        };
        let front = compiled.map(|pattern| pattern.prefix()).unwrap_or_default();
        let front = front.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let literal_front = front.to_owned();
        let (PatternText::Match(pattern) | PatternText::Regex(pattern)) = draft.pattern.value;
        Self {
            literal_front,
            name: draft.name.value,
            pattern,
            policy: draft.policy.value.to_string(),
            shadow: draft.policy.value.shadow,
            owner: draft.about.owner,
            note: draft.about.note,
            disabled: draft.about.disabled,
            expires_ms: draft.about.expires.map(|(_, ms)| ms),
            parents: draft.parents.into_iter().map(|parent| parent.key.value).collect(),
            overrides_file: draft.overrides_file.map(|path| path.value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_front_is_what_every_key_begins_with() {
        for (pattern, front) in [
            ("match = \"team-a:{x}\"", "team-a:"),
            ("match = \"{x}:b\"", ""),
            ("match = \"team-a:*\"", "team-a:"),
            ("regex = '^team-a:\\d+$'", "team-a:"),
            ("regex = '^(team-a:|.*)x$'", ""),
            ("regex = 'team-a:|.*'", ""),
        ] {
            let toml = format!("[[limit]]\nname = \"a\"\n{pattern}\npolicy = \"fixed:5/m\"\n");
            let summary = LimitSummary::of("a", &toml).expect("a good limit");
            assert_eq!(summary.literal_front, front, "{pattern}");
        }
    }
}
