//! Writes a limit in canonical form: drafts with the same meaning have the same text.
//!
//! Here: a draft → the TOML of one `[[limit]]`, without comments and defaults. Not here: parsing it
//! (`file`), comparing and storing the texts (`map_text`).

use std::fmt::Write as _;

use protocol::{Algorithm, Ban, Policy, duration_text};

use super::charge_cost::ParentRule;
use super::companion::Companion;
use super::file::{Draft, OverrideText, ParentText, PatternText};
use super::wheres::WhereText;
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

/// Writes an entry with `where` as a line.
fn one_where(entry: &WhereText) -> String {
    let captures = entry.captures.iter().map(|(name, values)| {
        let mut values: Vec<String> =
            values.iter().map(|value| Quoted(&value.value).to_string()).collect();
        let values = match &mut values[..] {
            [one] => std::mem::take(one),
            many => format!("[{}]", many.join(", ")),
        };
        format!("{} = {values}", Quoted(&name.value))
    });
    let captures = captures.collect::<Vec<String>>().join(", ");
    let (policy, weight) = (policy_text(&entry.policy), weight_of(entry.weight));
    format!("    {{ where = {{ {captures} }}, policy = {policy}{weight} }},\n")
}

/// The field of an override's weight.
fn weight_of(weight: Option<u64>) -> String {
    weight.map_or_else(String::new, |weight| format!(", weight = {weight}"))
}

/// A parent: its key, in a table if it has a rule.
fn parent(parent: &ParentText) -> String {
    let ParentRule { cost, hold } = parent.rule;
    let key = Quoted(&parent.key.value);
    if parent.rule == ParentRule::default() {
        return key.to_string();
    }
    let cost = cost.map_or_else(String::new, |cost| format!(", cost = {cost}"));
    let hold = hold.map(|nanos| format!(", hold = \"{}\"", duration_text(nanos)));
    format!("{{ key = {key}{cost}{} }}", hold.unwrap_or_default())
}

/// An override, in a line of its own.
fn one_override(one: &OverrideText) -> String {
    let (key, policy) = (Quoted(&one.key.value), policy_text(&one.policy));
    let weight = weight_of(one.weight);
    format!("    {{ key = {key}, policy = {policy}{weight} }},\n")
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

/// The value of `ban`.
fn ban_text(ban: &Ban) -> String {
    let [within, first, longest] = ban.durations();
    let (within, first, longest) = (Quoted(&within), Quoted(&first), Quoted(&longest));
    let times = format!("within = {within}, for = {first}, max = {longest}");
    format!("{{ refusals = {}, {times} }}", ban.refusals)
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
            field("ban", &ban_text(ban));
        }
        if let Some(key) = &self.key {
            field("key", &Quoted(&key.value));
        }
        let list = |words: Vec<String>| format!("[{}]", words.join(", "));
        if !self.parents.is_empty() {
            field("parents", &list(self.parents.iter().map(parent).collect()));
        }
        if self.weight != 1 {
            field("weight", &self.weight);
        }
        if !self.overrides.is_empty() || !self.wheres.is_empty() {
            let keys = self.overrides.iter().map(one_override);
            let wheres = self.wheres.iter().map(one_where);
            field("overrides", &format!("[\n{}]", keys.chain(wheres).collect::<String>()));
        }
        if self.order != 0 {
            field("order", &self.order);
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
        if self.policies().any(|policy| policy.algorithm == Algorithm::Block && policy.shadow) {
            // The text of such a policy cannot include `shadow`; only the limit's own `shadow` sets
            // it.
            field("shadow", &true);
        }
        text
    }
}
