//! The limits file: TOML → drafts, each value with its line.
//!
//! Here: the fields, their values, and the lines of both; in this folder: costs (`charges`),
//! overrides, fields that do not exist (`unknown`). Not here: policies (`policy_fields`), patterns
//! and templates, and rules between limits (`rules`).

mod charges;

use std::path::Path;

use hashbrown::HashMap;
use protocol::Policy;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::charge_cost::ParentRule;
use super::companion::{Companion, Companions};
use super::wheres::WhereText;
use super::with_line::WithLine;
use super::{Deny, LimitsError, OnUnavailable, date};

mod overrides;
pub(super) mod unknown;

/// Maximum length of a note and of an owner, in bytes.
pub const ABOUT_BYTES_MAX: usize = 200;

/// The largest `order`, and the smallest one with its sign.
pub(super) const ORDER_MAX: i32 = 1_000_000;

/// A pattern as written.
#[derive(Debug, Clone)]
pub(super) enum PatternText {
    Match(String),
    Regex(String),
}

/// One `[[limit]]`, each of its fields checked by itself.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) line: usize,
    pub(super) name: WithLine<String>,
    pub(super) pattern: WithLine<PatternText>,
    pub(super) policy: WithLine<Policy>,
    pub(super) key: Option<WithLine<String>>,
    pub(super) parents: Vec<ParentText>,
    /// Multiplies the cost of a request.
    pub(super) weight: u64,
    pub(super) overrides: Vec<OverrideText>,
    /// Overrides by captures.
    pub(super) wheres: Vec<WhereText>,
    /// Limits with a lower number are tried first, then those that come first in the file.
    pub(super) order: i32,
    /// The absolute path of the file with further overrides.
    pub(super) overrides_file: Option<WithLine<String>>,
    pub(super) companions: Companions,
    pub(super) on_unavailable: Option<OnUnavailable>,
    pub(super) deny: Deny,
    pub(super) about: About,
}

/// A parent as written.
#[derive(Debug)]
pub(super) struct ParentText {
    pub(super) key: WithLine<String>,
    pub(super) rule: ParentRule,
}

/// An override as written.
#[derive(Debug)]
pub(super) struct OverrideText {
    pub(super) key: WithLine<String>,
    pub(super) policy: Policy,
    /// The weight in place of the limit's.
    pub(super) weight: Option<u64>,
}

/// The fields of a limit that no request needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) owner: Option<String>,
    pub(super) note: Option<String>,
    /// Kept and checked, but not in force.
    pub(super) disabled: bool,
    /// The end of its validity as written, and in milliseconds since the Unix epoch.
    pub(super) expires: Option<(String, u64)>,
}

impl Draft {
    /// The policies of the overrides that are written in the limit.
    pub(super) fn override_policies_mut(&mut self) -> impl Iterator<Item = &mut Policy> {
        let keys = self.overrides.iter_mut().map(|one| &mut one.policy);
        keys.chain(self.wheres.iter_mut().map(|entry| &mut entry.policy))
    }

    /// All policies that are written in the limit.
    pub(super) fn policies(&self) -> impl Iterator<Item = &Policy> + Clone {
        let keys = self.overrides.iter().map(|one| &one.policy);
        let wheres = self.wheres.iter().map(|entry| &entry.policy);
        keys.chain(wheres).chain([&self.policy.value])
    }
}

/// The content of a file.
#[derive(Debug)]
pub(super) struct Drafts {
    pub(super) limits: Vec<Draft>,
    /// Keys, patterns and networks that no limit applies to.
    pub(super) exempt: Vec<WithLine<String>>,
    /// Whether a file without limits is intended.
    pub(super) allow_empty: bool,
}

/// The name of a file and the offsets of its lines.
#[derive(Debug)]
pub(super) struct File<'f> {
    name: &'f str,
    starts: Vec<usize>,
    /// Number of lines before this text, if it is one of several texts that are checked together.
    lines_before: usize,
    /// The place of the file, to which paths in it are relative.
    place: Option<&'f Path>,
}

pub(super) type Field<'t, 'i> = (&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>);

impl<'f> File<'f> {
    pub(super) fn new(name: &'f str, text: &[u8]) -> Self {
        let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let starts = std::iter::once(0).chain(ends.map(|(end, _)| end + 1)).collect();
        Self { name, starts, lines_before: 0, place: None }
    }

    /// Sets the number of lines before this text.
    pub(super) fn behind(self, lines_before: usize) -> Self {
        Self { lines_before, ..self }
    }

    /// Sets the place of the file, to which paths in it are relative.
    pub(super) fn at(self, place: &'f Path) -> Self {
        Self { place: Some(place), ..self }
    }

    pub(super) fn line(&self, offset: usize) -> usize {
        self.lines_before + self.starts.partition_point(|start| *start <= offset)
    }

    /// Makes an error at `line`.
    pub(super) fn refuse(&self, line: usize, reason: impl Into<String>) -> LimitsError {
        LimitsError::Refused { file: self.name.to_owned(), line, reason: reason.into() }
    }

    /// Makes an error about the whole text.
    pub(super) fn refuse_at_start(&self, reason: &str) -> LimitsError {
        self.refuse(self.line(0), reason)
    }

    /// Notes the line of a limit's name. Refuses a second limit of one name.
    pub(super) fn take_name<'d>(
        &self,
        lines: &mut HashMap<&'d str, usize>,
        draft: &'d Draft,
    ) -> Result<(), LimitsError> {
        let WithLine { value: name, line } = &draft.name;
        lines.insert(name, *line).map_or(Ok(()), |first| {
            Err(self.refuse(*line, format!("the name `{name}` is taken by line {first}")))
        })
    }

    /// Parses the whole file.
    pub(super) fn drafts(&self, text: &[u8]) -> Result<Drafts, LimitsError> {
        let text = str::from_utf8(text)
            .map_err(|error| self.refuse(self.line(error.valid_up_to()), "it is not UTF-8"))?;
        let table = DeTable::parse(text).map_err(|error| {
            let line = self.line(error.span().map_or(0, |span| span.start));
            self.refuse(line, error.message().lines().next().unwrap_or_default())
        })?;
        let mut drafts = Drafts { limits: Vec::new(), exempt: Vec::new(), allow_empty: false };
        for (field, value) in in_order(table.get_ref()) {
            let line = self.line(field.span().start);
            if field.get_ref() == "allow_empty" {
                drafts.allow_empty = self.flag((field, value))?.value;
                continue;
            }
            if field.get_ref() == "exempt" {
                drafts.exempt = self.texts((field, value))?;
                continue;
            }
            if field.get_ref() != "limit" {
                return Err(self.unknown(line, field.get_ref(), &unknown::TOP));
            }
            let entries = value
                .get_ref()
                .as_array()
                .filter(|entries| entries.iter().all(|entry| entry.get_ref().is_table()));
            let entries = entries.ok_or_else(|| self.refuse(line, "write it as `[[limit]]`"))?;
            for entry in entries {
                let line = self.line(entry.span().start);
                if let Some(table) = entry.get_ref().as_table() {
                    drafts.limits.push(self.draft(line, table)?);
                }
            }
        }
        Ok(drafts)
    }

    fn draft(&self, line: usize, table: &DeTable<'_>) -> Result<Draft, LimitsError> {
        let (mut name, mut pattern, mut policy, mut key) = (None, None, None, None);
        let (mut parents, mut overrides, mut overrides_file) = (Vec::new(), Vec::new(), None);
        let mut companions = Companions::default();
        let (mut on_unavailable, mut deny, mut weight) = (None, Deny::default(), 1);
        let (mut over, mut shadow, mut ban) = (None, None, None);
        let mut about = About::default();
        let (mut wheres, mut order) = (Vec::new(), 0);
        for field in in_order(table) {
            match field.0.get_ref().as_ref() {
                "name" => name = Some(self.text(field)?),
                "match" | "regex" if pattern.is_some() => {
                    let reason = "a limit has either `match` or `regex`";
                    return Err(self.refuse(self.line(field.0.span().start), reason));
                }
                "match" => pattern = Some(map(self.text(field)?, PatternText::Match)),
                "regex" => pattern = Some(map(self.text(field)?, PatternText::Regex)),
                "policy" => policy = Some(self.policy(field)?),
                "key" => key = Some(self.text(field)?),
                "parents" => parents = self.parents(field)?,
                "weight" => weight = self.weight(field)?,
                "overrides" => (overrides, wheres) = self.overrides(field)?,
                "order" => order = self.order(field)?,
                "overrides_file" => overrides_file = Some(self.overrides_file(field)?),
                "companions" => companions = self.companions(field)?,
                "on_unavailable" => {
                    on_unavailable = Some(self.one_of(field, &OnUnavailable::ALL)?);
                }
                "deny" => deny = self.one_of(field, &Deny::ALL)?,
                "over" => over = Some(self.flag(field)?),
                "shadow" => shadow = Some(self.flag(field)?),
                "ban" => ban = Some(self.ban(field)?),
                "owner" => about.owner = Some(self.short(field)?),
                "note" => about.note = Some(self.short(field)?),
                "disabled" => about.disabled = self.flag(field)?.value,
                "expires" => about.expires = Some(self.time(field)?),
                other => {
                    let line = self.line(field.0.span().start);
                    return Err(self.unknown(line, other, &unknown::OF_LIMIT));
                }
            }
        }
        let lacks = |field: &str| self.refuse(line, format!("the limit lacks its `{field}`"));
        let mut draft = Draft {
            line,
            name: name.ok_or_else(|| lacks("name"))?,
            pattern: pattern.ok_or_else(|| lacks("match"))?,
            policy: policy.ok_or_else(|| lacks("policy"))?,
            key,
            parents,
            weight,
            overrides,
            wheres,
            order,
            overrides_file,
            companions,
            on_unavailable,
            deny,
            about,
        };
        self.fold_flags(&mut draft, over.as_ref(), shadow.as_ref())?;
        self.fold_ban(&mut draft, ban.as_ref())?;
        Ok(draft)
    }

    /// Reads a text of at most [`ABOUT_BYTES_MAX`] bytes in one line.
    fn short(&self, field: Field<'_, '_>) -> Result<String, LimitsError> {
        let WithLine { value, line } = self.text(field)?;
        if value.len() > ABOUT_BYTES_MAX || value.contains(char::is_control) {
            let name = field.0.get_ref();
            let reason = format!("`{name}` is one line of at most {ABOUT_BYTES_MAX} bytes");
            return Err(self.refuse(line, reason));
        }
        Ok(value)
    }

    /// Reads a time.
    fn time(&self, field: Field<'_, '_>) -> Result<(String, u64), LimitsError> {
        let WithLine { value, line } = self.text(field)?;
        match date::parse_rfc3339(&value) {
            Some(ms) => Ok((value, ms)),
            None => Err(self.refuse(
                line,
                format!(
                    "`{value}`: `{}` is a time such as 2026-12-01T00:00:00Z",
                    field.0.get_ref()
                ),
            )),
        }
    }

    pub(super) fn string(
        &self,
        what: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<WithLine<String>, LimitsError> {
        let line = self.line(value.span().start);
        match value.get_ref().as_str() {
            Some(text) => Ok(WithLine { value: text.to_owned(), line }),
            None => Err(self.refuse(line, format!("`{what}` takes text"))),
        }
    }

    pub(super) fn text(
        &self,
        (field, value): Field<'_, '_>,
    ) -> Result<WithLine<String>, LimitsError> {
        self.string(field.get_ref(), value)
    }

    fn array<'t, 'i>(
        &self,
        (field, value): Field<'t, 'i>,
    ) -> Result<&'t [Spanned<DeValue<'i>>], LimitsError> {
        value.get_ref().as_array().map(|array| &**array).ok_or_else(|| {
            let line = self.line(value.span().start);
            self.refuse(line, format!("`{}` takes a list", field.get_ref()))
        })
    }

    pub(super) fn texts(&self, field: Field<'_, '_>) -> Result<Vec<WithLine<String>>, LimitsError> {
        let values = self.array(field)?.iter();
        values.map(|value| self.string(field.0.get_ref(), value)).collect()
    }

    fn flag(&self, (field, value): Field<'_, '_>) -> Result<WithLine<bool>, LimitsError> {
        let line = self.line(value.span().start);
        match value.get_ref().as_bool() {
            Some(value) => Ok(WithLine { value, line }),
            None => Err(self.refuse(line, format!("`{}` is true or false", field.get_ref()))),
        }
    }

    fn one_of<T: Copy>(&self, field: Field<'_, '_>, all: &[(&str, T)]) -> Result<T, LimitsError> {
        let WithLine { value, line } = self.text(field)?;
        all.iter().find(|(name, _)| *name == value).map(|(_, meant)| *meant).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            self.refuse(line, format!("`{value}`: `{}` is one of {names}", field.0.get_ref()))
        })
    }

    fn companions(&self, field: Field<'_, '_>) -> Result<Companions, LimitsError> {
        let mut companions = Companions::default();
        for WithLine { value, line } in self.texts(field)? {
            let known = Companion::ALL.into_iter().find(|known| known.suffix() == value);
            companions = companions.with(known.ok_or_else(|| {
                let names = Companion::ALL.map(Companion::suffix).join(", ");
                self.refuse(line, format!("`{value}`: a companion is one of {names}"))
            })?);
        }
        Ok(companions)
    }

    /// Reads the number by which limits are ordered.
    fn order(&self, (_, value): Field<'_, '_>) -> Result<i32, LimitsError> {
        let number = value.get_ref().as_integer();
        let number =
            number.and_then(|number| i32::from_str_radix(number.as_str(), number.radix()).ok());
        number.filter(|number| number.abs() <= ORDER_MAX).ok_or_else(|| {
            let line = self.line(value.span().start);
            self.refuse(line, format!("`order` is a number from -{ORDER_MAX} to {ORDER_MAX}"))
        })
    }
}

fn map<T, U>(at: WithLine<T>, with: impl FnOnce(T) -> U) -> WithLine<U> {
    WithLine { value: with(at.value), line: at.line }
}

/// Reads a whole number from 0 on, in any notation of TOML.
pub(super) fn unsigned(value: &Spanned<DeValue<'_>>) -> Option<u64> {
    let integer = value.get_ref().as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// The fields in file order, so that the first mistake in the file is the one reported.
pub(super) fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<Field<'t, 'i>> {
    let mut fields: Vec<_> = table.iter().collect();
    fields.sort_by_key(|(field, _)| field.span().start);
    fields
}
