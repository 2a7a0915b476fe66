//! Changes of many limits: imports, limits files, and what has expired.
//!
//! Not here: changes of one limit or override (`super`), puts and history (`changes`).

use cluster::map::LIMITS_MAX;
use hashbrown::{HashMap, HashSet};
use tollgate_http::{ImportMode, ServiceError, Via};
use tollgate_limits::Limits;
use tollgate_limits::map_text::{self, FileText, LimitSummary, LimitText, OrderedLimit, Origin};

use super::super::book::{Book, StoredLimit, StoredOverride};
use super::changes::{ChangeInfo, ChangePlan, changes};
use super::{EXPIRED_MAX, PAST, adopted_by_others, check_source, invalid};

pub(super) fn import(
    book: &Book,
    file: &FileText,
    mode: ImportMode,
    is_admin: bool,
    info: &ChangeInfo<'_>,
) -> Result<ChangePlan, ServiceError> {
    if mode == ImportMode::Replace && file.limits.is_empty() && !file.allow_empty {
        let detail = "it has no limits: `allow_empty = true` at its top says that it may";
        return Err(ServiceError::Invalid { detail: detail.to_owned(), line: Some(1) });
    }
    let is_of_other = |limit: &StoredLimit| !limit.entry.origin.is_api() && !book.lacks_file(limit);
    let is_kept = |name: &str| book.limits.get(name).is_some_and(is_of_other);
    let mut now = Vec::new();
    for text in &file.limits {
        let present = book.limits.get(&text.name);
        let replaced = present.filter(|limit| limit.entry.text != *text);
        if is_kept(&text.name) {
            check_source(replaced)?;
            continue;
        }
        if !is_admin && replaced.is_some_and(|limit| book.lacks_file(limit)) {
            return Err(adopted_by_others());
        }
        if has_expired(text, info.at) {
            return Err(invalid(format!("limit {}: {PAST}", text.name)));
        }
        now.push(text.clone());
    }
    let names: HashSet<&str> = now.iter().map(|text| text.name.as_str()).collect();
    let before = book.entries();
    let last: Vec<LimitText> = before
        .iter()
        .filter(|entry| match mode {
            ImportMode::Merge => names.contains(entry.text.name.as_str()),
            ImportMode::Replace => !is_kept(&entry.text.name),
        })
        .map(|entry| entry.text.clone())
        .collect();
    let mut after = before.clone();
    map_text::follow_file(&mut after, &last, &now);
    if map_text::limit_count(after.iter().map(|entry| &entry.text)) > LIMITS_MAX {
        return Err(ServiceError::Full(format!("there may be {LIMITS_MAX} limits")));
    }
    set_origins(&before, &mut after, |was| Origin {
        source: Some(Origin::API.to_owned()),
        by: Some(info.by.to_owned()),
        at_ms: info.at,
        adopted: was.is_some_and(|was| was.adopted || !was.is_api()),
    });
    let mut plan = changes(book, &before, after, info);
    let puts = plan.batches.iter().flatten();
    let put: HashSet<String> = puts.map(|put| put.name.clone()).collect();
    for text in &file.limits {
        let present = book.limits.get(&text.name);
        let is_moved = || put.contains(&text.name);
        let names = match present {
            Some(limit) if limit.entry.text != *text => &mut plan.import.put,
            None => &mut plan.import.put,
            Some(_) if is_moved() => &mut plan.import.moved,
            Some(_) => &mut plan.import.same,
        };
        names.push(text.name.clone());
    }
    let gone = plan.changes.iter().filter(|change| change.body.is_none());
    plan.import.removed = gone.map(|change| change.name.clone()).collect();
    Ok(plan)
}

/// Gives an origin to each entry whose text is new.
fn set_origins(
    before: &[OrderedLimit],
    after: &mut [OrderedLimit],
    origin: impl Fn(Option<&Origin>) -> Origin,
) {
    let known: HashMap<&str, &OrderedLimit> =
        before.iter().map(|entry| (entry.text.name.as_str(), entry)).collect();
    for entry in after {
        let was = known.get(entry.text.name.as_str());
        if was.is_none_or(|was| was.text != entry.text) {
            entry.origin = origin(was.map(|was| &was.origin));
        }
    }
}

/// Returns whether a text of the limits file is in force: the API has no limit of its name, and the
/// text has not expired.
pub(in super::super) fn is_of_file(book: &Book, text: &LimitText, now_ms: u64) -> bool {
    let is_free =
        book.limits.get(&text.name).is_none_or(|limit| limit.entry.origin.source() == Origin::FILE);
    is_free && !has_expired(text, now_ms)
}

pub(super) fn has_expired(text: &LimitText, now_ms: u64) -> bool {
    let summary = || LimitSummary::of(&text.name, &text.toml).ok();
    let expires_ms = || summary().and_then(|summary| summary.expires_ms);
    text.toml.contains("\nexpires = ") && expires_ms().is_some_and(|ms| ms <= now_ms)
}

pub(super) fn follow_file(
    book: &Book,
    texts: &[LimitText],
    compiled: &Limits,
    path: &str,
    now_ms: u64,
) -> ChangePlan {
    let before = book.entries();
    let of_file = |entry: &&OrderedLimit| entry.origin.source() == Origin::FILE;
    let last: Vec<LimitText> =
        before.iter().filter(of_file).map(|entry| entry.text.clone()).collect();
    let now: Vec<LimitText> =
        texts.iter().filter(|text| is_of_file(book, text, now_ms)).cloned().collect();
    let mut after = before.clone();
    map_text::follow_file(&mut after, &last, &now);
    set_origins(&before, &mut after, |_| Origin {
        source: Some(Origin::FILE.to_owned()),
        by: Some(path.to_owned()),
        at_ms: now_ms,
        adopted: false,
    });
    // The file alone is compiled already.
    let is_file_alone = after.len() == texts.len() && after.iter().all(|entry| of_file(&entry));
    let info = ChangeInfo { by: path, via: Via::File, at: now_ms, note: None, reverts: None };
    let mut plan = changes(book, &before, after, &info);
    plan.compiled = is_file_alone.then(|| compiled.clone());
    plan.is_by_time = texts.iter().any(|text| has_expired(text, now_ms));
    plan
}

/// Removes what has expired, overrides first.
pub(super) fn expire(book: &Book, now_ms: u64) -> ChangePlan {
    let is_over = |ms: Option<u64>| ms.is_some_and(|ms| ms <= now_ms);
    let info = ChangeInfo { by: "-", via: Via::Expiry, at: now_ms, note: None, reverts: None };
    let mut plan = ChangePlan::default();
    let over = book.overrides().filter(|row| is_over(row.expires_ms)).take(EXPIRED_MAX);
    for StoredOverride { limit, key, .. } in over {
        plan.push_override(book, limit, key, None, &info);
    }
    if !plan.changes.is_empty() {
        return plan;
    }
    let is_limit_over = |limit: &&StoredLimit| {
        limit.summary.as_ref().is_some_and(|summary| is_over(summary.expires_ms))
    };
    let over: HashSet<&str> = book
        .limits
        .values()
        .filter(is_limit_over)
        .take(EXPIRED_MAX)
        .map(|limit| limit.entry.text.name.as_str())
        .collect();
    if over.is_empty() {
        return plan;
    }
    let before = book.entries();
    let stays = |entry: &&OrderedLimit| !over.contains(entry.text.name.as_str());
    let after = before.iter().filter(stays).cloned().collect();
    ChangePlan { is_by_time: true, ..changes(book, &before, after, &info) }
}

/// Removes the overrides of these changes at their present versions, for simulations.
#[cfg(feature = "simulation")]
pub(in super::super) fn expire_again(
    book: &Book,
    changes: &[super::StoredChange],
    now_ms: u64,
) -> ChangePlan {
    let info = ChangeInfo { by: "-", via: Via::Expiry, at: now_ms, note: None, reverts: None };
    let mut plan = ChangePlan::default();
    for change in changes {
        let Some(key) = &change.key else { continue };
        if book.override_of(&change.name, key).is_some() {
            plan.push_override(book, &change.name, key, None, &info);
        }
    }
    plan
}

/// Makes the difference between two versions of a node's limits file.
pub(super) fn follow_change(
    book: &Book,
    last: &[LimitText],
    now: &[LimitText],
    path: &str,
    now_ms: u64,
) -> ChangePlan {
    let before = book.entries();
    let mut after = before.clone();
    map_text::follow_file(&mut after, last, now);
    set_origins(&before, &mut after, |was| Origin {
        source: Some(Origin::API.to_owned()),
        by: Some(path.to_owned()),
        at_ms: now_ms,
        adopted: was.is_some_and(|was| was.adopted),
    });
    let info = ChangeInfo { by: path, via: Via::File, at: now_ms, note: None, reverts: None };
    changes(book, &before, after, &info)
}
