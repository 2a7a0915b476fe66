//! Calls that wait for their answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use control::Unreachable;
use tokio::sync::oneshot;

use crate::node::Node;
use crate::transport::PeerAddr;

/// Calls that wait for their answers.
#[derive(Default)]
pub(in crate::node) struct PendingCalls {
    last: u64,
    open: BTreeMap<u64, PendingCall>,
}

/// A call that waits for its answer.
struct PendingCall {
    peer: PeerAddr,
    /// The time of sending, on this node's monotonic clock.
    sent_ns: u64,
    answer: oneshot::Sender<Result<Bytes, Unreachable>>,
}

impl PendingCalls {
    pub(in crate::node) fn open(
        &mut self,
        peer_addr: PeerAddr,
        sent_ns: u64,
    ) -> (u64, oneshot::Receiver<Result<Bytes, Unreachable>>) {
        let (answer, receiver) = oneshot::channel();
        self.last += 1;
        self.open.insert(self.last, PendingCall { peer: peer_addr, sent_ns, answer });
        (self.last, receiver)
    }

    /// Returns when a call was sent, on this node's monotonic clock; `None` if it no longer waits.
    pub(super) fn sent_ns(&self, id: u64) -> Option<u64> {
        self.open.get(&id).map(|open| open.sent_ns)
    }

    pub(super) fn end(&mut self, id: u64, answer: Result<Bytes, Unreachable>) {
        if let Some(open) = self.open.remove(&id) {
            // The receiver is gone: the caller no longer waits.
            let _ = open.answer.send(answer);
        }
    }

    pub(in crate::node) fn end_all(&mut self, peer_addr: &PeerAddr, why: Unreachable) {
        let ended: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| open.peer == *peer_addr)
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            self.end(id, Err(why));
        }
    }
}

/// Removes a call when its caller stops waiting.
pub(in crate::node) struct CallGuard {
    node: Arc<Node>,
    id: u64,
}

impl CallGuard {
    pub(in crate::node) fn new(node: Arc<Node>, id: u64) -> Self {
        Self { node, id }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.node.calls.lock().open.remove(&self.id);
    }
}
