//! Fields that a limits file does not have, and the field that is meant.
//!
//! Not here: reading fields (`super`).

use protocol::is_near;

use super::super::LimitsError;
use super::File;

/// The fields at the top of a file.
pub(super) const TOP: [&str; 3] = ["limit", "exempt", "allow_empty"];

/// The fields of a limit.
pub(super) const OF_LIMIT: [&str; 20] = [
    "name",
    "match",
    "regex",
    "policy",
    "key",
    "parents",
    "weight",
    "overrides",
    "order",
    "overrides_file",
    "companions",
    "on_unavailable",
    "deny",
    "over",
    "shadow",
    "ban",
    "owner",
    "note",
    "disabled",
    "expires",
];

/// The fields of an override.
pub(super) const OF_OVERRIDE: [&str; 4] = ["key", "where", "policy", "weight"];

/// The fields of a parent.
pub(super) const OF_PARENT: [&str; 3] = ["key", "cost", "hold"];

/// The fields of a ban.
pub(crate) const OF_BAN: [&str; 4] = ["refusals", "within", "for", "max"];

/// Words that people write, and the form that is meant.
const MEANT: [(&str, &str); 18] = [
    ("limits", "`[[limit]]`"),
    ("rule", "`[[limit]]`"),
    ("rules", "`[[limit]]`"),
    ("pattern", "`match`"),
    ("id", "`name`"),
    ("rate", "`policy = \"bucket:100/60s\"`"),
    ("limit", "`policy = \"bucket:100/60s\"`"),
    ("burst", "`policy = \"bucket:100/60s,capacity=200\"`"),
    ("capacity", "`policy = \"bucket:100/60s,capacity=200\"`"),
    ("window", "`policy = \"sliding:100/60s\"`"),
    ("parent", "`parents`"),
    ("description", "`note`"),
    ("enabled", "`disabled`"),
    ("captures", "`where`"),
    ("exemptions", "`exempt`"),
    ("allowlist", "`exempt`"),
    ("whitelist", "`exempt`"),
    ("ignore", "`exempt`"),
];

impl File<'_> {
    /// Makes the error against a field that is not one of `known`: the one that is meant, and all.
    pub(crate) fn unknown(&self, line: usize, field: &str, known: &[&str]) -> LimitsError {
        let meant =
            MEANT.iter().find(|(word, _)| *word == field).map(|(_, meant)| (*meant).to_owned());
        let near = || {
            let near = known.iter().find(|known| is_near(field.as_bytes(), known.as_bytes()));
            near.map(|known| format!("`{known}`"))
        };
        let meant =
            meant.or_else(near).map_or_else(String::new, |meant| format!("write {meant}; "));
        let known = known.join(", ");
        self.refuse(line, format!("unknown field `{field}`: {meant}the fields are {known}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Limits;
    use super::*;

    fn refusal(text: &str) -> String {
        Limits::parse("l.toml", text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn an_unknown_field_gets_the_one_that_is_meant() {
        for (text, expected) in [
            (
                "[[limits]]\n",
                "l.toml:1: unknown field `limits`: write `[[limit]]`; the fields are limit, exempt, allow_empty",
            ),
            (
                "[[limit]]\npolcy = 1\n",
                "l.toml:2: unknown field `polcy`: write `policy`; the fields are name, ",
            ),
            (
                "[[limit]]\nburst = 1\n",
                "l.toml:2: unknown field `burst`: write `policy = \"bucket:100/60s,capacity=200\"`; ",
            ),
            ("[[limit]]\ncolour = 1\n", "l.toml:2: unknown field `colour`: the fields are name, "),
            (
                "[[limit]]\noverrides = [{ ky = 1 }]",
                "l.toml:2: unknown field `ky`: write `key`; the fields are key, where, policy",
            ),
        ] {
            let refusal = refusal(text);
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }

    #[test]
    fn every_listed_field_is_known() {
        for (fields, front, end) in [
            (&TOP[..], "", ""),
            (&OF_LIMIT[..], "[[limit]]\n", ""),
            (&OF_OVERRIDE[..], "[[limit]]\noverrides = [{ ", " }]"),
        ] {
            for field in fields {
                let refusal = refusal(&format!("{front}{field} = 1{end}\n"));
                assert!(!refusal.contains("unknown field"), "{refusal}");
            }
        }
    }
}
