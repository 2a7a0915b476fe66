//! Limits, overrides and history as readers see them.
//!
//! Not here: changes (`super`).

use std::cmp::Reverse;

use hashbrown::HashMap;
use protocol::Policy;
use tollgate_http::{ChangeView, LimitView, OverrideView, ServiceError};
use tollgate_limits::OverrideSource;
use tollgate_limits::map_text::{self, EXEMPT, LimitSummary};

use super::LimitsStore;
use super::book::{StoredChange, StoredLimit};
use super::plan::refused;
use crate::limits::ActiveLimits;

/// Most overrides of one limit's file in a list.
const FILE_ROWS_MAX: usize = 1_000;

fn view_of(summary: LimitSummary) -> LimitView {
    LimitView {
        name: summary.name,
        pattern: summary.pattern,
        literal_front: summary.literal_front,
        counted_front: summary.counted_front,
        parent_fronts: summary.parent_fronts,
        has_own_keys: summary.has_own_keys,
        policy: summary.policy,
        shadow: summary.shadow,
        owner: summary.owner,
        note: summary.note,
        disabled: summary.disabled,
        expires_ms: summary.expires_ms,
        parents: summary.parents,
        overrides_file: summary.overrides_file,
        ..LimitView::default()
    }
}

/// A limit without its text.
fn limit_view(limit: &StoredLimit, active: &ActiveLimits) -> LimitView {
    let StoredLimit { version, entry, summary } = limit;
    let origin = &entry.origin;
    let in_force = active.limits().by_name(entry.text.name.as_bytes());
    LimitView {
        name: entry.text.name.clone(),
        source: origin.source().to_owned(),
        file: if origin.is_api() { None } else { origin.by.clone() },
        version: *version,
        by: origin.by.clone(),
        at_ms: (origin.at_ms > 0).then_some(origin.at_ms),
        overrides: in_force.map_or(0, |limit| limit.override_count() as u64),
        overrides_of_file: in_force
            .map_or(0, |limit| limit.override_table_len(OverrideSource::File) as u64),
        ..view_of(summary.clone().unwrap_or_default())
    }
}

fn change_view(change: &StoredChange, body_before: Option<&String>) -> ChangeView {
    ChangeView {
        seq: change.seq,
        at_ms: change.at,
        by: change.by.clone(),
        via: change.via.clone(),
        what: change.what.clone(),
        name: change.name.clone(),
        key: change.key.clone(),
        from: change.from,
        to: change.to(),
        note: change.note.clone(),
        reverts: change.reverts,
        body: change.body.clone(),
        body_before: body_before.cloned(),
    }
}

/// The policy of an override as text, with its weight if it has one.
fn weighted_text(policy: &Policy, weight: Option<u64>) -> String {
    let weight = weight.map_or_else(String::new, |weight| format!(" weight={weight}"));
    format!("{policy}{weight}")
}

impl LimitsStore {
    /// Returns all limits, in their order, without their texts.
    pub(crate) fn limits(&self) -> Vec<LimitView> {
        let active = self.handle.load();
        let state = self.state.read();
        let limits = state.book.ordered().into_iter();
        let limits = limits.filter(|limit| limit.entry.text.name != EXEMPT);
        limits.map(|limit| limit_view(limit, &active)).collect()
    }

    /// Returns the limit of a name.
    pub(crate) fn limit(&self, name: &str) -> Option<LimitView> {
        let active = self.handle.load();
        let state = self.state.read();
        let limit = state.book.limits.get(name)?;
        let toml = limit.entry.text.toml.clone();
        Some(LimitView { toml, ..limit_view(limit, &active) })
    }

    /// Checks a limit's text by itself, and returns its fields.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    pub(crate) fn check_text(toml: &str) -> Result<LimitView, ServiceError> {
        let summary = LimitSummary::check(toml).map_err(|error| refused(error, ""))?;
        Ok(LimitView { toml: toml.to_owned(), ..view_of(summary) })
    }

    /// Returns the changes that are kept, newest first; of one limit, if named.
    pub(crate) fn history(&self, name: Option<&str>) -> Vec<ChangeView> {
        let state = self.state.read();
        let mut last: HashMap<(&str, &str, Option<&str>), &StoredChange> = HashMap::new();
        let mut views = Vec::new();
        for change in state.book.changes.values() {
            if name.is_some_and(|name| name != change.name) {
                continue;
            }
            let thing = (change.what.as_str(), change.name.as_str(), change.key.as_deref());
            let before = last.insert(thing, change);
            views.push(change_view(change, before.and_then(|before| before.body.as_ref())));
        }
        views.reverse();
        views
    }

    /// Returns overrides of all origins, those that expire first at the top.
    pub(crate) fn overrides(&self, limit: Option<&str>, query: Option<&str>) -> Vec<OverrideView> {
        let query = query.filter(|query| !query.is_empty());
        let is_wanted = |key: &str| query.is_none_or(|query| key.contains(query));
        let mut views = Vec::new();
        {
            let state = self.state.read();
            let rows = state.book.overrides();
            let rows = rows.filter(|row| limit.is_none_or(|limit| limit == row.limit));
            views.extend(rows.filter(|row| is_wanted(&row.key)).map(|row| OverrideView {
                limit: row.limit.clone(),
                key: row.key.clone(),
                policy: row.policy.clone(),
                source: OverrideSource::Api.word().to_owned(),
                expires_ms: row.expires_ms,
                note: row.note.clone(),
                by: Some(row.by.clone()),
                at_ms: Some(row.at),
                version: row.version,
            }));
        }
        let active = self.handle.load();
        for of in active.limits() {
            if limit.is_some_and(|limit| limit != of.name()) {
                continue;
            }
            // A file has too many for a list of all.
            let most_of_file = if query.is_some() { FILE_ROWS_MAX } else { 0 };
            for (source, most) in
                [(OverrideSource::Inline, usize::MAX), (OverrideSource::File, most_of_file)]
            {
                let rows = of.override_rows(source, query.unwrap_or_default());
                views.extend(rows.take(most).map(|(key, policy, weight)| OverrideView {
                    limit: of.name().to_owned(),
                    key: key.to_owned(),
                    policy: weighted_text(policy, weight),
                    source: source.word().to_owned(),
                    ..OverrideView::default()
                }));
            }
        }
        for of in active.limits().iter().filter(|of| limit.is_none_or(|limit| limit == of.name())) {
            let rows = of.where_rows().filter(|(text, ..)| is_wanted(text));
            views.extend(rows.map(|(text, policy, weight)| OverrideView {
                limit: of.name().to_owned(),
                key: text.to_owned(),
                policy: weighted_text(policy, weight),
                source: OverrideSource::Where.word().to_owned(),
                ..OverrideView::default()
            }));
        }
        views.sort_by(|one, other| {
            let rank = |view: &OverrideView| {
                (Reverse(view.expires_ms.map(Reverse)), view.limit.clone(), view.key.clone())
            };
            rank(one).cmp(&rank(other))
        });
        views
    }

    /// Returns the number of overrides of the API, in force or not, and of others in force.
    pub(crate) fn override_counts(&self) -> [(&'static str, u64); 3] {
        let active = self.handle.load();
        let count = |source| {
            let rows = |limit: &tollgate_limits::Limit| limit.override_table_len(source) as u64;
            active.limits().iter().map(rows).sum()
        };
        [
            (OverrideSource::Api.word(), self.state.read().book.override_count() as u64),
            (
                OverrideSource::Inline.word(),
                count(OverrideSource::Inline)
                    + active.limits().iter().map(|of| of.where_rows().count() as u64).sum::<u64>(),
            ),
            (OverrideSource::File.word(), count(OverrideSource::File)),
        ]
    }

    /// Returns all limits as a limits file.
    pub(crate) fn export(&self) -> String {
        map_text::as_file(&self.state.read().book.entries())
    }
}
