//! Queries of the whole ring: what every node has seen.
//!
//! Here: asking all nodes of the map, with a time limit, and answering one of them. Not here: the
//! answers (`QueryAnswers` of the caller), merging them (`crate::admin::cluster_query`), the frames
//! (`cluster::message::query`).
//!
//! A change of the path to a node ends the query under way, so the node is asked again, until the
//! time limit. A node that does not answer in time is named as missing. One whose link has agreed
//! on a version without queries is named at once: the link would drop them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::{MapNode, NodeState};
use cluster::message::Frame;
use cluster::message::query::{QUERY_BYTES_MAX, QUERY_VERSION, QueryFrame};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Node;
use super::inbound::CallGuard;
use crate::runtime::service::Service;
use crate::transport::PeerAddr;

/// Most queries that this node makes at a time.
pub(crate) const ASKED_MAX: usize = 8;
/// Most queries of other nodes that this node answers at a time.
pub(crate) const ANSWERED_MAX: usize = 16;
/// Time limit of a query about what a node has published.
const PUBLISHED_TTL: Duration = Duration::from_secs(1);
/// Time limit of a query that makes nodes replay recorded traffic.
const REPLAY_TTL: Duration = Duration::from_secs(6);
/// Pause before a node is asked again whose path has changed.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The first byte of a query on the wire.
const HOT_KEYS: u8 = 1;
const TRY: u8 = 2;

/// The requests that a list of hot keys counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HotKeysOf {
    /// Requests on any key.
    Taken = 0,
    /// Denied attempts.
    Denied = 1,
    /// Attempts that a shadow limit would have denied.
    Shadow = 2,
}

/// The topic of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QueryTopic {
    /// The hottest keys that the node has published.
    HotKeys {
        /// The requests that count.
        kind: HotKeysOf,
        /// Most keys of the answer.
        count: u16,
        /// The keys of this limit only.
        limit: Option<String>,
    },
    /// A replay of the node's recorded traffic under another limit: a request as JSON.
    Try(Bytes),
}

/// An answer, once it is known; empty if the node has none.
pub(crate) type QueryAnswer = Pin<Box<dyn Future<Output = Vec<u8>> + Send>>;

/// Answers queries about this node.
pub(crate) trait QueryAnswers: Send + Sync {
    /// Returns the answer, of at most [`QUERY_BYTES_MAX`] bytes. Called on the runtime of the
    /// node's tasks: it must not block, take no lock and only read what is published; long work
    /// belongs into the future, on a thread of its own.
    fn answer(&self, topic: QueryTopic) -> QueryAnswer;
}

/// The answers to a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct QueryReplies {
    /// The answers by node, this node's included.
    pub(crate) answers: Vec<(NodeId, Vec<u8>)>,
    /// The nodes that did not answer in time, as `n3 (ring name)`.
    pub(crate) missing: Vec<String>,
}

/// Too many queries of this node are under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{ASKED_MAX} queries of all nodes are under way: try again")]
pub(crate) struct QueriesBusy;

impl QueryTopic {
    /// The time limit of an answer.
    fn ttl(&self) -> Duration {
        match self {
            Self::HotKeys { .. } => PUBLISHED_TTL,
            Self::Try(_) => REPLAY_TTL,
        }
    }

    fn encode(&self) -> Bytes {
        match self {
            Self::HotKeys { kind, count, limit } => {
                let mut body = vec![HOT_KEYS, *kind as u8];
                body.extend_from_slice(&count.to_le_bytes());
                if let Some(limit) = limit {
                    // The mark tells an empty name from none.
                    body.push(1);
                    body.extend_from_slice(limit.as_bytes());
                }
                body.into()
            }
            Self::Try(request) => [&[TRY], &request[..]].concat().into(),
        }
    }

    /// Reads a topic; `None` for one of a later version.
    fn decode(body: &[u8]) -> Option<Self> {
        match body {
            [HOT_KEYS, kind, low, high, limit @ ..] => {
                let kind = match kind {
                    0 => HotKeysOf::Taken,
                    1 => HotKeysOf::Denied,
                    2 => HotKeysOf::Shadow,
                    _ => return None,
                };
                let limit = match limit {
                    [] => None,
                    [1, name @ ..] => Some(std::str::from_utf8(name).ok()?.to_owned()),
                    _ => return None,
                };
                Some(Self::HotKeys { kind, count: u16::from_le_bytes([*low, *high]), limit })
            }
            [TRY, request @ ..] => Some(Self::Try(Bytes::copy_from_slice(request))),
            _ => None,
        }
    }
}

/// A place among a bounded number of queries.
pub(super) struct QueryPlace(Arc<AtomicUsize>);

impl QueryPlace {
    /// Takes a place; `None` if `max` are taken.
    fn take(places: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let more = |count| (count < max).then_some(count + 1);
        let taken = places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| Self(Arc::clone(places)))
    }
}

impl Drop for QueryPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node {
    /// Sets the source of this node's answers, once.
    pub(crate) fn set_query_answers(&self, answers: Arc<dyn QueryAnswers>) {
        let _ = self.queries.answers.set(answers);
    }

    /// Asks all nodes of the map, this one included, and waits at most the topic's time limit: 1 s,
    /// and 6 s for a replay. Runs on any runtime.
    ///
    /// # Errors
    ///
    /// [`QueriesBusy`] if [`ASKED_MAX`] queries are under way.
    pub(crate) async fn query_all(
        self: &Arc<Self>,
        service: &Service,
        topic: QueryTopic,
    ) -> Result<QueryReplies, QueriesBusy> {
        let _place = QueryPlace::take(&self.queries.asked, ASKED_MAX).ok_or(QueriesBusy)?;
        let mut replies = QueryReplies::default();
        let Some(control) = self.control() else { return Ok(replies) };
        let (map, (me, _), ttl) = (control.map(), self.me(), topic.ttl());
        let body = topic.encode();
        let mut asked = JoinSet::new();
        for (&id, row) in map.nodes() {
            if row.state == NodeState::Dead {
                replies.missing.push(name(id, row));
            } else if id == me {
                let answer = self.queries.answers.get().map(|own| own.answer(topic.clone()));
                asked.spawn(async move {
                    match answer {
                        Some(answer) => (id, timeout(ttl, answer).await.ok()),
                        None => (id, None),
                    }
                });
            } else {
                let now_ns = service.clock().now().mono.0;
                let address = row.description.peer_address.clone();
                let (node, body) = (Arc::clone(self), body.clone());
                asked.spawn(async move { (id, node.query(id, &address, body, now_ns, ttl).await) });
            }
        }
        let mut answers = Vec::with_capacity(asked.len());
        while let Some(answered) = asked.join_next().await {
            let Ok((id, Some(answer))) = answered else { continue };
            if !answer.is_empty() && answer.len() <= QUERY_BYTES_MAX {
                answers.push((id, answer));
            }
        }
        answers.sort_unstable_by_key(|(id, _)| *id);
        let has_answered = |id: NodeId| answers.iter().any(|(other, _)| *other == id);
        let living = map.nodes().iter().filter(|(_, row)| row.state != NodeState::Dead);
        let silent = living.filter(|(id, _)| !has_answered(**id));
        replies.missing.extend(silent.map(|(id, row)| name(*id, row)));
        replies.answers = answers;
        Ok(replies)
    }

    /// Asks one node until it answers. `None`: no answer in time, or the node knows no queries.
    async fn query(
        self: Arc<Self>,
        to: NodeId,
        address: &str,
        body: Bytes,
        now_ns: u64,
        ttl: Duration,
    ) -> Option<Vec<u8>> {
        let asked = async {
            let mut sent_ns = now_ns;
            loop {
                if let Some(answer) = self.query_once(to, address, body.clone(), sent_ns).await {
                    return answer.to_vec();
                }
                sleep(ASK_AGAIN_AFTER).await;
                sent_ns = sent_ns.saturating_add(ASK_AGAIN_AFTER.as_nanos() as u64);
            }
        };
        let is_old = async {
            // A link may come up, with an old version, while the node is asked.
            while !self.knows_no_queries(to) {
                sleep(ASK_AGAIN_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            () = is_old => None,
            answer = timeout(ttl, asked) => answer.ok(),
        }
    }

    /// Whether the links to a node have a version without queries.
    fn knows_no_queries(&self, node: NodeId) -> bool {
        let version = self.transport().and_then(|transport| transport.version_of(node));
        version.is_some_and(|version| version < QUERY_VERSION)
    }

    /// Asks one node once, with a call id of its own, so that a late answer to an earlier call is
    /// not taken for this one's. `None`: the frame was not sent, or the path ended.
    async fn query_once(
        self: &Arc<Self>,
        to: NodeId,
        address: &str,
        body: Bytes,
        sent_ns: u64,
    ) -> Option<Bytes> {
        let sender = self.transport()?.sender(to, address);
        let (id, receiver) = self.calls.lock().open(PeerAddr::Node(to), sent_ns);
        let _waits = CallGuard::new(Arc::clone(self), id);
        let frame = Frame::Query(QueryFrame { id, body });
        self.paths.send_or(self.me().0, to, &sender, frame).ok()?;
        receiver.await.ok()?.ok()
    }

    /// Answers a query of another node by `send`. One too many, or one of an unknown topic, gets an
    /// empty answer.
    pub(super) fn answer_query(
        &self,
        query: &QueryFrame,
        send: impl FnOnce(QueryFrame) + Send + 'static,
    ) {
        let id = query.id;
        let place = QueryPlace::take(&self.queries.answered, ANSWERED_MAX);
        let topic = QueryTopic::decode(&query.body);
        let (Some(place), Some(topic), Some(own)) = (place, topic, self.queries.answers.get())
        else {
            return send(QueryFrame { id, body: Bytes::new() });
        };
        let (ttl, answer) = (topic.ttl(), own.answer(topic));
        tokio::spawn(async move {
            let _place = place;
            let mut answer = timeout(ttl, answer).await.unwrap_or_default();
            if answer.len() > QUERY_BYTES_MAX {
                tracing::error!(bytes = answer.len(), "an answer to a query is too long: no reply");
                answer.clear();
            }
            send(QueryFrame { id, body: answer.into() });
        });
    }
}

/// The node's queries under way, and the source of its answers.
#[derive(Default)]
pub(super) struct Queries {
    answers: std::sync::OnceLock<Arc<dyn QueryAnswers>>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

/// A node as a person reads it. The ring name comes from the node's operator.
fn name(id: NodeId, row: &MapNode) -> String {
    let ring_name = row.description.ring_name.replace(char::is_control, "?");
    format!("{id} ({ring_name})")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn topics() -> impl Strategy<Value = QueryTopic> {
        use HotKeysOf::{Denied, Shadow, Taken};
        let kind = prop_oneof![Just(Taken), Just(Denied), Just(Shadow)];
        let hot_keys = (kind, any::<u16>(), proptest::option::of(".{0,40}"))
            .prop_map(|(kind, count, limit)| QueryTopic::HotKeys { kind, count, limit });
        let request = proptest::collection::vec(any::<u8>(), 0..100);
        prop_oneof![hot_keys, request.prop_map(|request| QueryTopic::Try(request.into()))]
    }

    proptest! {
        #[test]
        fn topic_comes_back(topic in topics()) {
            prop_assert_eq!(QueryTopic::decode(&topic.encode()), Some(topic));
        }

        #[test]
        fn any_bytes_are_a_topic_or_none(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Some(topic) = QueryTopic::decode(&body) {
                prop_assert_eq!(&topic.encode()[..], &body[..]);
            }
        }
    }

    #[test]
    fn topic_of_a_later_version_is_none() {
        for body in [&b""[..], &[3], &[HOT_KEYS], &[HOT_KEYS, 3, 0, 0], &[HOT_KEYS, 0, 0, 0, 2]] {
            assert_eq!(QueryTopic::decode(body), None, "{body:?}");
        }
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let places = Arc::default();
        let taken: Vec<_> = (0..ASKED_MAX).map(|_| QueryPlace::take(&places, ASKED_MAX)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(QueryPlace::take(&places, ASKED_MAX).is_none());
        drop(taken);
        assert!(QueryPlace::take(&places, ASKED_MAX).is_some());
    }
}
