//! The overrides of a limit, checked with the other limits and compiled.
//!
//! Not here: the keys of one override (`counted_keys`), entries with `where` (`where_rules`).

use std::sync::Arc;

use super::super::counted_keys::CountedKeys;
use super::super::error::BadOverrides;
use super::super::file::{Draft, OverrideText};
use super::super::override_id::OverrideSource;
use super::super::overrides::{OverrideTable, OverrideTableBuilder, Overrides};
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
        let wheres = where_rules::compile(limit, &draft.wheres, table.as_deref());
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
                let is_new = table.push(&at.value, keys, (*policy, *weight));
                is_new.then_some(()).ok_or_else(|| "there is an override of it already".to_owned())
            });
            match added {
                Err(reason) if self.bad_overrides == BadOverrides::LeftOut => {
                    tracing::warn!(
                        limit = limit.name(),
                        key = at.value,
                        reason,
                        "an override has no effect"
                    );
                }
                Err(reason) => {
                    return Err(self.file.refuse(at.line, format!("`{}`: {reason}", at.value)));
                }
                Ok(()) => {}
            }
        }
        let table = table.build();
        if self.bad_overrides != BadOverrides::LeftOut
            && let Some((network, prefix)) = table.as_ref().and_then(|table| table.hidden_network())
        {
            let mut rows = draft.overrides.iter().map(|one| &one.key);
            let line = rows.find(|at| at.value == network).map_or(draft.line, |at| at.line);
            let reason = format!("`{network}`: it is hidden: `{prefix}` comes before networks");
            return Err(self.file.refuse(line, reason));
        }
        Ok(table)
    }
}
