//! Drafts → [`Limits`]: the rules between the fields of a limit and between limits.
//!
//! Here: first each limit alone (pattern, templates), then each against the others: it is
//! reachable, its overrides can match, its parents exist and have no cycle. The first mistake
//! refuses the file. Not here: the fields (`file`), the key of an override (`counted_keys`).

use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

use hashbrown::HashMap;
use protocol::{Algorithm, KEY_BYTES_MAX};

use super::capture::{CaptureClass, ip};
use super::charge_cost::Charging;
use super::error::BadOverrides;
use super::exempt::slot_of_address;
use super::file::{Draft, File, PatternText};
use super::index::PatternIndex;
use super::overrides_file;
use super::pattern::{Captures, Glob, Pattern};
use super::regex::Regex;
use super::shape::Shape;
use super::template::Template;
use super::with_line::WithLine;
use super::{Companions, Limit, Limits, LimitsError, PARENTS_MAX, TEXT_BYTES_MAX};

mod override_rules;
mod parent_rules;

/// Texts of captures for sample keys. The texts of every class belong to `Any` too.
const SAMPLES: [&str; 4] = ["q", "7", "192.0.2.1", "2001:db8::1"];

/// Above the number of lines of any file. Lines of texts that are parsed one by one are numbered
/// from here.
pub(super) const LINES_MAX: usize = 1 << 32;

/// Checks a draft without the other limits.
pub(super) fn check_one(file: &File<'_>, draft: &Draft) -> Result<(), LimitsError> {
    compile_one(file, 0, draft)?;
    check_length(file, draft)
}

/// Checks that a cluster's map has room for the draft. A server without a cluster applies the same
/// check, so that one file is valid on every server.
pub(super) fn check_length(file: &File<'_>, draft: &Draft) -> Result<(), LimitsError> {
    let bytes = draft.write().len();
    if bytes <= TEXT_BYTES_MAX {
        return Ok(());
    }
    let reason = format!(
        "the limit has {bytes} bytes without its comments, and may have {TEXT_BYTES_MAX}: \
         divide it into several limits"
    );
    Err(file.refuse(draft.line, reason))
}

/// Checks and compiles all drafts.
pub(super) fn compile(
    file: &File<'_>,
    drafts: &[Draft],
    bad_overrides: BadOverrides,
) -> Result<Limits, LimitsError> {
    let mut lines = HashMap::<&str, usize>::new();
    let mut names = HashMap::<Box<[u8]>, u32>::new();
    let mut limits = Vec::with_capacity(drafts.len());
    let mut enabled = Vec::with_capacity(drafts.len());
    let mut files = 0;
    let mut in_order: Vec<&Draft> = drafts.iter().collect();
    in_order.sort_by_key(|draft| draft.order);
    for draft in in_order {
        let index = limits.len() as u32;
        let limit = compile_one(file, index, draft)?;
        file.take_name(&mut lines, draft)?;
        if draft.about.disabled {
            continue;
        }
        if let Some(at) = &draft.overrides_file {
            files += 1;
            overrides_file::check_count(files).map_err(|reason| file.refuse(at.line, reason))?;
        }
        names.insert(limit.name.as_bytes().into(), index);
        limits.push(limit);
        enabled.push(draft);
    }
    let drafts = &enabled[..];
    let index = PatternIndex::new(limits.iter().map(Limit::indexed_pattern));
    let fallback = limits.iter().find(|limit| limit.is_fallback).map(|limit| limit.index);
    let companions = limits.iter().map(|limit| limit.companions);
    let companions = companions.fold(Companions::default(), Companions::or);
    let names = Arc::new(names);
    let direct_bytes = KEY_BYTES_MAX;
    let mut limits =
        Limits { limits, names, index, fallback, companions, direct_bytes, ..Limits::default() };
    let left_out = Cell::new(0);
    let checks = Checks { file, limits: &limits, drafts, bad_overrides, left_out: &left_out };
    checks.reached()?;
    let overrides: Vec<_> =
        (0..drafts.len()).map(|at| checks.overrides(at)).collect::<Result<_, _>>()?;
    let parents = checks.parents()?;
    parent_rules::leave_out(&mut limits.limits, parents);
    let checks = Checks { file, limits: &limits, drafts, bad_overrides, left_out: &left_out };
    let parents = checks.ancestors()?;
    parent_rules::leave_out(&mut limits.limits, parents);
    limits.left_out = left_out.get();
    for (limit, overrides) in limits.limits.iter_mut().zip(overrides) {
        limit.overrides = overrides;
        limit.note_charges();
    }
    Ok(limits)
}

/// Compiles a draft in place of the limit of its name, or behind all others, and checks its
/// overrides with the other limits. Parents are not checked: a parent that matches no limit is not
/// charged.
pub(super) fn compile_in_place(
    file: &File<'_>,
    draft: &Draft,
    others: &Limits,
) -> Result<Limits, LimitsError> {
    let mut all: Vec<Limit> = others.limits.clone();
    let present = others.names.get(draft.name.value.as_bytes()).copied();
    let limit = compile_one(file, 0, draft)?;
    match present.and_then(|place| all.get_mut(place as usize)) {
        Some(present) => *present = limit,
        None => all.push(limit),
    }
    all.sort_by_key(|limit| limit.order);
    let mut names = HashMap::<Box<[u8]>, u32>::with_capacity(all.len());
    for (place, limit) in (0..).zip(&mut all) {
        limit.index = place;
        names.insert(limit.name.as_bytes().into(), place);
    }
    let index = names.get(draft.name.value.as_bytes()).copied().unwrap_or(0);
    let mut limits = Limits {
        index: PatternIndex::new(all.iter().map(Limit::indexed_pattern)),
        fallback: all.iter().find(|limit| limit.is_fallback).map(|limit| limit.index),
        names: Arc::new(names),
        companions: all
            .iter()
            .map(|limit| limit.companions)
            .fold(Companions::default(), Companions::or),
        limits: all,
        direct_bytes: KEY_BYTES_MAX,
        exemptions: others.exemptions.clone(),
        allow_empty: others.allow_empty,
        left_out: others.left_out,
    };
    let drafts = vec![draft; limits.limits.len()];
    let bad_overrides = BadOverrides::Refused;
    let left_out = &Cell::new(0);
    let checks = Checks { file, limits: &limits, drafts: &drafts, bad_overrides, left_out };
    let overrides = checks.overrides(index as usize)?;
    limits.limits[index as usize].overrides = overrides;
    limits.limits[index as usize].note_charges();
    // Those of the API stay with the name of the limit.
    if let Some(present) = present {
        limits.keep_api_overrides(index as usize, &others.limits[present as usize]);
    }
    limits.read_override_files(others)?;
    limits.apply_exemptions();
    Ok(limits)
}

/// Whether a limit is for keys that no other limit matches, and has nothing that a request sees.
fn is_fallback(draft: &Draft) -> bool {
    matches!(&draft.pattern.value, PatternText::Match(text) if text == "*")
        && draft.policy.value.algorithm == Algorithm::Unlimited
        && draft.key.is_none()
        && draft.parents.is_empty()
        && draft.overrides.is_empty()
        && draft.wheres.is_empty()
        && draft.overrides_file.is_none()
        && draft.companions.is_empty()
}

/// Compiles and checks a draft without the other limits.
fn compile_one(file: &File<'_>, index: u32, draft: &Draft) -> Result<Limit, LimitsError> {
    let name = &draft.name.value;
    if !(1..=KEY_BYTES_MAX).contains(&name.len()) || !name.bytes().all(|b| b.is_ascii_graphic()) {
        let reason = "a name is 1 to 250 visible ASCII characters without blanks";
        return Err(file.refuse(draft.name.line, reason));
    }
    if name.starts_with('@') {
        return Err(file.refuse(draft.name.line, "a name does not begin with `@`"));
    }
    let (text, compiled) = match &draft.pattern.value {
        PatternText::Match(text) => {
            (text, Glob::parse(text).map(|(glob, names)| (Pattern::Glob(glob), names)))
        }
        PatternText::Regex(text) => (
            text,
            Regex::parse(text).map(|(regex, names)| (Pattern::Regex(Arc::new(regex)), names)),
        ),
    };
    let wrong = |at: &WithLine<String>, reason: String| {
        file.refuse(at.line, format!("`{}`: {reason}", at.value))
    };
    let (pattern, names) = compiled
        .map_err(|reason| file.refuse(draft.pattern.line, format!("`{text}`: {reason}")))?;
    if pattern.least() > KEY_BYTES_MAX {
        let reason = format!("no key matches it: a key has 1 to {KEY_BYTES_MAX} bytes");
        return Err(file.refuse(draft.pattern.line, format!("`{text}`: {reason}")));
    }
    let template = |at: &WithLine<String>| {
        Template::parse(&at.value, &names, &pattern).map_err(|reason| wrong(at, reason))
    };
    let key = draft.key.as_ref().map(template).transpose()?;
    let key = key.or_else(|| Template::of_networks(&pattern));
    let parents = draft.parents.iter().map(|parent| template(&parent.key));
    let parents = parents.collect::<Result<Vec<_>, _>>()?;
    if let Some(at) = draft.parents.get(PARENTS_MAX) {
        return Err(wrong(&at.key, format!("a limit has at most {PARENTS_MAX} parents")));
    }
    for (number, parent) in parents.iter().enumerate() {
        if parents[..number].contains(parent) {
            return Err(wrong(&draft.parents[number].key, "it is a parent already".into()));
        }
    }
    Ok(Limit {
        index,
        name: name.as_str().into(),
        text: text.as_str().into(),
        pattern,
        policy: draft.policy.value,
        key,
        charges_more: !parents.is_empty() || draft.weight != 1,
        is_simple: parents.is_empty() && draft.weight == 1 && !draft.policy.value.is_list(),
        parents,
        charging: Charging {
            weight: draft.weight,
            rules: draft.parents.iter().map(|parent| parent.rule).collect(),
        },
        overrides: None,
        overrides_file: draft.overrides_file.as_ref().map(|at| at.value.as_str().into()),
        companions: draft.companions,
        on_unavailable: draft.on_unavailable,
        deny: draft.deny,
        order: draft.order,
        is_fallback: is_fallback(draft),
        ip_slot: slot_of_address(&names),
    })
}

struct Checks<'c> {
    file: &'c File<'c>,
    /// Overrides are not set yet; no check needs them.
    limits: &'c Limits,
    drafts: &'c [&'c Draft],
    bad_overrides: BadOverrides,
    /// The number of overrides and parents that were left out.
    left_out: &'c Cell<usize>,
}

impl Checks<'_> {
    /// Whether a part of a limit that has no effect is left out: in limits that are stored
    /// already. It is counted, with a warning.
    fn leaves_out(&self, limit: &Limit, part: &dyn Display, reason: &str) -> bool {
        let is_stored = self.bad_overrides == BadOverrides::LeftOut;
        if is_stored {
            self.left_out.update(|count| count + 1);
            tracing::warn!(limit = limit.name(), %part, reason, "a part of the limit has no effect");
        }
        is_stored
    }

    fn name(&self, index: usize) -> String {
        let (name, line) = (&self.limits.limits[index].name, self.drafts[index].line);
        if line > LINES_MAX {
            // One of several texts: the name identifies it.
            return format!("`{name}`");
        }
        format!("`{name}` of line {line}")
    }

    /// Refuses a limit if all of its keys match an earlier limit.
    fn reached(&self) -> Result<(), LimitsError> {
        // Patterns that match every key with a prefix and a minimum length.
        let mut open = HashMap::<Vec<u8>, (usize, usize)>::new();
        let mut regexes = HashMap::<&str, usize>::new();
        let mut fallback = None;
        for (index, limit) in self.limits.limits.iter().enumerate() {
            let by = match &limit.pattern {
                Pattern::Glob(_) if limit.is_fallback => fallback.replace(index),
                Pattern::Glob(glob) => self.covered(index, glob),
                Pattern::Regex(regex) => {
                    let twin = regexes.insert(regex.text(), index);
                    let prefix = regex.prefix();
                    twin.or_else(|| {
                        (0..=prefix.len())
                            .filter_map(|len| open.get(&prefix[..len]))
                            .find_map(|(by, least)| (*least <= regex.least()).then_some(*by))
                    })
                }
            };
            if let Some(by) = by {
                let name = self.name(by);
                let reason = format!("never reached: {name} takes all its keys");
                return Err(self.file.refuse(self.drafts[index].pattern.line, reason));
            }
            if !limit.is_fallback
                && let Pattern::Glob(Glob { steps, .. }) = &limit.pattern
                && let [step] = &steps[..]
                && step.takes_the_rest()
            {
                let least = limit.pattern.least();
                open.entry(limit.pattern.prefix()).or_insert((index, least));
            }
        }
        Ok(())
    }

    /// Finds an earlier limit that matches every key of this pattern.
    fn covered(&self, index: usize, glob: &Glob) -> Option<usize> {
        // A limit that matches every key matches this one. Usually no other limit does, and the
        // search ends.
        let sample = sample(glob, SAMPLES[0])?;
        let mut earlier = Vec::new();
        self.limits.index.candidates(&sample, |list| {
            let list = list.iter().map(|candidate| candidate.limit as usize);
            earlier.extend(list.take_while(|other| *other < index));
        });
        if earlier.is_empty() {
            return None;
        }
        earlier.sort_unstable();
        earlier.dedup();
        let own = Shape::of_glob(glob);
        earlier.into_iter().find(|other| {
            let pattern = &self.limits.limits[*other].pattern;
            pattern.matches(&sample, &mut Captures::default())
                && matches!(pattern, Pattern::Glob(other) if Shape::of_glob(other).covers(&own))
        })
    }
}

/// `text` if a capture of this class accepts it, else another text of the class.
fn fitting(class: CaptureClass, text: &str) -> &str {
    let whole = text.bytes().all(|byte| class.has(byte));
    match class {
        CaptureClass::Any | CaptureClass::Digits | CaptureClass::Alnum | CaptureClass::Hex
            if whole =>
        {
            text
        }
        CaptureClass::Ip | CaptureClass::Net(_) if ip(text.as_bytes()).is_some() => text,
        CaptureClass::Ip | CaptureClass::Net(_) => SAMPLES[2],
        _ => SAMPLES[1],
    }
}

/// A sample key of the pattern. Its captures are `text`, or another text of their class.
fn sample(glob: &Glob, text: &str) -> Option<Vec<u8>> {
    let chunk = |bytes: &[Option<u8>]| bytes.iter().map(|byte| byte.unwrap_or(b'?')).collect();
    let mut key: Vec<u8> = chunk(&glob.first.bytes);
    for step in &glob.steps {
        if step.least > 0 {
            key.extend_from_slice(fitting(step.class, text).as_bytes());
        }
        key.extend(chunk(&step.then.bytes));
    }
    (1..=KEY_BYTES_MAX).contains(&key.len()).then_some(key)
}
