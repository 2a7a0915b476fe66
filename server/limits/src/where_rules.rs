//! Checks overrides with `where`: each names captures of the limit, and some key can match it.
//!
//! Not here: the compiled entries (`wheres`), overrides by key (`counted_keys`), reading the file
//! (`file`).

use std::sync::Arc;

use protocol::KEY_BYTES_MAX;

use super::Limit;
use super::capture::{CaptureClass, ip};
use super::networks::Network;
use super::overrides::OverrideTable;
use super::pattern::Pattern;
use super::shape::Bytes;
use super::template::captured;
use super::wheres::{WHERES_MAX, WhereBuilder, WhereTable, WhereText, WhereValue};
use super::with_line::WithLine;

/// A mistake and its line.
pub(super) type WhereMistake = (usize, String);

/// Refuses an entry for a mistake of itself or of one of its values, or accepts that the entry or
/// the value is left out.
pub(super) type OnMistake<'m> = &'m dyn Fn(&WhereText, WhereMistake) -> Result<(), WhereMistake>;

/// A capture that `where` may name.
struct NamedCapture {
    name: String,
    /// The slot in the limit's pattern.
    slot: u8,
    class: CaptureClass,
    /// The bytes at its start, and the bytes after them.
    bytes: (Bytes, Bytes),
}

/// An entry that was checked, to be compared with those after it.
struct CheckedEntry {
    captures: Vec<(u8, Vec<WhereValue>)>,
}

impl CheckedEntry {
    /// Whether every key of `other` is one of this entry.
    fn covers(&self, other: &Self) -> bool {
        self.captures.iter().all(|(slot, own)| {
            let same = other.captures.iter().find(|(known, _)| known == slot);
            same.is_some_and(|(_, values)| {
                values.iter().all(|value| own.iter().any(|one| one.covers(value)))
            })
        })
    }
}

/// Checks and compiles the entries with `where` of a limit. `keys` are its overrides by key.
///
/// # Errors
///
/// The first mistake that `on_mistake` does not accept, and its line.
pub(super) fn compile(
    limit: &Limit,
    entries: &[WhereText],
    keys: Option<&OverrideTable>,
    on_mistake: OnMistake<'_>,
) -> Result<Option<Arc<WhereTable>>, WhereMistake> {
    let Some(first) = entries.first() else { return Ok(None) };
    if let Some(entry) = entries.get(WHERES_MAX) {
        return Err((entry.line, format!("a limit has at most {WHERES_MAX} entries with `where`")));
    }
    let (pattern, slots) = counted(limit).map_err(|reason| (first.line, reason))?;
    let front = pattern.prefix();
    if let Some(prefix) = keys.and_then(|keys| keys.prefix_of(&front)) {
        let reason = format!("it is hidden: `{prefix}` takes every key of the limit first");
        return Err((first.line, reason));
    }
    let named = captures_of(limit);
    let mut builder = WhereBuilder::new(pattern);
    let mut before: Vec<(CheckedEntry, &WhereText)> = Vec::new();
    for entry in entries {
        let Some(checked) = check_entry(&named, entry, on_mistake)? else { continue };
        match places(&checked, entry, &slots, &before) {
            Ok(captures) => {
                builder.push(entry.to_string(), captures, (entry.policy, entry.weight));
                before.push((checked, entry));
            }
            Err(reason) => on_mistake(entry, (entry.line, reason))?,
        }
    }
    Ok((!before.is_empty()).then(|| builder.build()))
}

/// Returns the values of an entry by their captures in the counted key. `before` are the entries
/// before it.
fn places(
    checked: &CheckedEntry,
    entry: &WhereText,
    slots: &[u8],
    before: &[(CheckedEntry, &WhereText)],
) -> Result<Vec<(u8, Vec<WhereValue>)>, String> {
    if let Some((_, earlier)) = before.iter().find(|(earlier, _)| earlier.covers(checked)) {
        return Err(format!("it is hidden: `{earlier}` comes first"));
    }
    let captures = checked.captures.iter().zip(&entry.captures);
    let placed = captures.map(|((slot, values), (name, _))| {
        let place = slots.iter().position(|own| own == slot).ok_or_else(|| {
            let name = &name.value;
            format!("`key` leaves `{{{name}}}` out: one counted key would have two policies")
        })?;
        Ok((place as u8, values.clone()))
    });
    placed.collect()
}

/// The pattern of the counted keys, and the slot in the limit's pattern of each of its captures.
fn counted(limit: &Limit) -> Result<(Pattern, Vec<u8>), String> {
    let Some(key) = &limit.key else {
        return Ok((limit.pattern.clone(), (0..=u8::MAX).collect()));
    };
    if matches!(limit.pattern, Pattern::Regex(_)) {
        return Err("a limit with `regex` and `key` has no `where`: use `match`".to_owned());
    }
    let slots = key.slots();
    let unclear = || {
        "`key` does not tell where each capture ends: write a byte between two captures that the \
         first one cannot have, such as `/`"
            .to_owned()
    };
    if !key.tells_captures(&limit.pattern) {
        return Err(unclear());
    }
    let glob = key.glob(&limit.pattern).ok_or_else(unclear)?;
    Ok((Pattern::Glob(glob), slots.unwrap_or_else(|| (0..=u8::MAX).collect())))
}

fn captures_of(limit: &Limit) -> Vec<NamedCapture> {
    let names = limit.pattern.capture_names(&limit.text);
    let captures = (0..).zip(names).map(|(slot, name)| match &limit.pattern {
        Pattern::Glob(glob) => {
            let class = glob.steps.iter().find(|step| step.slot == slot).map(|step| step.class);
            let class = class.unwrap_or(CaptureClass::Any);
            NamedCapture { name, slot, class, bytes: captured(glob, slot) }
        }
        Pattern::Regex(_) => {
            let any = Bytes::of(|_| true);
            NamedCapture { name, slot, class: CaptureClass::Any, bytes: (any, any) }
        }
    });
    captures.collect()
}

/// Checks the values of an entry. Returns `None` if a capture has only values that are left out.
fn check_entry(
    named: &[NamedCapture],
    entry: &WhereText,
    on_mistake: OnMistake<'_>,
) -> Result<Option<CheckedEntry>, WhereMistake> {
    let mut captures: Vec<(u8, Vec<WhereValue>)> = Vec::new();
    for (name, texts) in &entry.captures {
        let capture = named.iter().find(|capture| capture.name == name.value).ok_or_else(|| {
            let known: Vec<String> =
                named.iter().map(|capture| format!("{{{}}}", capture.name)).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            (name.line, format!("the pattern captures no `{{{}}}`, only {known}", name.value))
        })?;
        if texts.is_empty() {
            return Err((name.line, format!("`{}` names no value", name.value)));
        }
        let mut values: Vec<WhereValue> = Vec::new();
        for text in texts {
            let value = capture.value(text).and_then(|value| {
                let is_new = !values.iter().any(|before| before.covers(&value));
                is_new.then_some(value).ok_or_else(|| "a value before it has it already".to_owned())
            });
            match value {
                Ok(value) => values.push(value),
                Err(reason) => {
                    on_mistake(entry, (text.line, format!("`{}`: {reason}", text.value)))?;
                }
            }
        }
        if values.is_empty() {
            return Ok(None);
        }
        captures.push((capture.slot, values));
    }
    Ok(Some(CheckedEntry { captures }))
}

impl NamedCapture {
    /// Parses and checks a value.
    fn value(&self, WithLine { value: text, .. }: &WithLine<String>) -> Result<WhereValue, String> {
        let has_bad = text.bytes().any(|byte| byte <= b' ' || byte == 0x7f);
        if text.is_empty() || has_bad || text.len() > KEY_BYTES_MAX {
            return Err(format!(
                "a value has 1 to {KEY_BYTES_MAX} bytes, neither blanks nor control bytes"
            ));
        }
        if self.class.is_address() {
            return self.network(text).map(WhereValue::Network);
        }
        if text == "*" {
            return Err(format!("it is every key: leave `{}` out", self.name));
        }
        let (front, is_prefix) = match text.strip_suffix('*') {
            Some(front) => (front, true),
            None => (text.as_str(), false),
        };
        if front.contains('*') {
            return Err("`*` stands at the end only".to_owned());
        }
        if let Some((word, _)) = network_in(text) {
            return Err(format!(
                "`{word}` is a network, and `{}` captures {}: write `{{{}:ip}}` in the pattern",
                self.name,
                self.class.described(),
                self.name
            ));
        }
        let (first, rest) = self.bytes;
        let mut bytes = front.bytes();
        let fits = bytes.next().is_none_or(|byte| first.has(byte)) && bytes.all(|b| rest.has(b));
        if fits {
            let front = front.to_owned();
            return Ok(if is_prefix {
                WhereValue::Prefix(front)
            } else {
                WhereValue::Exact(front)
            });
        }
        if !front.bytes().all(|byte| self.class.has(byte)) {
            return Err(format!("`{}` captures {} only", self.name, self.class.described()));
        }
        Err(format!("`{}` ends before such a text does", self.name))
    }

    /// Parses a network, or an address as the network of itself.
    fn network(&self, text: &str) -> Result<Network, String> {
        let network = match (Network::parse(text), ip(text.as_bytes())) {
            (Some(network), _) => network,
            (None, Some(address)) => Network::of_one(address),
            (None, None) => return Err(self.no_network(text)),
        };
        network.check()?;
        match self.class {
            CaptureClass::Net(bits) if network.address.is_ipv6() && network.bits > bits => {
                let whole = Network { bits, ..network }.whole();
                Err(format!("`{}` is counted by networks of {bits} bits: write {whole}", self.name))
            }
            _ => Ok(network),
        }
    }

    fn no_network(&self, text: &str) -> String {
        if let Some((word, _)) = network_in(text) {
            return bad_prefix(word);
        }
        if text.contains('*') {
            return format!("`{}` captures addresses: write a network, 10.0.0.0/8", self.name);
        }
        format!("`{}` captures addresses, and this is neither address nor network", self.name)
    }
}

/// The reason against a text that looks like a network.
pub(super) fn bad_prefix(word: &str) -> String {
    let most = if word.contains(':') { 128 } else { 32 };
    format!("`{word}` is no network: an address, `/`, and 0 to {most} bits")
}

/// The first part of a text that looks like a network, and whether it ends the text.
pub(super) fn network_in(text: &str) -> Option<(&str, bool)> {
    let slashes = text.bytes().enumerate().filter(|(_, byte)| *byte == b'/');
    slashes.map(|(at, _)| at).find_map(|at| {
        let digits = text[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let end = at + 1 + digits;
        let run = text[..at].bytes().rev().take_while(|byte| CaptureClass::Ip.has(*byte)).count();
        let start = (at - run..at).find(|start| is_like_address(&text[*start..at]))?;
        (digits > 0).then(|| (&text[start..end], end == text.len()))
    })
}

/// Whether `text` is an address, or one of IPv4 whose numbers are too large.
fn is_like_address(text: &str) -> bool {
    let is_number = |part: &str| {
        (1..=3).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit())
    };
    ip(text.as_bytes()).is_some() || text.split('.').count() == 4 && text.split('.').all(is_number)
}
