//! The limits file of a node, applied to the cluster.
//!
//! Here: the first limits of a cluster, and changes of the file while the node runs. Not here: the
//! file's text as last read (`file_texts`), proposing a change (`super`).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::map::RECORDS_VERSION;
use cluster::map::command::{FOUNDED, LIMITS_SET};
use control::Control;
use hashbrown::HashMap;
use tokio::time::sleep;
use tollgate_limits::LimitsError;
use tollgate_limits::map_text::{self, LimitText, OrderedLimit};

use super::super::{Node, updates};
use super::{LimitsChangeError, POLL, change, entries_of, note_limits_set};
use crate::limits::FaultOf;
use crate::limits::service::LimitsRequest;
use crate::runtime::service::Service;

/// Time before the next attempt after a failure for want of a leader.
const PAUSE: Duration = Duration::from_secs(1);
/// Most names in a log line.
const NAMES_MAX: usize = 20;

/// Gives the limits of this file to a cluster whose limits were never set. Returns the reason if
/// the cluster refuses them.
pub(in super::super) async fn found(
    node: &Node,
    control: &Control,
    texts: &[LimitText],
) -> Option<LimitsChangeError> {
    while !texts.is_empty() && !control.map().settings().others.contains_key(LIMITS_SET) {
        // Existing limits came from this file on another node, or from another file: they stay.
        let add = |entries: &mut Vec<OrderedLimit>| {
            let has = |name: &str| entries.iter().any(|entry| entry.text.name == name);
            let there: Vec<LimitText> =
                texts.iter().filter(|text| has(&text.name)).cloned().collect();
            map_text::follow_file(entries, &there, texts);
            Ok(())
        };
        let result = match change(control, add).await {
            Ok(count) => {
                tracing::info!(count, "the limits file is now in force in the cluster");
                note_limits_set(control).await.map_err(LimitsChangeError::from)
            }
            Err(error) => Err(error),
        };
        match result {
            Err(error) if error.is_final() => {
                tracing::error!(%error, "the cluster refuses the limits file: correct the file");
                if control.map().limits().is_empty() {
                    node.limits_file.fail(&error);
                }
                node.limits_file.give_up();
                return Some(error);
            }
            Err(LimitsChangeError::BeingUpdated(..)) => {
                if control.map().settings().others.contains_key(FOUNDED) {
                    // The cluster serves without these limits until its last node is updated.
                    node.limits_file.give_up();
                }
                updates::raise(node, control).await;
                sleep(POLL).await;
            }
            Err(_) => sleep(PAUSE).await,
            Ok(()) => {}
        }
    }
    None
}

/// Names of limits that differ between file and map, or exist in one of them only.
fn differing(texts: &[LimitText], entries: &[OrderedLimit]) -> BTreeSet<String> {
    let of_file: HashMap<&str, &LimitText> =
        texts.iter().map(|text| (text.name.as_str(), text)).collect();
    let of_map: HashMap<&str, &LimitText> =
        entries.iter().map(|entry| (entry.text.name.as_str(), &entry.text)).collect();
    let names = of_file.keys().chain(of_map.keys());
    let differ = names.filter(|name| of_file.get(**name) != of_map.get(**name));
    differ.map(|name| (*name).to_owned()).collect()
}

/// Records that the cluster refuses the limits file of this node.
fn note_refusal(service: &Service, error: &LimitsChangeError) {
    let path = path_of(service).to_owned();
    let fault = LimitsError::Conflict { path, reason: error.to_string() };
    service.limits().refuse_of(FaultOf::FileChange, &fault);
}

fn path_of(service: &Service) -> &Path {
    service.config().limits_file.as_deref().unwrap_or(Path::new("-"))
}

/// Applies the difference of two versions of the limits file. Returns the number of changes.
async fn follow_change(
    service: &Arc<Service>,
    control: &Control,
    last: &Arc<Vec<LimitText>>,
    now: &Arc<Vec<LimitText>>,
) -> Result<usize, LimitsChangeError> {
    let edit = |entries: &mut Vec<OrderedLimit>| {
        map_text::follow_file(entries, last, now);
        Ok(())
    };
    let is_updated = control.map().settings().version >= RECORDS_VERSION;
    let count = if is_updated {
        follow_by_store(service, last, now).await?
    } else {
        change(control, edit).await?
    };
    note_limits_set(control).await?;
    Ok(count)
}

/// Applies the difference of two versions of the limits file as a change in the history.
async fn follow_by_store(
    service: &Arc<Service>,
    last: &Arc<Vec<LimitText>>,
    now: &Arc<Vec<LimitText>>,
) -> Result<usize, LimitsChangeError> {
    let path = path_of(service).display().to_string();
    let (last, now) = (Arc::clone(last), Arc::clone(now));
    let request = LimitsRequest::FileChange { last, now, path };
    let now_ms = service.clock().now().unix_ms;
    Ok(service.limits_store().change(request, now_ms, None).await?.count)
}

/// Applies changes of this node's limits file to the cluster while the node runs. `last` is the
/// file as the process first read it.
pub(in super::super) async fn follow_file(
    (service, node): (Arc<Service>, Arc<Node>),
    control: Control,
    mut last: Arc<Vec<LimitText>>,
) {
    let service = &service;
    control.registered().await;
    // The founder's file comes first.
    while !control.map().settings().others.contains_key(FOUNDED) {
        sleep(POLL).await;
    }
    // Until the cluster has taken a file as a whole, a corrected one applies as a whole.
    while let Some(error) = found(&node, &control, &last).await {
        note_refusal(service, &error);
        while node.limits_file.get() == last {
            node.limits_file.changed().await;
        }
        last = node.limits_file.get();
    }
    service.limits().set_fault(FaultOf::FileChange, None);
    let differ = differing(&last, &entries_of(&control.map()));
    if !differ.is_empty() {
        let names: Vec<&str> = differ.iter().take(NAMES_MAX).map(String::as_str).collect();
        let names = names.join(" ");
        tracing::warn!(
            count = differ.len(),
            names,
            "the cluster's limits differ from the limits file, and stay in force: only later \
             changes of the file apply; or use tollgate cluster limits put"
        );
    }
    loop {
        node.limits_file.changed().await;
        loop {
            let now = node.limits_file.get();
            if now == last {
                service.limits().set_fault(FaultOf::FileChange, None);
                break;
            }
            match follow_change(service, &control, &last, &now).await {
                Ok(count) => {
                    tracing::info!(
                        count,
                        "limits changed: the change of the limits file is in force"
                    );
                    last = now;
                }
                Err(error) if error.is_final() => {
                    // The next change of the file starts another attempt.
                    note_refusal(service, &error);
                    tracing::error!(%error, "limits kept as they were: correct the limits file");
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "limits are not changed yet: trying again");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
