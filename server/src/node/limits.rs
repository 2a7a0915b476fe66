//! The limits of a cluster, which are part of its map: putting them in force, and changing them.
//!
//! Here: following the map, proposing changes. Not here: the condition for the first limits
//! (`first`), the limits file (`from_file`), the body of a limit and edits of bodies
//! (`tollgate_limits::map_text`).
//!
//! The map is authoritative. A node's limits file applies in full only to a cluster whose limits
//! were never set. After that only changes of the file while the node runs apply, so a node that
//! returns with an old file reverts nothing.

mod file_texts;
mod first;
mod from_file;

use std::sync::Arc;
use std::time::Duration;

use cluster::map::command::{LIMITS_SET, Setting, YES};
use cluster::map::{BODY_BYTES_MAX, LIMITS_VERSION, Map, MapCommand, MapRefusal, OWN_NAME, Put};
use control::{Control, ProposeError};
use hashbrown::HashMap;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate_http::ServiceError;
use tollgate_limits::map_text::{self, EditError, LimitEdit, OrderedLimit, is_text, stored_limits};
use tollgate_limits::{Limits, LimitsError};

pub(crate) use self::file_texts::FileTexts;
pub(super) use self::from_file::{follow_file, found};
use super::Node;
use crate::limits::FaultOf;
use crate::runtime::service::Service;

/// Limits that do not agree for this long are an error; until then a change may be half applied.
const HALF_CHANGED: Duration = Duration::from_secs(1);
/// The time to live of one command.
const COMMAND_TTL: Duration = Duration::from_secs(5);
/// Time between two looks at state that has no notification.
const POLL: Duration = Duration::from_millis(20);
/// Most attempts at a change while concurrent changes interfere.
const TRIES: usize = 20;
/// Most commands under way at once.
const COMMANDS_MAX: usize = 32;

/// Why the limits were not changed. `Display` is for operators.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitsChangeError {
    #[error(transparent)]
    Edit(#[from] EditError),
    #[error(transparent)]
    Limits(#[from] LimitsError),
    #[error("limit {0} has {1} bytes as the cluster writes it, and may have {BODY_BYTES_MAX}")]
    TooLong(String, usize),
    #[error("{}", map_text::being_updated(.0, .1))]
    BeingUpdated(String, &'static str),
    #[error("limit {0}: {1}")]
    Refused(String, MapRefusal),
    #[error(transparent)]
    NoOutcome(#[from] ProposeError),
    #[error("others change the limits too")]
    Contended,
    #[error(transparent)]
    Failed(#[from] TaskFailed),
    #[error(transparent)]
    Service(#[from] ServiceError),
}

impl LimitsChangeError {
    /// Whether another attempt would be refused again.
    pub(super) fn is_final(&self) -> bool {
        let is_passing = matches!(
            self,
            Self::NoOutcome(_)
                | Self::Contended
                | Self::BeingUpdated(..)
                | Self::Failed(_)
                | Self::Service(ServiceError::Unavailable(_))
        );
        !is_passing
    }
}

fn entries_of(map: &Map) -> Vec<OrderedLimit> {
    let bodies = map.limits().iter().filter(|(name, _)| is_text(name));
    map_text::entries(bodies.map(|(name, limit)| (name.as_str(), limit.body.as_slice())))
}

/// The limits in the format of a limits file.
pub(super) fn as_file(map: &Map) -> String {
    map_text::as_file(&entries_of(map))
}

/// Identifies the limits of a map. A changed limit gets a version above all others, so two maps of
/// a cluster with equally many limits and the same highest version have the same limits.
type LimitsMark = (usize, u64);

fn mark_of(map: &Map) -> LimitsMark {
    let limits = map.limits().iter().filter(|(name, _)| is_text(name));
    limits.fold((0, 0), |(count, newest), (_, limit)| (count + 1, newest.max(limit.version)))
}

/// Identifies all records of a map in the same way.
fn mark_of_records(map: &Map) -> LimitsMark {
    let versions = map.limits().values().map(|record| record.version);
    (map.limits().len(), versions.max().unwrap_or(0))
}

/// Runs `work` off the runtime's threads: compiling thousands of limits would delay clients.
async fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, TaskFailed> {
    // The moment at which another thread finishes does not depend on the simulation's seed.
    #[cfg(feature = "simulation")]
    if crate::net::world::is_on() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(|_| TaskFailed)
}

/// The blocking task did not finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limits could not be compiled")]
pub(super) struct TaskFailed;

/// Puts limits in force, with the overrides of the map; without limits only overrides that changed.
async fn put_in_force(service: &Arc<Service>, limits: Option<Limits>) {
    let store = Arc::clone(service.limits_store());
    // Without a result the process ends.
    let _ = spawn_blocking(move || store.follow(limits)).await;
}

/// Puts the limits of the map in force whenever they change. Limits that do not agree leave the
/// previous ones in force; at start, where there are none, those that do agree are put in force.
/// Sends on `first` once the first limits of the cluster are in force.
pub(super) async fn follow(
    service: Arc<Service>,
    node: Arc<Node>,
    control: Control,
    first: oneshot::Sender<()>,
) {
    control.registered().await;
    if first::until_in_map(&service, &node, &control).await {
        follow_map(service, node, control, Some(first)).await;
    } else {
        // `first` is not sent: no key may be served without its limit.
        std::future::pending::<()>().await;
    }
}

async fn follow_map(
    service: Arc<Service>,
    node: Arc<Node>,
    control: Control,
    mut first: Option<oneshot::Sender<()>>,
) {
    let mut watch = control.watch();
    let mut seen: Option<LimitsMark> = None;
    let mut seen_records: Option<LimitsMark> = None;
    // With the time at which it is reported.
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
        // The map itself is not kept, because its next change would then copy it.
        let mut have_records_changed = false;
        let changed = news.and_then(|news| {
            let mark = mark_of_records(&news.map);
            have_records_changed = seen_records.replace(mark) != Some(mark);
            if !have_records_changed {
                return None;
            }
            let mark = mark_of(&news.map);
            let is_new = news.map.head().is_some() && seen.replace(mark) != Some(mark);
            is_new.then(|| entries_of(&news.map))
        });
        let is_other_record = have_records_changed && changed.is_none();
        if let Some(entries) = changed {
            if let Some(first) = first.take() {
                let made = spawn_blocking(move || map_text::limits_that_agree(entries)).await;
                if let Ok((limits, refused)) = made {
                    if let (true, Some(error)) = (limits.is_empty(), &refused) {
                        node.limits_file.fail(error);
                        // `first` is not sent: no key may be served without its limit.
                        return std::future::pending().await;
                    }
                    put_in_force(&service, Some(limits)).await;
                    fault = refused.map(|error| (now_ns(), error));
                }
                let _ = first.send(());
            } else if let Ok(made) = spawn_blocking(move || stored_limits(&entries)).await {
                let due_ns = now_ns() + HALF_CHANGED.as_nanos() as u64;
                fault = match made {
                    Ok(limits) => {
                        put_in_force(&service, Some(limits)).await;
                        None
                    }
                    Err(error) => Some((due_ns, error)),
                };
            }
        } else if is_other_record && first.is_none() {
            put_in_force(&service, None).await;
        }
        if let Some((_, error)) = fault.take_if(|(due_ns, _)| *due_ns <= now_ns()) {
            service.limits().refuse_of(FaultOf::InForce, &error);
            tracing::error!(
                %error,
                "the cluster's limits do not agree: the limits in force stay, correct the others"
            );
        }
    }
}

/// Applies `edit` to the cluster's limits, repeatedly while concurrent changes interfere. Returns
/// the number of changed limits.
pub(super) async fn change(
    control: &Control,
    edit: impl Fn(&mut Vec<OrderedLimit>) -> Result<(), EditError>,
) -> Result<usize, LimitsChangeError> {
    let mut count = 0;
    for _ in 0..TRIES {
        let (before, versions, feature_version) = {
            let map = control.map();
            let limits = map.limits().iter();
            let versions: HashMap<String, u64> =
                limits.map(|(name, limit)| (name.clone(), limit.version)).collect();
            (entries_of(&map), versions, map.settings().version)
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
        if let Some(error) = new_part_of(&changes, feature_version) {
            return Err(error);
        }
        if changes.is_empty() {
            return Ok(count);
        }
        // If the limits do not agree already, an operator may correct them one by one.
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

/// The reason against changes that nodes of this feature version cannot read.
fn new_part_of(changes: &[LimitEdit], feature_version: u32) -> Option<LimitsChangeError> {
    if feature_version >= LIMITS_VERSION {
        return None;
    }
    changes.iter().find_map(|(name, body)| {
        let text = OrderedLimit::of_body(name, body.as_ref()?).text;
        Some(LimitsChangeError::BeingUpdated(name.clone(), map_text::new_part(&text)?))
    })
}

/// Proposes the changes concurrently. Returns the number of applied changes, and whether all were
/// applied: concurrent changes may have altered some limits.
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
            let command = if name.starts_with(OWN_NAME) {
                MapCommand::Change(vec![Put { name: name.clone(), version, body }])
            } else {
                MapCommand::PutLimit { name: name.clone(), version, body }
            };
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

/// Records in the map that the cluster's limits were set: limits files no longer decide them.
pub(super) async fn note_limits_set(control: &Control) -> Result<(), ProposeError> {
    if control.map().settings().others.contains_key(LIMITS_SET) {
        return Ok(());
    }
    let mark = Setting::Other { name: LIMITS_SET.to_owned(), value: Some(YES.to_owned()) };
    control.propose(MapCommand::Set(mark), COMMAND_TTL).await.map(drop)
}
