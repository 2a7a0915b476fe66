//! The fields of a limit that lists and forms show.
//!
//! Not here: the limit in force (`super::super::Limit`).

use super::super::LimitsError;
use super::super::file::{Draft, File, PatternText};
use super::super::rules;
use super::one_draft;

/// The fields of a limit that lists and forms show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitSummary {
    /// The name.
    pub name: String,
    /// The `match` or `regex` as written.
    pub pattern: String,
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
}

impl LimitSummary {
    /// Returns the fields of the TOML of the limit `name`.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn of(name: &str, toml: &str) -> Result<Self, LimitsError> {
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
        let mut drafts = file.drafts(toml.as_bytes())?.limits;
        match drafts.pop() {
            Some(draft) if drafts.is_empty() => {
                rules::check_one(&file, &draft)?;
                Ok(Self::of_draft(draft))
            }
            _ => Err(file.refuse_at_start("it is not one `[[limit]]`")),
        }
    }

    fn of_draft(draft: Draft) -> Self {
        let (PatternText::Match(pattern) | PatternText::Regex(pattern)) = draft.pattern.value;
        Self {
            name: draft.name.value,
            pattern,
            policy: draft.policy.value.to_string(),
            shadow: draft.policy.value.shadow,
            owner: draft.about.owner,
            note: draft.about.note,
            disabled: draft.about.disabled,
            expires_ms: draft.about.expires.map(|(_, ms)| ms),
            parents: draft.parents.into_iter().map(|parent| parent.value).collect(),
        }
    }
}
