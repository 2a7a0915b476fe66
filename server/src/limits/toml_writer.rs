//! Writes a limit in canonical form: drafts with the same meaning have the same text.
//!
//! Here: a draft → the TOML of one `[[limit]]`, without comments and defaults. Not here: parsing it
//! (`file`), comparing and storing the texts (`map_text`).

use std::fmt::Write as _;

use protocol::{Algorithm, Policy};

use super::companion::Companion;
use super::file::{Draft, PatternText};
use super::{Deny, OnUnavailable};

/// Text in quotes, as a basic string of TOML.
pub(super) struct Quoted<'t>(pub(super) &'t str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for letter in self.0.chars() {
            match letter {
                '"' | '\\' => write!(f, "\\{letter}")?,
                letter if letter.is_control() => write!(f, "\\u{:04X}", u32::from(letter))?,
                letter => f.write_char(letter)?,
            }
        }
        f.write_char('"')
    }
}

/// The word for `wanted`.
fn word<T: PartialEq>(all: &[(&'static str, T)], wanted: &T) -> &'static str {
    all.iter().find(|(_, meant)| meant == wanted).map_or("", |(word, _)| word)
}

/// The value of `policy`: one text, or a list of several.
fn policy_text(policy: &Policy) -> String {
    let texts: Vec<String> =
        policy.each().map(|policy| Quoted(&policy.to_string()).to_string()).collect();
    match &texts[..] {
        [text] => text.clone(),
        texts => format!("[{}]", texts.join(", ")),
    }
}

impl Draft {
    /// The limit as text. Parsing it gives an equal draft.
    pub(super) fn write(&self) -> String {
        let mut text = "[[limit]]\n".to_owned();
        let mut field = |name: &str, value: &dyn std::fmt::Display| {
            writeln!(text, "{name} = {value}").expect("a String takes every write");
        };
        field("name", &Quoted(&self.name.value));
        match &self.pattern.value {
            PatternText::Match(pattern) => field("match", &Quoted(pattern)),
            PatternText::Regex(pattern) => field("regex", &Quoted(pattern)),
        }
        field("policy", &policy_text(&self.policy.value));
        if let Some(ban) = self.policy.value.ban() {
            let [within, first, longest] = ban.durations();
            let (refusals, longest) = (ban.refusals, Quoted(&longest));
            let (within, first) = (Quoted(&within), Quoted(&first));
            let times = format!("within = {within}, for = {first}, max = {longest}");
            field("ban", &format!("{{ refusals = {refusals}, {times} }}"));
        }
        if let Some(key) = &self.key {
            field("key", &Quoted(&key.value));
        }
        let list = |words: Vec<String>| format!("[{}]", words.join(", "));
        if !self.parents.is_empty() {
            let parents = self.parents.iter().map(|at| Quoted(&at.value).to_string());
            field("parents", &list(parents.collect()));
        }
        if !self.overrides.is_empty() {
            let one = |key: &str, policy: &Policy| {
                let (key, policy) = (Quoted(key), policy_text(policy));
                format!("    {{ key = {key}, policy = {policy} }},\n")
            };
            let overrides = self.overrides.iter().map(|(key, policy)| one(&key.value, policy));
            field("overrides", &format!("[\n{}]", overrides.collect::<String>()));
        }
        if let Some(path) = &self.overrides_file {
            field("overrides_file", &Quoted(&path.value));
        }
        if !self.companions.is_empty() {
            let on = Companion::ALL.into_iter().filter(|one| self.companions.has(*one));
            field("companions", &list(on.map(|one| Quoted(one.suffix()).to_string()).collect()));
        }
        if let Some(on_unavailable) = &self.on_unavailable {
            field("on_unavailable", &Quoted(word(&OnUnavailable::ALL, on_unavailable)));
        }
        if self.deny != Deny::default() {
            field("deny", &Quoted(word(&Deny::ALL, &self.deny)));
        }
        let about = &self.about;
        let expires = about.expires.as_ref().map(|(text, _)| text);
        for (name, value) in
            [("owner", about.owner.as_ref()), ("note", about.note.as_ref()), ("expires", expires)]
        {
            if let Some(value) = value {
                field(name, &Quoted(value));
            }
        }
        if about.disabled {
            field("disabled", &true);
        }
        let mut policies =
            self.overrides.iter().map(|(_, policy)| policy).chain([&self.policy.value]);
        if policies.any(|policy| policy.algorithm == Algorithm::Block && policy.shadow) {
            // The text of such a policy cannot include `shadow`; only the limit's own `shadow` sets
            // it.
            field("shadow", &true);
        }
        text
    }
}
