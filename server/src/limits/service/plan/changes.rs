//! The puts of a planned change, with its records in the history.
//!
//! Not here: the choice of the change (`super`, `bulk`).

use cluster::map::command::{PUTS_BYTES_MAX, PUTS_MAX};
use cluster::map::{LIMITS_VERSION, MapRefusal, Put, RECORDS_VERSION};
use hashbrown::{HashMap, HashSet};
use tollgate_http::{Actor, ImportPlan, ServiceError, Via};
use tollgate_limits::Limits;
use tollgate_limits::map_text::{self, OrderedLimit};

use super::super::book::{Book, StoredChange, StoredOverride, override_name};

/// The puts of a change. All of a batch are put, or none; the batches follow one another.
#[derive(Debug, Default)]
pub(in super::super) struct ChangePlan {
    pub(in super::super) batches: Vec<Vec<Put>>,
    /// The changes that enter the history, in order.
    pub(in super::super) changes: Vec<StoredChange>,
    /// All limits after the change, to be checked together; `None` if no limit changes.
    pub(in super::super) entries: Option<Vec<OrderedLimit>>,
    /// The same, if they are compiled already.
    pub(in super::super) compiled: Option<Limits>,
    /// Whether limits end because their time has come, which nothing that names them holds up.
    pub(in super::super) is_by_time: bool,
    pub(in super::super) import: ImportPlan,
    /// The version of the thing, if nothing changes.
    pub(in super::super) present: u64,
}

/// The sender of a change, its time and reason.
pub(super) struct ChangeInfo<'a> {
    pub(super) by: &'a str,
    pub(super) via: Via,
    pub(super) at: u64,
    pub(super) note: Option<String>,
    pub(super) reverts: Option<u64>,
}

impl<'a> ChangeInfo<'a> {
    pub(super) fn of(actor: &'a Actor, at: u64, note: Option<String>) -> Self {
        Self { by: &actor.name, via: actor.via, at, note, reverts: None }
    }
}

/// Plans the change of the limits from `before` to `after`. What only gets another number is put
/// without a record in the history.
pub(super) fn changes(
    book: &Book,
    before: &[OrderedLimit],
    mut after: Vec<OrderedLimit>,
    info: &ChangeInfo<'_>,
) -> ChangePlan {
    let moved: HashSet<String> = after
        .iter()
        .filter(|entry| entry.order.is_none())
        .map(|entry| entry.text.name.clone())
        .collect();
    map_text::number(&mut after);
    let texts: HashMap<&str, &OrderedLimit> =
        after.iter().map(|entry| (entry.text.name.as_str(), entry)).collect();
    let mut plan = ChangePlan::default();
    for (name, body) in map_text::changes(before, &after) {
        let stored = book.limits.get(&name);
        let version = stored.map_or(0, |limit| limit.version);
        let entry = texts.get(name.as_str());
        let is_renumbered = stored.zip(entry).is_some_and(|(stored, entry)| {
            stored.entry.text == entry.text
                && stored.entry.origin == entry.origin
                && !moved.contains(&name)
        });
        let change = (!is_renumbered).then(|| StoredChange {
            version: 0,
            seq: book.last_seq() + plan.changes.len() as u64 + 1,
            at: info.at,
            by: info.by.to_owned(),
            via: info.via.word().to_owned(),
            what: StoredChange::LIMIT.to_owned(),
            name: name.clone(),
            key: None,
            from: version,
            note: info.note.clone(),
            reverts: info.reverts,
            body: entry.map(|entry| entry.text.toml.clone()),
            place: stored.filter(|_| entry.is_none()).and_then(|stored| stored.entry.order),
        });
        plan.push(book, Put { name, version, body }, change);
    }
    drop(texts);
    plan.entries = (!plan.batches.is_empty()).then_some(after);
    plan
}

impl ChangePlan {
    /// Refuses every change while readers of this feature version do not know records, and then
    /// limits with parts that they do not know.
    pub(in super::super) fn check_new_parts(
        &self,
        feature_version: u32,
    ) -> Result<(), ServiceError> {
        if feature_version >= LIMITS_VERSION {
            return Ok(());
        }
        if feature_version < RECORDS_VERSION && !self.batches.is_empty() {
            return Err(ServiceError::Unavailable(MapRefusal::BeingUpdated.to_string()));
        }
        let limits = self.batches.iter().flatten().filter(|put| map_text::is_text(&put.name));
        for Put { name, body, .. } in limits {
            let Some(body) = body else { continue };
            if let Some(part) = map_text::new_part(&OrderedLimit::of_body(name, body).text) {
                return Err(ServiceError::Unavailable(map_text::being_updated(name, part)));
            }
        }
        Ok(())
    }

    /// Refuses overrides that readers of this feature version do not know.
    pub(in super::super) fn check_new_overrides(
        &self,
        feature_version: u32,
    ) -> Result<(), ServiceError> {
        if feature_version >= LIMITS_VERSION {
            return Ok(());
        }
        let bodies = self.batches.iter().flatten().filter_map(|put| put.body.as_ref());
        let mut overrides = bodies.filter_map(|body| StoredOverride::of(body));
        let found = overrides.find_map(|row| {
            let part = match () {
                () if row.policy.contains(' ') => "an override with a weight",
                () if row.policy.contains(';') => "an override with several policies",
                () => return None,
            };
            Some(map_text::being_updated(&row.limit, part))
        });
        found.map_or(Ok(()), |reason| Err(ServiceError::Unavailable(reason)))
    }

    /// Appends a put, and the record of its change: both are put, or none.
    fn push(&mut self, book: &Book, put: Put, change: Option<StoredChange>) {
        let record = change.as_ref().map(|change| book.put_of_change(change));
        self.changes.extend(change);
        let bytes = |put: &Put| put.name.len() + put.body.as_ref().map_or(0, Vec::len);
        let puts: Vec<Put> = std::iter::once(put).chain(record).collect();
        let more: usize = puts.iter().map(bytes).sum();
        let has_room = |batch: &&mut Vec<Put>| {
            batch.len() + puts.len() <= PUTS_MAX
                && batch.iter().map(bytes).sum::<usize>() + more <= PUTS_BYTES_MAX
        };
        match self.batches.last_mut().filter(has_room) {
            Some(batch) => batch.extend(puts),
            None => self.batches.push(puts),
        }
    }

    pub(super) fn push_override(
        &mut self,
        book: &Book,
        limit: &str,
        key: &str,
        row: Option<&StoredOverride>,
        info: &ChangeInfo<'_>,
    ) {
        let version = book.override_of(limit, key).map_or(0, |row| row.version);
        let change = StoredChange {
            version: 0,
            seq: book.last_seq() + self.changes.len() as u64 + 1,
            at: info.at,
            by: info.by.to_owned(),
            via: info.via.word().to_owned(),
            what: StoredChange::OVERRIDE.to_owned(),
            name: limit.to_owned(),
            key: Some(key.to_owned()),
            from: version,
            note: info.note.clone(),
            reverts: None,
            body: row.map(|row| row.policy.clone()),
            place: None,
        };
        let body = row.and_then(|row| serde_json::to_vec(row).ok());
        let put = Put { name: override_name(limit, key), version, body };
        self.push(book, put, Some(change));
    }
}
