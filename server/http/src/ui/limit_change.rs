//! The forms of a limit: save, check, try, shadow, remove, revert, adopt.

use axum::http::StatusCode;

use crate::diff;
use crate::host::{ChangeView, ChangedLimit, LimitChange, LimitView, Scope, ServiceError};

use super::DIFF_TIME_MAX;
use super::confirm::ConfirmPage;
use super::format;
use super::limit::{LimitDraft, draft_of, edits, show_limit};
use super::limit_conflict::{LIMITS, conflict, conflict_of};
use super::limit_form::LimitFields;
use super::policy_form::{OPTIONS, PolicyFields, reconcile};
use super::removed;
use super::visit::{PageRefusal, PageResult, Posted, Visit, limit_path, redirect};

/// Minutes of recorded traffic under which a limit is tried.
const TRY_MINUTES: u64 = 60;

/// Reads the form of a limit. The policy's token and its fields are reconciled.
fn draft(posted: &Posted) -> Result<LimitDraft, PageRefusal> {
    let text = |name: &str| posted.field(name).to_owned();
    let policy = PolicyFields {
        algorithm: text("p.algorithm"),
        count: text("p.count"),
        per: text("p.per"),
        options: OPTIONS.map(|option| text(&format!("p.{}", option.name))),
    };
    let fields = LimitFields {
        name: text("name"),
        is_regex: posted.field("kind") == "regex",
        pattern: text("pattern"),
        policy: text("policy"),
        key: text("key"),
        parents: text("parents"),
        owner: text("owner"),
        note: text("note"),
        expires: text("expires"),
        shadow: posted.field("shadow") == "on",
        disabled: posted.field("disabled") == "on",
        rest: text("rest"),
    };
    let mut draft = LimitDraft {
        fields,
        version: posted.version()?,
        before: text("before"),
        reason: text("reason"),
        ..LimitDraft::default()
    };
    match reconcile(posted.field("before_policy"), &draft.fields.policy, &policy) {
        Ok(policy) => draft.fields.policy = policy,
        Err(error) => draft.error = Some(error.to_owned()),
    }
    Ok(draft)
}

/// Checks that the caller may give the limit `name` that is there the text `toml`.
fn check_rights(
    visit: &Visit,
    present: Option<&LimitView>,
    name: &str,
    toml: &str,
) -> Result<(), PageRefusal> {
    let caller = &visit.caller;
    let may_edit_present = present.is_none_or(|limit| edits(caller, limit));
    // A text with a mistake is shown with the mistake, and is never saved.
    let may_edit = visit.host().check_limit(toml).map_or(true, |limit| edits(caller, &limit));
    if may_edit_present && may_edit && caller.edits_name(name) {
        return Ok(());
    }
    Err(PageRefusal::forbidden("change this limit"))
}

/// Answers the form of a limit: `do` is `save`, `check` or `try`.
pub(super) async fn submit(posted: Posted) -> PageResult {
    let mut draft = draft(&posted)?;
    let visit = &posted.visit;
    let present = visit.host().limit(&draft.fields.name);
    // The further lines of the form are text: the rights hold for what they make of the limit.
    let toml = draft.fields.to_toml();
    check_rights(visit, present.as_ref(), &draft.fields.name, &toml)?;
    let shown = draft.version.and(present.clone());
    if let Err(error) = LimitFields::parse(&toml) {
        draft.error = draft.error.or(Some(error));
    }
    if draft.error.is_some() {
        return Ok(show_limit(visit, shown, draft, StatusCode::UNPROCESSABLE_ENTITY));
    }
    if posted.field("do") == "save" {
        return save(visit, draft, toml, present).await;
    }
    if let Err(error) = visit.host().check_limit(&toml) {
        draft.error = Some(words(error));
        return Ok(show_limit(visit, shown, draft, StatusCode::UNPROCESSABLE_ENTITY));
    }
    draft.is_right = true;
    if posted.field("do") == "try" {
        let name = draft.fields.name.clone();
        match visit.host().try_limit(name, toml, TRY_MINUTES, Scope::Cluster).await {
            Ok(result) => draft.tried = Some(result),
            Err(error) => draft.error = Some(words(error)),
        }
    }
    Ok(show_limit(visit, shown, draft, StatusCode::OK))
}

/// Answers the form with the text of a limit.
pub(super) async fn submit_text(posted: Posted) -> PageResult {
    let visit = &posted.visit;
    let toml = format!("{}\n", posted.field("toml").replace("\r\n", "\n"));
    let fields = match LimitFields::parse(&toml) {
        Ok(fields) if fields.name == posted.field("name") => fields,
        Ok(_) => {
            let detail = "The name of a limit cannot be changed: create another limit.";
            return text_again(&posted, toml, detail.to_owned());
        }
        Err(error) => return text_again(&posted, toml, error),
    };
    let present = visit.host().limit(&fields.name);
    check_rights(visit, present.as_ref(), &fields.name, &toml)?;
    let draft = LimitDraft {
        fields,
        version: posted.version()?,
        before: posted.field("before").to_owned(),
        reason: posted.field("reason").to_owned(),
        ..LimitDraft::default()
    };
    save(visit, draft, toml, present).await
}

/// Shows the form with a text that has a mistake.
fn text_again(posted: &Posted, toml: String, error: String) -> PageResult {
    let status = StatusCode::UNPROCESSABLE_ENTITY;
    let visit = &posted.visit;
    let present = visit.host().limit(posted.field("name"));
    let Some(limit) = present.filter(|limit| edits(&visit.caller, limit)) else {
        return Err(PageRefusal::new(status, error));
    };
    let error = Some(format!("{error}. Your text is below, under \u{201c}As text\u{201d}."));
    let draft = LimitDraft { version: posted.version()?, error, ..draft_of(&limit) };
    Ok(show_limit(visit, Some(LimitView { toml, ..limit }), draft, status))
}

async fn save(
    visit: &Visit,
    mut draft: LimitDraft,
    toml: String,
    present: Option<LimitView>,
) -> PageResult {
    // The caller's rights are those of a text without a mistake.
    if let Err(error) = visit.host().check_limit(&toml) {
        draft.error = Some(words(error));
        let shown = draft.version.and(present);
        return Ok(show_limit(visit, shown, draft, StatusCode::UNPROCESSABLE_ENTITY));
    }
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let name = draft.fields.name.clone();
    let change = LimitChange {
        name: name.clone(),
        toml: toml.clone(),
        before: some(&draft.before),
        note: some(&draft.reason),
        version: draft.version,
        adopt: false,
        dry_run: false,
        actor: visit.actor(),
    };
    match put(visit, present.as_ref(), change).await {
        Ok(changed) if changed.seq == 0 => Ok(redirect(&limit_path(&name), "same")),
        Ok(_) if draft.fields.disabled => Ok(redirect(&limit_path(&name), "disabled")),
        Ok(_) => Ok(redirect(&limit_path(&name), "saved")),
        Err(ServiceError::Changed(_)) if draft.version.is_none() => {
            let detail = "another limit has this name: choose a new one, or change that limit";
            draft.error = Some(detail.to_owned());
            Ok(show_limit(visit, None, draft, StatusCode::CONFLICT))
        }
        Err(error) => {
            // The limit is read again: it may have changed once more, or be gone.
            let latest = visit.host().limit(&name);
            let is_gone = draft.version.is_some() && latest.is_none();
            if is_gone || matches!(error, ServiceError::Changed(_)) {
                let mut hidden = vec![("before", draft.before), ("reason", draft.reason)];
                hidden.retain(|(_, value)| !value.is_empty());
                return Ok(conflict(visit, &name, latest, Some(toml), "/ui/limit/text", hidden));
            }
            // The form keeps what was typed.
            let status = PageRefusal::from(error.clone()).status;
            draft.error = Some(words(error));
            let shown = draft.version.and(present);
            Ok(show_limit(visit, shown, draft, status))
        }
    }
}

/// Puts a limit in place of `present`, on which the caller's rights were checked.
async fn put(
    visit: &Visit,
    present: Option<&LimitView>,
    change: LimitChange,
) -> Result<ChangedLimit, ServiceError> {
    visit.caller.may_version(present, change.version)?;
    visit.host().put_limit(change).await
}

/// Returns an error with its line.
fn words(error: ServiceError) -> String {
    match error {
        ServiceError::Invalid { detail, line: Some(line) } => format!("line {line}: {detail}"),
        error => error.to_string(),
    }
}

/// Returns the limit that a form names, if the caller may change it.
fn present(posted: &Posted) -> Result<LimitView, PageRefusal> {
    let Some(limit) = posted.visit.host().limit(posted.field("name")) else {
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "There is no limit of this name."));
    };
    if edits(&posted.visit.caller, &limit) {
        return Ok(limit);
    }
    Err(PageRefusal::forbidden("change this limit"))
}

/// Turns shadow on or off. The form is for one version of the limit.
pub(super) async fn shadow(posted: Posted) -> PageResult {
    let limit = present(&posted)?;
    let is_on = posted.field("shadow") == "on";
    let mut draft = draft_of(&limit);
    if let Some(error) = draft.error {
        return Err(PageRefusal::new(StatusCode::CONFLICT, error));
    }
    draft.fields.shadow = is_on;
    let version = posted.version()?;
    let change = LimitChange {
        name: limit.name.clone(),
        toml: draft.fields.to_toml(),
        before: None,
        note: Some(if is_on { "shadow" } else { "enforced" }.to_owned()),
        version,
        adopt: false,
        dry_run: false,
        actor: posted.visit.actor(),
    };
    let toml = change.toml.clone();
    match put(&posted.visit, Some(&limit), change).await {
        Ok(_) => {
            Ok(redirect(&limit_path(&limit.name), if is_on { "shadowed" } else { "enforced" }))
        }
        Err(ServiceError::Changed(_)) => {
            let present = posted.visit.host().limit(&limit.name);
            let name = &limit.name;
            Ok(conflict(&posted.visit, name, present, Some(toml), "/ui/limit/text", Vec::new()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the version of a form that changes a limit; a form without one is refused.
fn needed_version(posted: &Posted) -> Result<u64, PageRefusal> {
    posted.version()?.ok_or_else(|| {
        PageRefusal::new(StatusCode::PRECONDITION_REQUIRED, "The form names no version.")
    })
}

pub(super) async fn remove(posted: Posted) -> PageResult {
    let limit = present(&posted)?;
    let version = needed_version(&posted)?;
    let (name, visit) = (limit.name.clone(), &posted.visit);
    if !posted.is_confirmed() {
        if version != limit.version {
            return Ok(conflict_of(&posted, limit, None, "/ui/limit/remove", vec![]));
        }
        let is_kept = removed::is_kept(visit, &limit);
        let keys = visit.host().report(&name, TRY_MINUTES).map_or(0, |report| report.active_keys);
        let confirm = ConfirmPage {
            frame: visit.frame(format!("Remove {name}?"), LIMITS),
            effects: vec![
                if name.starts_with('@') {
                    "The exemptions end: limits count the keys that were exempt.".to_owned()
                } else {
                    format!(
                        "The limit {name} ({}) stops: keys it matches are plain.",
                        limit.pattern
                    )
                },
                format!(
                    "{} active keys and {} overrides lose it.",
                    format::count(keys),
                    format::count(limit.overrides)
                ),
                removed::kept(is_kept).to_owned(),
            ],
            // The text is shown where it would be lost.
            diff: if is_kept { vec![] } else { diff::lines(&limit.toml, "", DIFF_TIME_MAX) },
            action: "/ui/limit/remove",
            hidden: vec![("name", name.clone()), ("version", version.to_string())],
            button: "Remove the limit",
            back: limit_path(&name),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    let removed = async {
        visit.caller.may_version(Some(&limit), Some(version))?;
        visit.host().remove_limit(name.clone(), version, None, visit.actor()).await
    };
    match removed.await {
        Ok(_) => Ok(redirect(LIMITS, "removed")),
        Err(ServiceError::Changed(_)) => {
            let (present, hidden) = (visit.host().limit(&name), vec![]);
            Ok(conflict(visit, &name, present, None, "/ui/limit/remove", hidden))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the change that a form names and its text, if the caller may give it to the limit.
pub(super) fn old_text(
    posted: &Posted,
    name: &str,
    present: Option<&LimitView>,
) -> Result<(u64, String), PageRefusal> {
    let visit = &posted.visit;
    let seq = posted.field("seq").parse().ok();
    let history = visit.host().history(Some(name));
    let is_it = |change: &ChangeView| Some(change.seq) == seq && change.what == "limit";
    let change = history.into_iter().find(is_it);
    let Some((seq, body)) = change.and_then(|change| Some((change.seq, change.body?))) else {
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "History no longer has this text."));
    };
    if !visit.caller.is_unrestricted() {
        visit.host().check_limit(&body)?;
        check_rights(visit, present, name, &body)?;
    } else if LimitFields::parse(&body).is_err() && !visit.caller.administers() {
        return Err(PageRefusal::forbidden("put this text"));
    }
    Ok((seq, body))
}

pub(super) async fn revert(posted: Posted) -> PageResult {
    if posted.visit.host().limit(posted.field("name")).is_none() {
        return removed::bring_back(posted).await;
    }
    let limit = present(&posted)?;
    let (name, visit) = (limit.name.clone(), &posted.visit);
    let (seq, body) = old_text(&posted, &name, Some(&limit))?;
    let Some(version) = posted.version()? else {
        // The form is of a removed limit, and the name exists again.
        let hidden = vec![("seq", seq.to_string())];
        return Ok(conflict_of(&posted, limit, Some(body), "/ui/limit/revert", hidden));
    };
    if !posted.is_confirmed() {
        if version != limit.version {
            let hidden = vec![("seq", seq.to_string())];
            return Ok(conflict_of(&posted, limit, Some(body), "/ui/limit/revert", hidden));
        }
        let confirm = ConfirmPage {
            frame: visit.frame(format!("Revert {name} to change {seq}?"), LIMITS),
            effects: vec![format!("The limit {name} gets the text that change {seq} gave it.")],
            diff: diff::lines(&limit.toml, &body, DIFF_TIME_MAX),
            action: "/ui/limit/revert",
            hidden: vec![
                ("name", name.clone()),
                ("seq", seq.to_string()),
                ("version", version.to_string()),
            ],
            button: "Revert the limit",
            back: limit_path(&name),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    let reverted = async {
        visit.caller.may_version(Some(&limit), Some(version))?;
        visit.host().revert_limit(name.clone(), seq, Some(version), visit.actor()).await
    };
    match reverted.await {
        Ok(_) => Ok(redirect(&limit_path(&name), "reverted")),
        Err(ServiceError::Changed(_)) => {
            let (present, hidden) = (visit.host().limit(&name), vec![("seq", seq.to_string())]);
            Ok(conflict(visit, &name, present, Some(body), "/ui/limit/revert", hidden))
        }
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn adopt(posted: Posted) -> PageResult {
    let visit = &posted.visit;
    if !visit.caller.administers() {
        return Err(PageRefusal::forbidden("adopt limits of a file"));
    }
    let limit = present(&posted)?;
    let version = needed_version(&posted)?;
    let (name, file) = (limit.name.clone(), limit.file.clone().unwrap_or_default());
    if !posted.is_confirmed() {
        if version != limit.version {
            let toml = Some(limit.toml.clone());
            return Ok(conflict_of(&posted, limit, toml, "", vec![]));
        }
        let confirm = ConfirmPage {
            frame: visit.frame(format!("Adopt {name}?"), LIMITS),
            effects: vec![format!(
                "The API decides about the limit {name} from now on. The server ignores its text \
                 in {file}, with a warning."
            )],
            diff: Vec::new(),
            action: "/ui/limit/adopt",
            hidden: vec![("name", name.clone()), ("version", version.to_string())],
            button: "Adopt the limit",
            back: limit_path(&name),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    let change = LimitChange {
        name: name.clone(),
        toml: limit.toml.clone(),
        before: None,
        note: Some("adopted".to_owned()),
        version: Some(version),
        adopt: true,
        dry_run: false,
        actor: visit.actor(),
    };
    match visit.host().put_limit(change).await {
        Ok(_) => Ok(redirect(&limit_path(&name), "adopted")),
        Err(ServiceError::Changed(_)) => {
            Ok(conflict(visit, &name, Some(limit.clone()), Some(limit.toml), "", Vec::new()))
        }
        Err(error) => Err(error.into()),
    }
}
