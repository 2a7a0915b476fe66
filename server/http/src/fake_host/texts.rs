//! The limits of the fake host, and the texts and keys that it reads.

use super::VERSION;
use crate::host::{
    ChangeView, LimitActivity, LimitChange, LimitView, MatchView, ParentView, SeriesPoint,
    ServiceError, TailEvent,
};

/// The name of a limit that is removed while somebody changes it.
const GONE: &str = "gone";

/// A limit of the name `name` with keys that begin with it.
pub(super) fn limit(name: &str, source: &str) -> LimitView {
    LimitView {
        name: name.to_owned(),
        pattern: format!("{name}:{{user}}"),
        literal_front: format!("{name}:"),
        counted_front: format!("{name}:"),
        policy: "fixed:5/m".to_owned(),
        toml: format!(
            "[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{user}}\"\npolicy = \"fixed:5/m\"\n"
        ),
        source: source.to_owned(),
        file: (source == "file").then(|| "limits.toml".to_owned()),
        version: VERSION,
        by: Some("alice".to_owned()),
        at_ms: Some(1_790_000_000_000),
        owner: Some("team-a".to_owned()),
        note: Some("see <b>runbook</b>".to_owned()),
        overrides: 1,
        ..LimitView::default()
    }
}

/// A change of the limit `login`.
pub(super) fn change(seq: u64, note: &str) -> ChangeView {
    ChangeView {
        seq,
        at_ms: 1_790_000_000_000 + seq * 1000,
        by: "alice".to_owned(),
        via: "api".to_owned(),
        what: "limit".to_owned(),
        name: "login".to_owned(),
        key: None,
        from: seq - 1,
        to: seq,
        note: Some(note.to_owned()),
        reverts: None,
        body: Some(format!("policy = \"fixed:{seq}/m\"\n")),
        body_before: Some(format!("policy = \"fixed:{}/m\"\n", seq - 1)),
    }
}

/// The history of the limit `cm`, which was created and removed.
pub(super) fn removed() -> Vec<ChangeView> {
    let body = Some(limit("cm", "api").toml);
    let of_cm = |seq, note| ChangeView { name: "cm".to_owned(), ..change(seq, note) };
    vec![
        ChangeView { to: 0, body: None, body_before: body.clone(), ..of_cm(5, "old") },
        ChangeView { from: 0, body, body_before: None, ..of_cm(4, "new") },
    ]
}

/// The text before the first capture.
fn front(template: &str) -> String {
    template.split('{').next().unwrap_or_default().to_owned()
}

/// Refuses a change of a version of the limit [`GONE`], as a store does once a limit is removed.
pub(super) fn check_gone(change: &LimitChange) -> Result<(), ServiceError> {
    let is_gone = change.name == GONE && change.version.is_some();
    if is_gone { Err(ServiceError::NotFound(format!("there is no limit {GONE}"))) } else { Ok(()) }
}

/// Reads the fields of a limit that tests write.
pub(super) fn checked(toml: &str) -> Result<LimitView, ServiceError> {
    let quoted = |field: &str| {
        let (_, rest) = toml.split_once(&format!("{field} = \""))?;
        rest.split_once('"').map(|(text, _)| text.to_owned())
    };
    if !toml.contains("policy") {
        let detail = "missing field `policy`".to_owned();
        return Err(ServiceError::Invalid { detail, line: Some(1) });
    }
    let mut found = limit(&quoted("name").unwrap_or_else(|| "login".to_owned()), "api");
    if let Some(pattern) = quoted("match") {
        (found.literal_front, found.pattern) = (front(&pattern), pattern);
    }
    if toml.contains("regex = ") {
        found.literal_front.clear();
    }
    found.counted_front =
        quoted("\nkey").map_or_else(|| found.literal_front.clone(), |key| front(&key));
    if let Some((_, parents)) = toml.split_once("\nparents = [\"") {
        let parents = parents.split(']').next().unwrap_or_default();
        found.parent_fronts = parents.split('"').step_by(2).map(front).collect();
    }
    Ok(found)
}

/// Returns the limit of a key. A key with `>` is counted under the text behind it, and one with `+`
/// charges the parent behind it.
pub(super) fn matched(key: &[u8]) -> MatchView {
    let key = String::from_utf8_lossy(key).into_owned();
    if !key.starts_with("login:") {
        let captures = vec![("user".to_owned(), key.clone())];
        return MatchView { key, captures, ..MatchView::default() };
    }
    let counted = key.split_once('>').map_or(key.as_str(), |(_, counted)| counted);
    let parent = |key: &str| ParentView {
        limit: "api".to_owned(),
        key: key.to_owned(),
        policy: "fixed:5/m".to_owned(),
    };
    MatchView {
        limit: Some("login".to_owned()),
        captures: vec![("user".to_owned(), key.replacen("login:", "", 1))],
        counted_key: Some(counted.to_owned()),
        policy: Some("fixed:5/m".to_owned()),
        parents: key.split('+').skip(1).map(parent).collect(),
        key,
        ..MatchView::default()
    }
}

/// A limit whose counted keys differ from the keys of clients.
pub(super) fn page_limit() -> LimitView {
    let page = limit("page", "api");
    let toml = page.toml.replace("{user}", "{user}:{path}") + "key = \"page:{user}\"\n";
    LimitView { pattern: "page:{user}:{path}".to_owned(), toml, has_own_keys: true, ..page }
}

/// Ten minutes of a limit.
pub(super) fn series() -> Vec<SeriesPoint> {
    let point = |at: u64| SeriesPoint {
        at_ms: 1_790_000_000_000 + at * 60_000,
        allowed: 10 + at,
        denied: at,
        shadow_denied: 0,
        units: 10 + at,
    };
    (0..10).map(point).collect()
}

/// The same minutes, and the last one.
pub(super) fn activity() -> LimitActivity {
    let last_minute = SeriesPoint { allowed: 100, denied: 50, ..SeriesPoint::default() };
    LimitActivity { last_minute, minutes: series(), near: 3 }
}

/// Returns the event alone, or with a denial of each key and the other kinds of events.
pub(super) fn more_events(event: TailEvent, keys: &[String]) -> Vec<TailEvent> {
    let of = |kind, key: &str| TailEvent { kind, key: key.to_owned(), ..event.clone() };
    let mut all: Vec<TailEvent> = keys.iter().map(|key| of("denied", key)).collect();
    if !keys.is_empty() {
        all.extend([of("limit-changed", "api"), of("node", "n2 is dead")]);
    }
    all.push(event);
    all
}
