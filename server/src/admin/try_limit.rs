//! The trial of a limit on recorded traffic, as the admin listener and other nodes get it.
//!
//! Here: the thread, the nodes, the form of the answer. Not here: the request and the replay
//! (`commands::replay`), the recording (`observe::recorder`).

use std::sync::Arc;

use bytes::Bytes;
use tollgate_http::{Answer, ServiceError, TryResult, TryShare};

use crate::commands::replay::{ShareEstimate, TryCounts, TryRequest};
use crate::node::Node;
use crate::node::query::QueryTopic;
use crate::observe::shown_key;
use crate::runtime::service::Service;

/// Runs a part of a trial on the blocking thread.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServiceError> + Send + 'static,
) -> Result<T, ServiceError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        ServiceError::Unavailable("the replay has ended without a result".to_owned())
    })?
}

/// Returns the counts of this node, on the blocking thread.
pub(super) async fn count(
    service: Arc<Service>,
    request: TryRequest,
) -> Result<TryCounts, ServiceError> {
    off_thread(move || {
        let display = service.config().key_display;
        let show = |hash: u64, key: &[u8], limit: &str| {
            shown_key(display, hash, (key, false), Some(limit))
        };
        request.count(&service, &show)
    })
    .await
}

/// Tries a limit on the recorded traffic of this node.
pub(super) fn try_limit(service: &Arc<Service>, request: TryRequest) -> Answer<'static, TryResult> {
    let counted = count(Arc::clone(service), request);
    Box::pin(async move { Ok(result_of([counted.await?], Vec::new())) })
}

/// Tries a limit on the recorded traffic of all nodes: each replays what it decided.
///
/// # Errors
///
/// The text has a mistake, or too many queries are under way.
pub(super) async fn try_on_all(
    node: &Arc<Node>,
    service: &Arc<Service>,
    request: TryRequest,
) -> Result<TryResult, ServiceError> {
    // Nothing in a request fails to become JSON.
    let body = serde_json::to_vec(&request).unwrap_or_default();
    let checking = Arc::clone(service);
    // The check may read a file of overrides, and the limits that it makes are freed there too.
    off_thread(move || request.check(&checking).map(drop)).await?;
    let replies = node.query_all(service, QueryTopic::Try(body.into())).await;
    let replies = replies.map_err(|error| ServiceError::Unavailable(error.to_string()))?;
    let (mut counts, mut missing) = (Vec::new(), replies.missing);
    for (node, body) in replies.answers {
        match serde_json::from_slice(&body) {
            Ok(count) => counts.push(count),
            Err(_) => missing.push(node.to_string()),
        }
    }
    if counts.is_empty() {
        let detail = "no node could try the limit: its recorder is off, it tries another limit, or \
                      its recording is too long";
        return Err(ServiceError::Unavailable(detail.to_owned()));
    }
    Ok(result_of(counts, missing))
}

/// Answers another node's request for a trial; empty if there is no result.
pub(super) async fn answer_try(service: Arc<Service>, body: Bytes) -> Vec<u8> {
    let Ok(request) = serde_json::from_slice(&body) else { return Vec::new() };
    let counts = count(service, request).await;
    counts.ok().and_then(|counts| serde_json::to_vec(&counts).ok()).unwrap_or_default()
}

/// Returns the answer to the counts of each node; `missing` are nodes that did not answer.
fn result_of(nodes: impl IntoIterator<Item = TryCounts>, missing: Vec<String>) -> TryResult {
    let mut counts = TryCounts::default();
    nodes.into_iter().for_each(|node| counts.merge(node));
    let share = |estimate: ShareEstimate| TryShare {
        denied: estimate.share,
        standard_error: estimate.standard_error,
    };
    TryResult {
        span_ms: counts.span_ms,
        keys: counts.keys(),
        requests: counts.requests(),
        scale: counts.scale(),
        now: share(counts.share_now()),
        then: share(counts.share_then()),
        newly_denied: counts.newly_denied(),
        newly_allowed: counts.newly_allowed(),
        fidelity: counts.fidelity(),
        parents: counts.has_parents.then_some("partial"),
        counted_keys: counts.is_coarser.then_some("partial"),
        too_few: counts.is_too_few(),
        missing,
    }
}
