//! The limits of a cluster as texts: one body per limit, which includes its position.
//!
//! Here: the map's representation of a limit (its body), the `Limits` that all bodies together
//! make, and the conversion of an operator's change to changes of bodies. Not here: the map, and
//! proposing changes (`server`).
//!
//! The exemptions of a limits file are one more text, named [`EXEMPT`], before all limits.
//!
//! A body is `order = <number>`, a line end, further lines of an [`Origin`] if it has one, and the
//! TOML of one `[[limit]]` in the form of `toml_writer`. The first limit by this number that
//! matches a key wins, as in a file. Limits with the same number are ordered by name.

mod body;
mod compiled;
mod exempt_text;
mod new_parts;
mod summary;

use std::path::Path;

use cluster::map::{LIMITS_BYTES_MAX, LIMITS_MAX};
use hashbrown::{HashMap, HashSet};

pub use self::body::{OrderedLimit, Origin};
pub use self::compiled::{limits, limits_beside_exemptions, limits_that_agree, stored_limits};
pub use self::exempt_text::EXEMPT;
use self::exempt_text::exemptions;
pub use self::exempt_text::{exemptions_of, is_text, limit_count};
pub use self::new_parts::{being_updated, new_part};
pub use self::summary::LimitSummary;
use super::exempt;
use super::file::{Draft, Drafts, File};
use super::rules;
use super::with_line::WithLine;
use super::{Limits, LimitsError, read};

/// Distance between the numbers of two limits that are added one after the other. Further limits
/// fit between them until the distance is used up, and then all limits are renumbered.
const STEP: i64 = 1 << 32;

/// A limit as text: its name, and the TOML of its `[[limit]]`. With the name [`EXEMPT`] the
/// exemptions, `exempt = […]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitText {
    /// The name, which the TOML contains too.
    pub name: String,
    /// The TOML.
    pub toml: String,
}

/// The content of a limits file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileText {
    /// The exemptions, if there are any, and the limits in file order.
    pub limits: Vec<LimitText>,
    /// Whether a file without limits is intended.
    pub allow_empty: bool,
}

/// The reason why a limit is not changed. `Display` is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// No limit has this name.
    #[error("there is no limit {0}")]
    NoLimit(String),
    /// A limit cannot come before itself.
    #[error("a limit does not come before itself")]
    BeforeItself,
}

/// A new body for a limit; `None` removes the limit.
pub type LimitEdit = (String, Option<Vec<u8>>);

impl LimitText {
    /// Returns the limits of a file, in its order. The whole file is checked as in
    /// [`Limits::parse`], but its exemptions may be for limits that are elsewhere.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn of_file(name: &str, text: &[u8]) -> Result<FileText, LimitsError> {
        let (_, drafts) = Limits::compile_limits(&File::new(name, text), text)?;
        let limits = Self::of_drafts(&drafts);
        Ok(FileText { limits, allow_empty: drafts.allow_empty })
    }

    /// Returns the same with all limits compiled.
    fn compile_file(file: &File<'_>, text: &[u8]) -> Result<(FileText, Limits), LimitsError> {
        let (limits, drafts) = Limits::compile(file, text)?;
        let texts = FileText { limits: Self::of_drafts(&drafts), allow_empty: drafts.allow_empty };
        Ok((texts, limits))
    }

    /// Reads and compiles the limits file at `path`, with the files of overrides that it names.
    /// Tables of `before` serve for limits that stay.
    ///
    /// # Errors
    ///
    /// A file is unreadable or has a mistake.
    pub fn compile_at(path: &Path, before: &Limits) -> Result<(FileText, Limits), LimitsError> {
        let (text, name) = (read(path)?, path.display().to_string());
        let file = File::new(&name, &text).at(path);
        let (texts, mut limits) = Self::compile_file(&file, &text)?;
        limits.read_override_files(before)?;
        Ok((texts, limits))
    }

    /// Returns the limits of the file at `path`, which must be a regular file within the bounds of
    /// a cluster.
    ///
    /// # Errors
    ///
    /// The file or a file of overrides is unreadable or exceeds a bound, a file of overrides has a
    /// mistake, or the errors of [`LimitText::of_file`].
    pub fn load(path: &Path) -> Result<FileText, LimitsError> {
        let (file, _) = Self::compile_at(path, &Limits::default())?;
        let too_many = |what, max| LimitsError::TooMany { path: path.to_owned(), what, most: max };
        let count = limit_count(&file.limits);
        if count > LIMITS_MAX {
            return Err(too_many(format!("{count} limits"), LIMITS_MAX));
        }
        let before = "order = -9223372036854775808\n".len();
        let bytes: usize = file.limits.iter().map(|text| text.toml.len() + before).sum();
        if bytes > LIMITS_BYTES_MAX {
            return Err(too_many(format!("{bytes} bytes of limits"), LIMITS_BYTES_MAX));
        }
        Ok(file)
    }

    /// Returns the limits of a text. Refuses a limit that is wrong by itself, and two limits with
    /// the same name. The exemptions stay unchecked, because their check needs all limits.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn each(name: &str, text: &[u8]) -> Result<Vec<Self>, LimitsError> {
        let file = File::new(name, text);
        let drafts = file.drafts(text)?;
        let mut lines = HashMap::new();
        for draft in &drafts.limits {
            rules::check_one(&file, draft)?;
            file.take_name(&mut lines, draft)?;
        }
        Ok(Self::of_drafts(&drafts))
    }

    /// Returns the only limit of `text`, checked by itself; for [`EXEMPT`] the exemptions, which
    /// are checked where the limits are known.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line; a name other than `name`; no limit, or several.
    pub fn of_one(name: &str, text: &[u8]) -> Result<Self, LimitsError> {
        let title = format!("limit {name}");
        let file = File::new(&title, text);
        if name == EXEMPT {
            let entries = exemptions(&file, text)?;
            return Ok(Self::of_exemptions(&entries));
        }
        let draft = one_draft(&file, name, text)?;
        rules::check_one(&file, &draft)?;
        Ok(Self::of_draft(&draft))
    }

    /// The exemptions, if there are any, and the limits.
    fn of_drafts(drafts: &Drafts) -> Vec<Self> {
        let exempt = (!drafts.exempt.is_empty()).then(|| Self::of_exemptions(&drafts.exempt));
        exempt.into_iter().chain(drafts.limits.iter().map(Self::of_draft)).collect()
    }

    fn of_exemptions(entries: &[WithLine<String>]) -> Self {
        let toml = exempt::as_toml(entries.iter().map(|at| at.value.as_str()));
        Self { name: EXEMPT.to_owned(), toml }
    }

    fn of_draft(draft: &Draft) -> Self {
        Self { name: draft.name.value.clone(), toml: draft.write() }
    }
}

pub(super) fn one_draft(file: &File<'_>, name: &str, text: &[u8]) -> Result<Draft, LimitsError> {
    let Drafts { limits: mut drafts, exempt, .. } = file.drafts(text)?;
    if let Some(first) = exempt.first() {
        let reason = "`exempt` is for all limits, and stands in no limit's text";
        return Err(file.refuse(first.line, reason));
    }
    match drafts.pop() {
        Some(draft) if drafts.is_empty() && draft.name.value == name => Ok(draft),
        Some(draft) if drafts.is_empty() => {
            Err(file.refuse(draft.name.line, format!("its name is {name} elsewhere")))
        }
        _ => Err(file.refuse_at_start("it is not one `[[limit]]`")),
    }
}

/// Returns the limits of all bodies, in the order in which a key is matched against them.
#[must_use]
pub fn entries<'b>(bodies: impl IntoIterator<Item = (&'b str, &'b [u8])>) -> Vec<OrderedLimit> {
    let entries = bodies.into_iter().map(|(name, body)| OrderedLimit::of_body(name, body));
    let mut entries: Vec<OrderedLimit> = entries.collect();
    entries.sort_by(|one, other| one.place().cmp(&other.place()));
    entries
}

/// Formats all limits as a limits file.
#[must_use]
pub fn as_file(entries: &[OrderedLimit]) -> String {
    let texts: Vec<&str> = entries.iter().map(|entry| entry.text.toml.as_str()).collect();
    texts.join("\n")
}

fn place_of(entries: &[OrderedLimit], name: &str) -> Option<usize> {
    entries.iter().position(|entry| entry.text.name == name)
}

/// Inserts `text` before the limit named `before`; without `before` it replaces the limit of its
/// name, or is appended.
///
/// # Errors
///
/// No limit is named `before`, or it is the limit itself.
pub fn put(
    entries: &mut Vec<OrderedLimit>,
    text: LimitText,
    before: Option<&str>,
) -> Result<(), EditError> {
    let before = before.filter(|_| text.name != EXEMPT);
    let present = place_of(entries, &text.name);
    let origin = present.map(|at| entries[at].origin.clone()).unwrap_or_default();
    let place = match (before, present) {
        (Some(before), _) if before == text.name => return Err(EditError::BeforeItself),
        (Some(before), _) => {
            let missing = || EditError::NoLimit(before.to_owned());
            let place = place_of(entries, before).ok_or_else(missing)?;
            match present {
                Some(present) => {
                    entries.remove(present);
                    place - usize::from(present < place)
                }
                None => place,
            }
        }
        (None, Some(present)) => {
            entries[present].text = text;
            return Ok(());
        }
        (None, None) if text.name == EXEMPT => 0,
        (None, None) => entries.len(),
    };
    entries.insert(place, OrderedLimit { text, order: None, origin });
    Ok(())
}

/// Removes a limit.
///
/// # Errors
///
/// No limit has this name.
pub fn remove(entries: &mut Vec<OrderedLimit>, name: &str) -> Result<(), EditError> {
    let place = place_of(entries, name).ok_or_else(|| EditError::NoLimit(name.to_owned()))?;
    entries.remove(place);
    Ok(())
}

/// Applies the difference between two versions of a file, `last` and `now`: new and changed limits
/// are put, removed ones are removed, moved ones are moved. Limits that are the same in both
/// versions stay as they are, even if they have been changed or removed otherwise in the meantime.
pub fn follow_file(entries: &mut Vec<OrderedLimit>, last: &[LimitText], now: &[LimitText]) {
    let (was, is) = (by_name(last), by_name(now));
    entries.retain(|entry| {
        let name = entry.text.name.as_str();
        is.contains_key(name) || !was.contains_key(name)
    });
    let is_same = |text: &LimitText| was.get(text.name.as_str()).is_some_and(|last| *last == text);
    let stayed = last.iter().filter(|text| is.contains_key(text.name.as_str()));
    let stays = now.iter().filter(|text| was.contains_key(text.name.as_str()));
    if !stayed.map(|text| &text.name).eq(stays.map(|text| &text.name)) {
        // Some limits moved: all limits of the file are placed again in its order, from the
        // position of the first.
        let of_file = |entry: &OrderedLimit| is.contains_key(entry.text.name.as_str());
        let first = entries.iter().position(of_file).unwrap_or(0);
        let (mine, others): (Vec<OrderedLimit>, Vec<OrderedLimit>) =
            entries.drain(..).partition(of_file);
        *entries = others;
        let mut present: HashMap<String, OrderedLimit> =
            mine.into_iter().map(|entry| (entry.text.name.clone(), entry)).collect();
        let rows = now.iter().filter_map(|text| {
            let kept = present.remove(&text.name);
            let entry = if is_same(text) {
                kept?
            } else {
                let origin = kept.map(|entry| entry.origin).unwrap_or_default();
                OrderedLimit { text: text.clone(), order: None, origin }
            };
            Some(OrderedLimit { order: None, ..entry })
        });
        let rows: Vec<OrderedLimit> = rows.collect();
        entries.splice(first..first, rows);
        return;
    }
    let present: HashSet<String> = entries.iter().map(|entry| entry.text.name.clone()).collect();
    let mut behind: Option<&str> = None;
    // The place behind a limit that was inserted, which saves the search for it.
    let mut next: Option<usize> = None;
    for text in now {
        let is_present = present.contains(&text.name);
        match (is_present, is_same(text)) {
            (true, true) => {}
            (true, false) => {
                if let Some(place) = place_of(entries, &text.name) {
                    entries[place].text = text.clone();
                }
            }
            (false, true) => continue,
            (false, false) => {
                let search = || behind.and_then(|name| place_of(entries, name));
                let place = next.or_else(|| Some(search()? + 1)).unwrap_or(0);
                entries.insert(place, OrderedLimit::new(text.clone()));
                next = Some(place + 1);
                behind = Some(&text.name);
                continue;
            }
        }
        next = None;
        behind = Some(&text.name);
    }
}

fn by_name(texts: &[LimitText]) -> HashMap<&str, &LimitText> {
    texts.iter().map(|text| (text.name.as_str(), text)).collect()
}

/// Assigns a number to each limit without one. If there is no room between two limits, renumbers
/// all of them.
pub fn number(entries: &mut [OrderedLimit]) {
    if fill(entries).is_none() {
        for (entry, place) in entries.iter_mut().zip(1..) {
            entry.order = Some(STEP.saturating_mul(place));
        }
    }
}

fn fill(entries: &mut [OrderedLimit]) -> Option<()> {
    let mut at = 0;
    while at < entries.len() {
        if entries[at].order.is_some() {
            at += 1;
            continue;
        }
        let next = entries[at..].iter().position(|entry| entry.order.is_some());
        let end = next.map_or(entries.len(), |next| at + next);
        let run = i64::try_from(end - at).ok()?;
        let low = at.checked_sub(1).and_then(|before| entries[before].order);
        let high = entries.get(end).and_then(|entry| entry.order);
        let (before, step) = match (low, high) {
            (None, None) => (0, STEP),
            (Some(low), None) => (low, STEP),
            (None, Some(high)) => (high.checked_sub(STEP.checked_mul(run + 1)?)?, STEP),
            (Some(low), Some(high)) => (low, high.checked_sub(low)? / (run + 1)),
        };
        if step < 1 {
            return None;
        }
        for (entry, place) in entries[at..end].iter_mut().zip(1..) {
            entry.order = Some(before.checked_add(step.checked_mul(place)?)?);
        }
        at = end;
    }
    Some(())
}

/// The changes of bodies from `before` to `after`: bodies to put in the order of `after`, then
/// removals.
#[must_use]
pub fn changes(before: &[OrderedLimit], after: &[OrderedLimit]) -> Vec<LimitEdit> {
    let known: HashMap<&str, &OrderedLimit> =
        before.iter().map(|entry| (entry.text.name.as_str(), entry)).collect();
    let kept: HashSet<&str> = after.iter().map(|entry| entry.text.name.as_str()).collect();
    let put = after
        .iter()
        .filter(|entry| known.get(entry.text.name.as_str()) != Some(entry))
        .map(|entry| (entry.text.name.clone(), Some(entry.body())));
    let gone = before.iter().filter(|entry| !kept.contains(entry.text.name.as_str()));
    put.chain(gone.map(|entry| (entry.text.name.clone(), None))).collect()
}

#[cfg(test)]
mod tests;
