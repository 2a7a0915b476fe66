//! The fields of a limit that lists and forms show.
//!
//! Not here: the limit in force (`super::super::Limit`).

use std::sync::Arc;

use super::super::LimitsError;
use super::super::file::{Draft, Drafts, File, PatternText};
use super::super::pattern::{Glob, Pattern};
use super::super::regex::Regex;
use super::super::rules;
use super::super::template::Template;
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
    /// The same of its counted keys.
    pub counted_front: String,
    /// The same of each parent's keys, as a client would write them.
    pub parent_fronts: Vec<String>,
    /// Whether a template names its counted keys.
    pub has_own_keys: bool,
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
        let literal_front = valid_front(&front);
        let counted_front = match &draft.key {
            Some(key) => valid_front(&Template::literal_front(&key.value)),
            None => literal_front.clone(),
        };
        let parents: Vec<String> =
            draft.parents.into_iter().map(|parent| parent.key.value).collect();
        let parent_fronts = parents.iter().map(|parent| Template::literal_front(parent));
        let (PatternText::Match(pattern) | PatternText::Regex(pattern)) = draft.pattern.value;
        Self {
            literal_front,
            counted_front,
            has_own_keys: draft.key.is_some(),
            parent_fronts: parent_fronts.map(|front| valid_front(&front)).collect(),
            name: draft.name.value,
            pattern,
            policy: draft.policy.value.to_string(),
            shadow: draft.policy.value.shadow,
            owner: draft.about.owner,
            note: draft.about.note,
            disabled: draft.about.disabled,
            expires_ms: draft.about.expires.map(|(_, ms)| ms),
            parents,
            overrides_file: draft.overrides_file.map(|path| path.value),
        }
    }
}

/// The beginning of `bytes` that is UTF-8.
fn valid_front(bytes: &[u8]) -> String {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid()).to_owned()
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
    #[test]
    fn fronts_of_templates_end_at_their_captures() {
        for (fields, counted, parents) in [
            ("", "team-a:", &[][..]),
            ("key = 'team-b:{x}'\n", "team-b:", &[]),
            ("key = '{x}:team-a:'\n", "", &[]),
            (r"key = 'team\-a:\{x\}:{x}'", "team-a:{x}:", &[]),
            ("key = 'all'\n", "all", &[]),
            ("parents = ['team-b:{x}', { key = '{x}', cost = 1 }]\n", "team-a:", &["team-b:", ""]),
        ] {
            let toml = format!(
                "[[limit]]\nname = \"a\"\nmatch = \"team-a:{{x}}\"\npolicy = \"fixed:5/m\"\n{fields}"
            );
            let summary = LimitSummary::of("a", &toml).expect("a good limit");
            assert_eq!(summary.counted_front, counted, "{fields}");
            assert_eq!(summary.parent_fronts, parents, "{fields}");
        }
    }
}
