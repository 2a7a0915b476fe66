//! The limits of a cluster: each a text of its own, in an order that the texts carry.
//!
//! Here: what the map keeps of a limit (its body), the limits that all bodies make together, and how
//! an operator's change of one limit or of a file becomes changes of bodies. Not here: the map, and
//! who proposes what (`node::limits`).
//!
//! A body is `order = <number>`, a line end, and the TOML of one `[[limit]]`, written as `toml_writer`
//! writes it. The first limit in that order that matches a key wins, as in a file; of two with the
//! same number the one whose name is less.

use std::path::Path;

use cluster::map::{BODY_BYTES_MAX, LIMITS_BYTES_MAX, LIMITS_MAX};
use hashbrown::{HashMap, HashSet};

use super::file::{Draft, File};
use super::rules::{self, LINES_MAX};
use super::{Limits, LimitsError, read};

/// Between two limits that are added one after the other: so often can others come between them
/// until all are numbered anew.
const STEP: i64 = 1 << 32;

/// What the first line of a body begins with.
const ORDER: &str = "order = ";

/// Most bytes of a limit's TOML: what a body has room for behind its first line, whatever number that
/// has.
pub(super) const TEXT_BYTES_MAX: usize =
    BODY_BYTES_MAX - ORDER.len() - "-9223372036854775808\n".len();

/// Most limits that are left out to have the others.
const LEFT_OUT_MAX: usize = 100;

/// No text has so many lines.
const LINES_OF_ONE: usize = 1 << 20;

/// A limit as text: its name, and the TOML of its one `[[limit]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitText {
    /// The name, which the TOML tells too.
    pub name: String,
    /// The TOML.
    pub toml: String,
}

/// What a limits file says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileText {
    /// Its limits.
    pub limits: Vec<LimitText>,
    /// It has none on purpose, if it has none.
    pub allow_empty: bool,
}

/// A limit and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderedLimit {
    /// The limit.
    pub text: LimitText,
    /// Its number; none: it has yet to be given one.
    pub order: Option<i64>,
}

/// Why a limit is not changed. `Display` is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// There is none of this name.
    #[error("there is no limit {0}")]
    NoLimit(String),
    /// A limit cannot come before itself.
    #[error("a limit does not come before itself")]
    BeforeItself,
}

/// A change of one body; none removes it.
pub type LimitEdit = (String, Option<Vec<u8>>);

impl LimitText {
    /// The texts of a file, in its order. The whole file is checked as [`Limits::parse`] does.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn of_file(name: &str, text: &[u8]) -> Result<FileText, LimitsError> {
        let file = File::new(name, text);
        let drafts = file.drafts(text)?;
        rules::compile(&file, &drafts.limits)?;
        drafts.limits.iter().try_for_each(|draft| rules::check_length(&file, draft))?;
        let limits = drafts.limits.iter().map(Self::of_draft).collect();
        Ok(FileText { limits, allow_empty: drafts.allow_empty })
    }

    /// The texts of the file at `path`, which must be a regular file with no more than a cluster keeps.
    ///
    /// # Errors
    ///
    /// It is unreadable or has too many limits, or as [`LimitText::of_file`].
    pub fn load(path: &Path) -> Result<FileText, LimitsError> {
        let file = Self::of_file(&path.display().to_string(), &read(path)?)?;
        let too_many = |what, max| LimitsError::TooMany { path: path.to_owned(), what, most: max };
        let count = file.limits.len();
        if count > LIMITS_MAX {
            return Err(too_many(format!("{count} limits"), LIMITS_MAX));
        }
        let before = BODY_BYTES_MAX - TEXT_BYTES_MAX;
        let bytes: usize = file.limits.iter().map(|text| text.toml.len() + before).sum();
        if bytes > LIMITS_BYTES_MAX {
            return Err(too_many(format!("{bytes} bytes of limits"), LIMITS_BYTES_MAX));
        }
        Ok(file)
    }

    /// The limits of a text, each checked as far as it can be without others.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub fn each(name: &str, text: &[u8]) -> Result<Vec<Self>, LimitsError> {
        let file = File::new(name, text);
        let drafts = file.drafts(text)?.limits;
        drafts.iter().try_for_each(|draft| rules::check_one(&file, draft))?;
        Ok(drafts.iter().map(Self::of_draft).collect())
    }

    /// The one limit of this text, checked as far as it can be without others.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line; another name, no limit or several.
    pub fn of_one(name: &str, text: &[u8]) -> Result<Self, LimitsError> {
        let title = format!("limit {name}");
        let file = File::new(&title, text);
        let draft = one_draft(&file, name, text)?;
        rules::check_one(&file, &draft)?;
        Ok(Self::of_draft(&draft))
    }

    fn of_draft(draft: &Draft) -> Self {
        Self { name: draft.name.value.clone(), toml: draft.write() }
    }
}

fn one_draft(file: &File<'_>, name: &str, text: &[u8]) -> Result<Draft, LimitsError> {
    let mut drafts = file.drafts(text)?.limits;
    match drafts.pop() {
        Some(draft) if drafts.is_empty() && draft.name.value == name => Ok(draft),
        Some(draft) if drafts.is_empty() => {
            Err(file.refuse(draft.name.line, format!("its name is {name} elsewhere")))
        }
        _ => Err(file.refuse_at_start("it is not one `[[limit]]`")),
    }
}

impl OrderedLimit {
    /// The entry of a body. One that cannot be read keeps its text, which is then refused by whoever
    /// makes limits of it.
    fn of_body(name: &str, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let (order, toml) = text
            .strip_prefix(ORDER)
            .and_then(|rest| rest.split_once('\n'))
            .and_then(|(number, toml)| Some((number.trim_end().parse().ok()?, toml)))
            .unwrap_or((i64::MAX, &text));
        let text = LimitText { name: name.to_owned(), toml: toml.to_owned() };
        Self { text, order: Some(order) }
    }

    /// The body of the entry.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        format!("{ORDER}{}\n{}", self.order.unwrap_or(i64::MAX), self.text.toml).into_bytes()
    }
}

/// The entries of bodies by name, in the order in which they are asked.
#[must_use]
pub fn entries<'b>(bodies: impl IntoIterator<Item = (&'b str, &'b [u8])>) -> Vec<OrderedLimit> {
    let entries = bodies.into_iter().map(|(name, body)| OrderedLimit::of_body(name, body));
    let mut entries: Vec<OrderedLimit> = entries.collect();
    entries.sort_by(|one, other| (one.order, &one.text.name).cmp(&(other.order, &other.text.name)));
    entries
}

/// The limits that all entries make together.
///
/// # Errors
///
/// The first mistake, with the name of its limit and the line in that.
pub fn limits(entries: &[OrderedLimit]) -> Result<Limits, LimitsError> {
    compile(entries).map_err(|(_, error)| error)
}

/// As many limits as agree, each that is refused left out; and why the first of these is, if any.
#[must_use]
pub fn limits_that_agree(mut entries: Vec<OrderedLimit>) -> (Limits, Option<LimitsError>) {
    let mut first = None;
    for _ in 0..LEFT_OUT_MAX {
        match compile(&entries) {
            Ok(limits) => return (limits, first),
            Err((index, error)) => {
                first.get_or_insert(error);
                if index >= entries.len() {
                    break;
                }
                entries.remove(index);
            }
        }
    }
    (Limits::default(), first)
}

/// The limits, or the number of the entry with the first mistake.
fn compile(entries: &[OrderedLimit]) -> Result<Limits, (usize, LimitsError)> {
    let before = |index: usize| LINES_MAX + index * LINES_OF_ONE;
    let drafts = entries.iter().enumerate().map(|(index, entry)| {
        let (name, toml) = (&entry.text.name, entry.text.toml.as_bytes());
        one_draft(&File::new("", toml).behind(before(index)), name, toml)
    });
    let drafts: Result<Vec<_>, _> = drafts.collect();
    drafts.and_then(|drafts| rules::compile(&File::new("", b""), &drafts)).map_err(|error| {
        let LimitsError::Refused { line, reason, .. } = error else { return (usize::MAX, error) };
        let (index, line) = match line.checked_sub(LINES_MAX) {
            Some(line) => (line / LINES_OF_ONE, line % LINES_OF_ONE),
            None => (usize::MAX, line),
        };
        let name = entries.get(index).map_or("", |entry| &entry.text.name);
        (index, LimitsError::Refused { file: format!("limit {name}"), line, reason })
    })
}

/// All entries as a limits file.
#[must_use]
pub fn as_file(entries: &[OrderedLimit]) -> String {
    let texts: Vec<&str> = entries.iter().map(|entry| entry.text.toml.as_str()).collect();
    texts.join("\n")
}

fn place_of(entries: &[OrderedLimit], name: &str) -> Option<usize> {
    entries.iter().position(|entry| entry.text.name == name)
}

/// Puts a limit where it is, else at the end; or before another one.
///
/// # Errors
///
/// There is no such other one.
pub fn put(
    entries: &mut Vec<OrderedLimit>,
    text: LimitText,
    before: Option<&str>,
) -> Result<(), EditError> {
    let present = place_of(entries, &text.name);
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
        (None, None) => entries.len(),
    };
    entries.insert(place, OrderedLimit { text, order: None });
    Ok(())
}

/// Removes a limit.
///
/// # Errors
///
/// There is none of this name.
pub fn remove(entries: &mut Vec<OrderedLimit>, name: &str) -> Result<(), EditError> {
    let place = place_of(entries, name).ok_or_else(|| EditError::NoLimit(name.to_owned()))?;
    entries.remove(place);
    Ok(())
}

/// Does what turned `last`, a file as it was, into `now`: what is new or changed is put, what is gone
/// is removed, what was moved is moved. What the file says as before is left as it is, even where it is
/// something else or nothing by now.
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
        // Moved: all that the file has take their places anew, from where the first one was.
        let of_file = |entry: &OrderedLimit| is.contains_key(entry.text.name.as_str());
        let first = entries.iter().position(of_file).unwrap_or(0);
        let (mine, others): (Vec<OrderedLimit>, Vec<OrderedLimit>) =
            entries.drain(..).partition(of_file);
        *entries = others;
        let mut present: HashMap<String, LimitText> =
            mine.into_iter().map(|entry| (entry.text.name.clone(), entry.text)).collect();
        let rows = now.iter().filter_map(|text| {
            let kept = present.remove(&text.name);
            let text = if is_same(text) { kept? } else { text.clone() };
            Some(OrderedLimit { text, order: None })
        });
        let rows: Vec<OrderedLimit> = rows.collect();
        entries.splice(first..first, rows);
        return;
    }
    let present: HashSet<String> = entries.iter().map(|entry| entry.text.name.clone()).collect();
    let mut behind: Option<&str> = None;
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
                let place = behind.and_then(|name| place_of(entries, name)).map_or(0, |at| at + 1);
                entries.insert(place, OrderedLimit { text: text.clone(), order: None });
            }
        }
        behind = Some(&text.name);
    }
}

fn by_name(texts: &[LimitText]) -> HashMap<&str, &LimitText> {
    texts.iter().map(|text| (text.name.as_str(), text)).collect()
}

/// Numbers what has no number yet; all, where there is no room between two.
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

/// What makes `after` of `before`, in the order of `after`.
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
