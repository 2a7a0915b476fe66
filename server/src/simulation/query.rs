//! Questions of a simulated node to all nodes.
//!
//! Here: the answers of a node, which echo the topic, and a query from one node. Not here: the
//! query (`node::query`), the scenarios (`tests/sim`).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::{node, runtime, service};
use crate::node::Node;
use crate::node::query::{HotKeysOf, QueryAnswer, QueryAnswers, QueryTopic};

/// Answers every query with this node's address and the topic; a replay after a pause.
struct EchoedTopic(IpAddr);

/// The time that a node needs for the answer to a replay.
const REPLAY: Duration = Duration::from_millis(500);

impl QueryAnswers for EchoedTopic {
    fn answer(&self, topic: QueryTopic) -> QueryAnswer {
        let answer = format!("{} {topic:?}", self.0);
        Box::pin(async move {
            if matches!(topic, QueryTopic::Try(_)) {
                tokio::time::sleep(REPLAY).await;
            }
            answer.into_bytes()
        })
    }
}

pub(super) fn answer_queries(node: &Node, address: IpAddr) {
    node.set_query_answers(Arc::new(EchoedTopic(address)));
}

/// The answers of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryResult {
    /// The answers, each with the node's id.
    pub answers: Vec<(u32, String)>,
    /// The names of the nodes without an answer.
    pub missing: Vec<String>,
}

/// Asks all nodes from the newest life at an address, about its keys or for a replay. `None`: there
/// is no node. The result is none if too many queries are under way.
#[must_use]
pub fn start_query(address: IpAddr, is_replay: bool) -> Option<JoinHandle<Option<QueryResult>>> {
    let (node, service, runtime) = (node(address)?, service(address)?, runtime(address)?);
    let topic = if is_replay {
        QueryTopic::Try(Bytes::from_static(b"replay"))
    } else {
        QueryTopic::HotKeys { kind: HotKeysOf::Denied, count: 7, limit: None }
    };
    Some(runtime.spawn(async move {
        let replies = node.query_all(&service, topic).await.ok()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let answers = replies.answers.into_iter().map(|(node, body)| (node.0, text(body)));
        Some(QueryResult { answers: answers.collect(), missing: replies.missing })
    }))
}
