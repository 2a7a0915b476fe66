//! The fields that say what a request is charged: `weight`, and the entries of `parents`.
//!
//! Not here: the other fields (`file`), what each key is charged (`charge_cost`).

use protocol::{COUNT_MAX, duration_nanos};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::super::charge_cost::ParentRule;
use super::super::with_line::WithLine;
use super::{Field, File, ParentText, in_order, unknown, unsigned};
use crate::LimitsError;

impl File<'_> {
    /// Reads the parents: texts, or tables with a rule.
    pub(super) fn parents(&self, field: Field<'_, '_>) -> Result<Vec<ParentText>, LimitsError> {
        self.array(field)?.iter().map(|entry| self.parent(entry)).collect()
    }

    fn parent(&self, entry: &Spanned<DeValue<'_>>) -> Result<ParentText, LimitsError> {
        let line = self.line(entry.span().start);
        match entry.get_ref() {
            DeValue::String(_) => {
                let key = self.string("parents", entry)?;
                Ok(ParentText { key, rule: ParentRule::default() })
            }
            DeValue::Table(table) => self.ruled_parent(line, table),
            _ => {
                let reason = "a parent is text, or `{ key = \"…\", cost = 1, hold = \"2m\" }`";
                Err(self.refuse(line, reason))
            }
        }
    }

    fn ruled_parent(&self, line: usize, table: &DeTable<'_>) -> Result<ParentText, LimitsError> {
        let (mut key, mut rule) = (None, ParentRule::default());
        for field in in_order(table) {
            match field.0.get_ref().as_ref() {
                "key" => key = Some(self.text(field)?),
                "cost" => rule.cost = Some(self.count(field, 0)?),
                "hold" => rule.hold = Some(self.duration(field)?),
                other => {
                    let line = self.line(field.0.span().start);
                    return Err(self.unknown(line, other, &unknown::OF_PARENT));
                }
            }
        }
        let key = key.ok_or_else(|| self.refuse(line, "the parent lacks its `key`"))?;
        if rule.cost == Some(0) && rule.hold.is_some() {
            return Err(self.refuse(line, "a parent with `cost = 0` has nothing to hold"));
        }
        Ok(ParentText { key, rule })
    }

    /// Reads a weight.
    pub(super) fn weight(&self, field: Field<'_, '_>) -> Result<u64, LimitsError> {
        self.count(field, 1)
    }

    /// Reads a whole number from `min` to [`COUNT_MAX`].
    fn count(&self, (field, value): Field<'_, '_>, min: u64) -> Result<u64, LimitsError> {
        let number = unsigned(value).filter(|number| (min..=COUNT_MAX).contains(number));
        number.ok_or_else(|| {
            let line = self.line(value.span().start);
            let name = field.get_ref();
            self.refuse(line, format!("`{name}` is a number from {min} to {COUNT_MAX}"))
        })
    }

    /// Reads a duration above 0, in nanoseconds.
    fn duration(&self, field: Field<'_, '_>) -> Result<u64, LimitsError> {
        let WithLine { value, line } = self.text(field)?;
        duration_nanos(value.as_bytes()).filter(|nanos| *nanos > 0).ok_or_else(|| {
            let name = field.0.get_ref();
            let reason = format!("`{value}`: `{name}` is a duration such as 2m, at most 366d");
            self.refuse(line, reason)
        })
    }
}
