//! The limits of a cluster, which are in its map: in force here, and changed from here.
//!
//! Here: following the map, proposing what an operator or a limits file changes, and what becomes of a
//! file at start. Not here: what a limit's body is, and what an edit makes of bodies
//! (`crate::limits::map_text`).
//!
//! The map is what holds. A node's own file speaks when a cluster has never been told its limits, and
//! after that only by what changes in it while the node runs: a node that comes back with an old file
//! takes back nothing.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cluster::map::command::{FOUNDED, LIMITS_SET, Setting, YES};
use cluster::map::{BODY_BYTES_MAX, Map, MapCommand, MapRefusal};
use control::{Control, ProposeError};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Node;
use crate::limits::map_text::{self, EditError, LimitEdit, LimitText, OrderedLimit};
use crate::limits::{Limits, LimitsError};
use crate::runtime::service::Service;

/// Limits that do not agree for so long are a mistake; before that they may be half of a change.
const HALF_CHANGED: Duration = Duration::from_secs(1);
/// For one command.
const COMMAND_TTL: Duration = Duration::from_secs(5);
/// Between two looks at what nobody tells.
const POLL: Duration = Duration::from_millis(20);
/// Before what failed for want of a leader is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// So often others may come between.
const TRIES: usize = 20;
/// Commands under way at once.
const COMMANDS_MAX: usize = 32;
/// Most names in a line of the log.
const NAMES_MAX: usize = 20;

/// The limits file as this node read it last.
#[derive(Debug, Default)]
pub(crate) struct FileTexts {
    texts: Mutex<Arc<Vec<LimitText>>>,
    changed: Notify,
    failed: OnceLock<String>,
}

impl FileTexts {
    pub(crate) fn change(&self, texts: Vec<LimitText>) {
        *self.texts.lock() = Arc::new(texts);
        self.changed.notify_one();
    }

    /// Why no limit can be put in force, where some should be: the node must not serve without them.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    fn fail(&self, error: &impl Display) {
        let _ = self.failed.set(error.to_string());
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.texts.lock().is_empty()
    }

    pub(super) fn get(&self) -> Arc<Vec<LimitText>> {
        Arc::clone(&self.texts.lock())
    }
}

/// Why the limits were not changed. `Display` is for operators.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitsChangeError {
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("limit {0} has {1} bytes as the cluster writes it, and may have {BODY_BYTES_MAX}")]
    TooLong(String, usize),
    #[error("limit {0}: {1}")]
    Refused(String, MapRefusal),
    #[error(transparent)]
    NoOutcome(#[from] ProposeError),
    #[error("others change the limits too")]
    Contended,
    #[error(transparent)]
    Failed(#[from] TaskFailed),
}

impl LimitsChangeError {
    /// It would be refused again.
    pub(super) fn is_final(&self) -> bool {
        !matches!(self, Self::NoOutcome(_) | Self::Contended | Self::Failed(_))
    }
}

fn entries_of(map: &Map) -> Vec<OrderedLimit> {
    let bodies = map.limits().iter();
    map_text::entries(bodies.map(|(name, limit)| (name.as_str(), limit.body.as_slice())))
}

/// The limits as a limits file.
pub(super) fn as_file(map: &Map) -> String {
    map_text::as_file(&entries_of(map))
}

/// Which limits a map has. A limit that is put gets a version above all others, so two maps of a
/// cluster with the same number of limits and the same highest version have the same limits.
type LimitsMark = (usize, u64);

fn mark_of(map: &Map) -> LimitsMark {
    let versions = map.limits().values().map(|limit| limit.version);
    (map.limits().len(), versions.max().unwrap_or(0))
}

/// Runs `work` where it keeps no client waiting: compiling thousands of limits takes a while.
async fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TaskFailed> {
    // When another thread is done is nothing that a seed decides.
    #[cfg(feature = "simulation")]
    if crate::net::world::is_on() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| TaskFailed)
}

/// What ran aside did not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limits could not be compiled")]
pub(super) struct TaskFailed;

/// Puts the limits of the map in force whenever they change. Those that do not agree leave in force what
/// was; at start, where nothing was, the ones that do agree. `first` is told when there are any.
pub(super) async fn follow(service: Arc<Service>, control: Control, first: oneshot::Sender<()>) {
    control.registered().await;
    let mut first = Some(first);
    let mut watch = control.watch();
    let mut seen: Option<LimitsMark> = None;
    // With the time from which on it is told.
    let mut fault: Option<(u64, LimitsError)> = None;
    let now_ns = || service.clock().now().mono.0;
    loop {
        let news = match &fault {
            Some((due_ns, _)) => {
                let left = Duration::from_nanos(due_ns.saturating_sub(now_ns()));
                timeout(left, watch.changed()).await.ok()
            }
            None => Some(watch.changed().await),
        };
        // The map itself is not kept: its next change would copy it.
        let changed = news.and_then(|news| {
            let mark = mark_of(&news.map);
            let is_new = news.map.head().is_some() && seen.replace(mark) != Some(mark);
            is_new.then(|| entries_of(&news.map))
        });
        if let Some(entries) = changed {
            if let Some(first) = first.take() {
                let made = spawn_blocking(move || map_text::limits_that_agree(entries)).await;
                if let Ok((limits, refused)) = made {
                    if let (true, Some(error), Some(node)) =
                        (limits.is_empty(), &refused, service.node())
                    {
                        node.limits_file.fail(error);
                        // `first` is kept: no key may be served without its limit until the end.
                        return std::future::pending().await;
                    }
                    service.limits().replace(limits);
                    fault = refused.map(|error| (now_ns(), error));
                }
                let _ = first.send(());
            } else if let Ok(made) = spawn_blocking(move || map_text::limits(&entries)).await {
                let made = made.map(|limits| service.limits().replace(limits));
                let due_ns = now_ns() + HALF_CHANGED.as_nanos() as u64;
                fault = made.err().map(|error| (due_ns, error));
            }
        }
        if let Some((_, error)) = fault.take_if(|(due_ns, _)| *due_ns <= now_ns()) {
            service.limits().refuse(&error);
            tracing::error!(%error, "the cluster's limits do not agree: what agreed stays in force");
        }
    }
}

/// Has the cluster make of its limits what `edit` makes of them, again when others come between.
/// Answers how many limits were changed.
pub(super) async fn change(
    control: &Control,
    edit: impl Fn(&mut Vec<OrderedLimit>) -> Result<(), EditError>,
) -> Result<usize, LimitsChangeError> {
    let mut count = 0;
    for _ in 0..TRIES {
        let (before, versions) = {
            let map = control.map();
            let limits = map.limits().iter();
            let versions: HashMap<String, u64> =
                limits.map(|(name, limit)| (name.clone(), limit.version)).collect();
            (entries_of(&map), versions)
        };
        let mut after = before.clone();
        edit(&mut after)?;
        map_text::number(&mut after);
        let changes = map_text::changes(&before, &after);
        let long = |(name, body): &LimitEdit| {
            let bytes = body.as_ref().map_or(0, Vec::len);
            (bytes > BODY_BYTES_MAX).then(|| LimitsChangeError::TooLong(name.clone(), bytes))
        };
        if let Some(error) = changes.iter().find_map(long) {
            return Err(error);
        }
        if changes.is_empty() {
            return Ok(count);
        }
        // Who finds limits that do not agree may mend them one by one.
        spawn_blocking(move || {
            map_text::limits(&after).or_else(|error| match map_text::limits(&before) {
                Ok(_) => Err(error),
                Err(_) => Ok(Limits::default()),
            })
        })
        .await??;
        let (done, is_whole) = propose(control, changes, &versions).await?;
        count += done;
        if is_whole {
            return Ok(count);
        }
        sleep(POLL).await;
    }
    Err(LimitsChangeError::Contended)
}

/// Proposes them side by side. Answers how many were done, and whether that is all: others may have
/// changed some of them meanwhile.
async fn propose(
    control: &Control,
    changes: Vec<LimitEdit>,
    versions: &HashMap<String, u64>,
) -> Result<(usize, bool), LimitsChangeError> {
    let mut under_way = JoinSet::new();
    let (mut waiting, mut done, mut is_whole) = (changes.into_iter(), 0, true);
    let mut failed = None;
    loop {
        while failed.is_none()
            && under_way.len() < COMMANDS_MAX
            && let Some((name, body)) = waiting.next()
        {
            let version = versions.get(&name).copied().unwrap_or(0);
            let command = MapCommand::PutLimit { name: name.clone(), version, body };
            let control = control.clone();
            under_way.spawn(async move { (name, control.propose(command, COMMAND_TTL).await) });
        }
        let Some(ended) = under_way.join_next().await else { break };
        let Ok((name, outcome)) = ended else { return Err(TaskFailed.into()) };
        match outcome.map(|outcome| outcome.answer) {
            Ok(Ok(_)) => done += 1,
            Ok(Err(MapRefusal::OtherVersion(_))) => is_whole = false,
            Ok(Err(refused)) => failed = Some(LimitsChangeError::Refused(name, refused)),
            Err(error) => failed = Some(error.into()),
        }
    }
    failed.map_or(Ok((done, is_whole)), Err)
}

/// Notes that the cluster was told its limits: no file decides them any more.
pub(super) async fn note_limits_set(control: &Control) -> Result<(), ProposeError> {
    if control.map().settings().others.contains_key(LIMITS_SET) {
        return Ok(());
    }
    let mark = Setting::Other { name: LIMITS_SET.to_owned(), value: Some(YES.to_owned()) };
    control.propose(MapCommand::Set(mark), COMMAND_TTL).await.map(drop)
}

/// Gives a cluster that was never told its limits those of this file.
pub(super) async fn found(node: &Node, control: &Control, texts: &[LimitText]) {
    while !texts.is_empty() && !control.map().settings().others.contains_key(LIMITS_SET) {
        // What is there came from the same file on another node, or from another file: it stays.
        let add = |entries: &mut Vec<OrderedLimit>| {
            let has = |name: &str| entries.iter().any(|entry| entry.text.name == name);
            let there: Vec<LimitText> =
                texts.iter().filter(|text| has(&text.name)).cloned().collect();
            map_text::follow_file(entries, &there, texts);
            Ok(())
        };
        let result = match change(control, add).await {
            Ok(count) => {
                tracing::info!(count, "the limits of the file are the cluster's");
                note_limits_set(control).await.map_err(LimitsChangeError::from)
            }
            Err(error) => Err(error),
        };
        match result {
            Err(error) if error.is_final() => {
                tracing::error!(%error, "the limits of the file cannot be the cluster's");
                if control.map().limits().is_empty() {
                    node.limits_file.fail(&error);
                }
                return;
            }
            Err(_) => sleep(PAUSE).await,
            Ok(()) => {}
        }
    }
}

/// Names that stand for different limits, or for one on one side only.
fn differing(texts: &[LimitText], entries: &[OrderedLimit]) -> BTreeSet<String> {
    let of_file: HashMap<&str, &LimitText> =
        texts.iter().map(|text| (text.name.as_str(), text)).collect();
    let of_map: HashMap<&str, &LimitText> =
        entries.iter().map(|entry| (entry.text.name.as_str(), &entry.text)).collect();
    let names = of_file.keys().chain(of_map.keys());
    let differ = names.filter(|name| of_file.get(**name) != of_map.get(**name));
    differ.map(|name| (*name).to_owned()).collect()
}

/// Brings the cluster what is changed in the limits file of this node while it runs. `last` is the file
/// as the process read it first.
pub(super) async fn follow_file(node: Arc<Node>, control: Control, mut last: Arc<Vec<LimitText>>) {
    control.registered().await;
    // The founder's file comes first.
    while !control.map().settings().others.contains_key(FOUNDED) {
        sleep(POLL).await;
    }
    found(&node, &control, &last).await;
    let differ = differing(&last, &entries_of(&control.map()));
    if !differ.is_empty() {
        let names: Vec<&str> = differ.iter().take(NAMES_MAX).map(String::as_str).collect();
        let names = names.join(" ");
        tracing::warn!(
            count = differ.len(),
            names,
            "the cluster's limits are other than those of the limits file, and stay so: what changes \
             in the file from now on is changed, or use tollgate cluster limits put"
        );
    }
    loop {
        node.limits_file.changed.notified().await;
        loop {
            let now = node.limits_file.get();
            if now == last {
                break;
            }
            let edit = |entries: &mut Vec<OrderedLimit>| {
                map_text::follow_file(entries, &last, &now);
                Ok(())
            };
            let result = match change(&control, edit).await {
                Ok(count) => {
                    note_limits_set(&control).await.map(|()| count).map_err(LimitsChangeError::from)
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(count) => {
                    tracing::info!(count, "limits changed as in the limits file");
                    last = now;
                }
                Err(error) if error.is_final() => {
                    // It is tried again with the next change of the file.
                    tracing::error!(%error, "limits kept as they were");
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "limits are not changed yet");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}
