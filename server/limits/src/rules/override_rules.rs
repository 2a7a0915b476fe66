//! The overrides of a limit, checked with the other limits and compiled.
//!
//! Not here: the keys of one override (`counted_keys`), entries with `where` (`where_rules`).

use std::sync::Arc;

use super::super::counted_keys::CountedKeys;
use super::super::file::{Draft, OverrideText};
use super::super::override_id::OverrideSource;
use super::super::overrides::{OverrideKeys, OverrideTable, OverrideTableBuilder, Overrides};
use super::super::where_rules::WhereMistake;
use super::super::wheres::WhereText;
use super::super::with_line::WithLine;
use super::super::{Limit, LimitsError, where_rules};
use super::Checks;

impl Checks<'_> {
    /// Compiles the overrides of a limit, and refuses one that can never match.
    pub(super) fn overrides(&self, index: usize) -> Result<Option<Box<Overrides>>, LimitsError> {
        let draft = self.drafts[index];
        if draft.overrides.is_empty() && draft.wheres.is_empty() {
            return Ok(None);
        }
        let limit = &self.limits.limits[index];
        let table = self.overrides_by_key(limit, draft)?;
        let on_mistake = |entry: &WhereText, (line, reason): WhereMistake| {
            let is_left_out = self.leaves_out(limit, entry, &reason);
            if is_left_out { Ok(()) } else { Err((line, reason)) }
        };
        let wheres = where_rules::compile(limit, &draft.wheres, table.as_deref(), &on_mistake);
        let wheres = wheres.map_err(|(line, reason)| self.file.refuse(line, reason))?;
        let mut overrides = Overrides::default();
        overrides.set(OverrideSource::Inline, table);
        overrides.set_wheres(wheres);
        Ok(Some(Box::new(overrides)))
    }

    /// Compiles the overrides of a limit by key.
    fn overrides_by_key(
        &self,
        limit: &Limit,
        draft: &Draft,
    ) -> Result<Option<Arc<OverrideTable>>, LimitsError> {
        let counted = CountedKeys::of(limit);
        let mut table = OverrideTableBuilder::default();
        let mut networks = Vec::new();
        for OverrideText { key: at, policy, weight } in &draft.overrides {
            let keys =
                counted.keys(&at.value).and_then(|keys| match self.limits.taken_by(limit, keys) {
                    Some(other) => {
                        let other = self.name(other.index as usize);
                        Err(format!("it cannot match: {other} takes that key"))
                    }
                    None => Ok(keys),
                });
            let added = keys.and_then(|keys| {
                if !table.push(&at.value, keys, (*policy, *weight)) {
                    return Err("there is an override of it already".to_owned());
                }
                if let OverrideKeys::Network(literal, _) = keys {
                    networks.push((at, literal));
                }
                Ok(())
            });
            added.or_else(|reason| self.refuse_or_leave_out(limit, at, &reason))?;
        }
        let table = table.build();
        for (at, literal) in networks {
            let prefix = table.as_ref().and_then(|table| table.prefix_of(literal.as_bytes()));
            if let Some(prefix) = prefix {
                let reason = format!("it is hidden: `{prefix}` comes before networks");
                self.refuse_or_leave_out(limit, at, &reason)?;
            }
        }
        Ok(table)
    }

    /// Refuses a part of a limit that has no effect, or leaves it out.
    pub(super) fn refuse_or_leave_out(
        &self,
        limit: &Limit,
        at: &WithLine<String>,
        reason: &str,
    ) -> Result<(), LimitsError> {
        if self.leaves_out(limit, &at.value, reason) {
            return Ok(());
        }
        Err(self.file.refuse(at.line, format!("`{}`: {reason}", at.value)))
    }
}
