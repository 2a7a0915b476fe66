//! A wanted change and the records → the puts that make it, or the reason against it.
//!
//! Here: versions, provenance and bounds of changes of one thing. A plan changes nothing. Not here:
//! changes of many limits (`bulk`), puts and history (`changes`), the place of a limit that comes
//! back (`place`), whether all limits agree, and carrying a plan out (`super`).

mod bulk;
mod changes;
mod place;

use std::net::IpAddr;
use std::sync::Arc;

use cluster::map::LIMITS_MAX;
use protocol::PolicyListError;
use tollgate_http::{Actor, ImportMode, LimitChange, OverrideChange, ServiceError};
use tollgate_limits::map_text::{self, EditError, FileText, LimitText, Origin};
use tollgate_limits::{ABOUT_BYTES_MAX, Limits, LimitsError, parse_weighted_policy};

#[cfg(feature = "simulation")]
pub(super) use self::bulk::expire_again;
pub(super) use self::bulk::is_of_file;
use self::bulk::{expire, follow_change, follow_file, has_expired, import};
pub(super) use self::changes::ChangePlan;
use self::changes::{ChangeInfo, changes};
use self::place::{give_former_number, place_again};
use super::book::{Book, OVERRIDES_MAX, StoredChange, StoredLimit, StoredOverride};

/// Most removals of one look for expired things.
pub(super) const EXPIRED_MAX: usize = 256;

/// The reason against a text that would be removed at once.
const PAST: &str = "`expires` is in the past";

/// A wanted change.
#[derive(Debug, Clone)]
pub(crate) enum LimitsRequest {
    /// Creates or replaces a limit.
    Put(Box<LimitChange>),
    /// Puts a limit whatever its present version is, as `cluster limit` does.
    PutAny { text: LimitText, before: Option<String>, actor: Actor },
    /// Removes a limit; without a version whatever its present version is.
    Remove { name: String, version: Option<u64>, note: Option<String>, actor: Actor },
    /// Gives a limit the text that it had after a change.
    Revert { name: String, seq: u64, version: Option<u64>, actor: Actor },
    /// Changes an override of the API.
    Override(Box<OverrideChange>),
    /// Puts the limits of a text.
    Import { file: Arc<FileText>, mode: ImportMode, actor: Actor },
    /// Makes the limits of the limits file those of this text, which is compiled already.
    File { file: Arc<FileText>, compiled: Arc<Limits>, path: String },
    /// Makes the difference between two versions of a node's limits file in a cluster, where the
    /// map decides about all limits.
    FileChange { last: Arc<Vec<LimitText>>, now: Arc<Vec<LimitText>>, path: String },
    /// Removes what has expired.
    Expire,
}

impl LimitsRequest {
    /// The limit whose text the sender has, if it is one.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Put(change) => Some(&change.name),
            Self::PutAny { text, .. } => Some(&text.name),
            Self::Revert { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The version that the sender has read, if the change replaces only that one.
    pub(super) fn version(&self) -> Option<u64> {
        match self {
            Self::Put(change) => change.version,
            Self::Override(change) => change.version,
            Self::Remove { version, .. } | Self::Revert { version, .. } => *version,
            Self::PutAny { .. }
            | Self::Import { .. }
            | Self::File { .. }
            | Self::FileChange { .. }
            | Self::Expire => None,
        }
    }

    /// The limit of the override that the change is about.
    pub(super) fn overridden(&self) -> Option<&str> {
        match self {
            Self::Override(change) => Some(&change.limit),
            _ => None,
        }
    }

    /// Whether files of overrides that the change names must be good.
    pub(super) fn is_checked(&self) -> bool {
        match self {
            Self::Put(_)
            | Self::PutAny { .. }
            | Self::Revert { .. }
            | Self::Import { .. }
            | Self::Remove { .. } => true,
            Self::Override(_) | Self::File { .. } | Self::FileChange { .. } | Self::Expire => false,
        }
    }

    /// The request of an actor with this address.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        let of = |actor: &Actor| actor.address;
        match self {
            Self::Put(change) => of(&change.actor),
            Self::Override(change) => of(&change.actor),
            Self::PutAny { actor, .. }
            | Self::Remove { actor, .. }
            | Self::Revert { actor, .. }
            | Self::Import { actor, .. } => of(actor),
            Self::File { .. } | Self::FileChange { .. } | Self::Expire => None,
        }
    }
}

/// Turns a refused text into the answer about the limit `name`, whose text the sender has.
pub(super) fn refused(error: LimitsError, name: &str) -> ServiceError {
    match error {
        LimitsError::Refused { file, line, reason } => {
            let is_own = file.strip_prefix("limit ").is_none_or(|of| of == name);
            let detail = if is_own { reason } else { format!("{file}: {reason}") };
            ServiceError::Invalid { detail, line: is_own.then_some(line) }
        }
        other => invalid(other.to_string()),
    }
}

fn invalid(detail: impl Into<String>) -> ServiceError {
    ServiceError::Invalid { detail: detail.into(), line: None }
}

fn check_note(note: Option<&String>) -> Result<(), ServiceError> {
    let is_bad = |note: &&String| note.len() > ABOUT_BYTES_MAX || note.contains(char::is_control);
    match note.filter(is_bad) {
        Some(_) => Err(invalid(format!("a note is one line of at most {ABOUT_BYTES_MAX} bytes"))),
        None => Ok(()),
    }
}

/// Compares the present version of a thing with the one that the sender has read.
fn check_version(
    present: Option<u64>,
    wanted: Option<u64>,
    missing: impl FnOnce() -> String,
) -> Result<(), ServiceError> {
    match (present, wanted) {
        (None, Some(_)) => Err(ServiceError::NotFound(missing())),
        (Some(present), wanted) if wanted != Some(present) => Err(ServiceError::Changed(present)),
        _ => Ok(()),
    }
}

/// Refuses a text that would be removed at once.
fn check_expiry(text: &LimitText, now_ms: u64) -> Result<(), ServiceError> {
    if has_expired(text, now_ms) { Err(invalid(PAST)) } else { Ok(()) }
}

/// Refuses a change of a limit that a file decides about.
fn check_source(limit: Option<&StoredLimit>) -> Result<(), ServiceError> {
    match limit.map(|limit| &limit.entry.origin) {
        Some(origin) if !origin.is_api() => {
            let file = origin.by.as_deref().unwrap_or_else(|| origin.source());
            Err(ServiceError::Conflict(format!("managed by a file: {file}")))
        }
        _ => Ok(()),
    }
}

fn adopted_by_others() -> ServiceError {
    ServiceError::Conflict("only an admin may adopt a limit of a file".to_owned())
}

fn no_limit(name: &str) -> String {
    format!("there is no limit {name}")
}

/// Plans the change at `now_ms`. `limits` are the limits in force.
pub(super) fn plan(
    book: &Book,
    request: &LimitsRequest,
    limits: &Limits,
    now_ms: u64,
) -> Result<ChangePlan, ServiceError> {
    match request {
        LimitsRequest::Put(change) => put(book, change, now_ms),
        LimitsRequest::PutAny { text, before, actor } => {
            let info = ChangeInfo::of(actor, now_ms, None);
            check_expiry(text, now_ms)?;
            check_source(book.limits.get(&text.name))?;
            put_text(book, text.clone(), &text.toml, before.as_deref(), &info)
        }
        LimitsRequest::Remove { name, version, note, actor } => {
            check_note(note.as_ref())?;
            let info = ChangeInfo::of(actor, now_ms, note.clone());
            remove(book, name, *version, &info)
        }
        LimitsRequest::Revert { name, seq, version, actor } => {
            revert(book, name, *seq, *version, ChangeInfo::of(actor, now_ms, None))
        }
        LimitsRequest::Override(change) => put_override(book, change, limits, now_ms),
        LimitsRequest::Import { file, mode, actor } => {
            let info = ChangeInfo::of(actor, now_ms, None);
            import(book, file, *mode, actor.is_admin, &info)
        }
        LimitsRequest::File { file, compiled, path } => {
            Ok(follow_file(book, &file.limits, compiled, path, now_ms))
        }
        LimitsRequest::FileChange { last, now, path } => {
            Ok(follow_change(book, last, now, path, now_ms))
        }
        LimitsRequest::Expire => Ok(expire(book, now_ms)),
    }
}

fn put(book: &Book, change: &LimitChange, now_ms: u64) -> Result<ChangePlan, ServiceError> {
    let LimitChange { name, toml, actor, .. } = change;
    let text = LimitText::of_one(name, toml.as_bytes()).map_err(|error| refused(error, name))?;
    check_note(change.note.as_ref())?;
    check_expiry(&text, now_ms)?;
    let present = book.limits.get(name);
    check_version(present.map(|limit| limit.version), change.version, || no_limit(name))?;
    if !change.adopt {
        check_source(present)?;
    } else if !actor.is_admin {
        return Err(adopted_by_others());
    }
    let info = ChangeInfo::of(actor, now_ms, change.note.clone());
    put_text(book, text, toml, change.before.as_deref(), &info)
}

/// Puts a text. `written` is the text as the sender wrote it, whose lines an answer names.
fn put_text(
    book: &Book,
    text: LimitText,
    written: &str,
    next: Option<&str>,
    info: &ChangeInfo<'_>,
) -> Result<ChangePlan, ServiceError> {
    let name = text.name.clone();
    let present = book.limits.get(&name);
    if present.is_none() && book.limit_count() >= LIMITS_MAX {
        return Err(ServiceError::Full(format!("there are {LIMITS_MAX} limits, the most")));
    }
    if let Some(limit) = present
        && next.is_none()
        && limit.entry.text == text
        && limit.entry.origin.is_api()
    {
        return Ok(ChangePlan { present: limit.version, ..ChangePlan::default() });
    }
    let was_adopted =
        present.is_some_and(|limit| limit.entry.origin.adopted || !limit.entry.origin.is_api());
    let before = book.entries();
    let mut after = before.clone();
    map_text::put(&mut after, text, next).map_err(|error| match error {
        EditError::NoLimit(_) => ServiceError::NotFound(error.to_string()),
        EditError::BeforeItself => invalid(error.to_string()),
    })?;
    let origin = Origin {
        source: Some(Origin::API.to_owned()),
        by: Some(info.by.to_owned()),
        at_ms: info.at,
        adopted: was_adopted,
    };
    for entry in after.iter_mut().filter(|entry| entry.text.name == name) {
        entry.origin = origin.clone();
    }
    if present.is_none() && info.reverts.is_some() {
        give_former_number(book, &mut after, &name);
    }
    let mut plan = changes(book, &before, after, info);
    let own = plan.entries.iter_mut().flatten().find(|entry| entry.text.name == name);
    if let Some(entry) = own {
        written.clone_into(&mut entry.text.toml);
    }
    Ok(plan)
}

fn remove(
    book: &Book,
    name: &str,
    version: Option<u64>,
    info: &ChangeInfo<'_>,
) -> Result<ChangePlan, ServiceError> {
    let missing = || ServiceError::NotFound(no_limit(name));
    let present = book.limits.get(name).ok_or_else(missing)?;
    if let Some(version) = version {
        check_version(Some(present.version), Some(version), || no_limit(name))?;
    }
    if !book.lacks_file(present) {
        check_source(Some(present))?;
    }
    let before = book.entries();
    let after = before.iter().filter(|entry| entry.text.name != name).cloned().collect();
    Ok(changes(book, &before, after, info))
}

fn revert(
    book: &Book,
    name: &str,
    seq: u64,
    version: Option<u64>,
    mut info: ChangeInfo<'_>,
) -> Result<ChangePlan, ServiceError> {
    let change = book.changes.get(&seq);
    let change = change.filter(|change| change.is_of(StoredChange::LIMIT, name, None));
    let gone = || ServiceError::NotFound(format!("change {seq} of limit {name} is not kept"));
    let change = change.ok_or_else(gone)?;
    let present = book.limits.get(name);
    check_version(present.map(|limit| limit.version), version, || no_limit(name))?;
    check_source(present)?;
    info.reverts = Some(seq);
    let Some(body) = &change.body else {
        return match present {
            Some(_) => remove(book, name, version, &info),
            None => Ok(ChangePlan::default()),
        };
    };
    let text = LimitText::of_one(name, body.as_bytes()).map_err(|error| refused(error, name))?;
    check_expiry(&text, info.at)?;
    let next = present.is_none().then(|| place_again(book, &text)).flatten();
    put_text(book, text, body, next.as_deref(), &info)
}

/// Turns an error of a policy that an override would have into the answer.
pub(super) fn refused_policy(policy: &str, error: PolicyListError) -> ServiceError {
    match error {
        PolicyListError::Full => ServiceError::Full(error.to_string()),
        error => invalid(format!("`{policy}`: {error}")),
    }
}

fn put_override(
    book: &Book,
    change: &OverrideChange,
    limits: &Limits,
    now_ms: u64,
) -> Result<ChangePlan, ServiceError> {
    let OverrideChange { limit, key, policy, expires_ms, note, version, actor } = change;
    check_note(note.as_ref())?;
    let present = book.override_of(limit, key);
    let missing = || format!("there is no override of {key} in limit {limit}");
    check_version(present.map(|row| row.version), *version, missing)?;
    let body = match policy {
        None if present.is_none() => return Err(ServiceError::NotFound(missing())),
        None => None,
        Some(policy) => {
            let wrong = |reason: String| invalid(format!("`{key}`: {reason}"));
            let (parsed, _) = parse_weighted_policy(policy)
                .map_err(|reason| invalid(format!("`{policy}`: {reason}")))?;
            if expires_ms.is_some_and(|ms| ms <= now_ms) {
                return Err(invalid("the override would end in the past"));
            }
            let in_force = match limits.by_name(limit.as_bytes()) {
                Some(in_force) => in_force,
                None if book.limits.contains_key(limit) => {
                    return Err(ServiceError::Conflict(format!("limit {limit} is not in force")));
                }
                None => return Err(ServiceError::NotFound(no_limit(limit))),
            };
            limits.check_override(in_force, key).map_err(wrong)?;
            if present.is_none() && book.override_count() >= OVERRIDES_MAX {
                let reason = format!("there are {OVERRIDES_MAX} overrides, the most");
                return Err(ServiceError::Full(reason));
            }
            in_force.with_flags(parsed).map_err(|error| refused_policy(policy, error))?;
            Some(StoredOverride {
                version: 0,
                limit: limit.clone(),
                key: key.clone(),
                policy: policy.clone(),
                expires_ms: *expires_ms,
                note: note.clone(),
                by: actor.name.clone(),
                at: now_ms,
            })
        }
    };
    let info = ChangeInfo::of(actor, now_ms, note.clone());
    let mut plan = ChangePlan::default();
    plan.push_override(book, limit, key, body.as_ref(), &info);
    Ok(plan)
}
