//! What a node tells an operator, and what an operator tells the cluster through it.
//!
//! Here: gathering the figures, and carrying a command out while the client waits. Not here: how
//! figures are written and words are read (`cluster_stats`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use protocol::ClusterVerb;

use super::front::Use;
use super::{Inbound, Node};
use crate::cluster_stats::{
    ClusterView, PeerLink, Topic, Traffic, command_of, write, write_config,
};
use crate::lanes::Whom;
use crate::session::{Round, Session};

/// For a command of an operator's.
const COMMAND_TTL: Duration = Duration::from_secs(5);

/// Who may change the cluster through a client port.
const NOT_ALLOWED: &[u8] =
    b"CLIENT_ERROR cluster: only from this host, or on a server started with -A\r\n";

impl Node {
    fn traffic(&self) -> Traffic {
        let figures = &self.figures;
        let copies = self.space().map(|space| &space.copies);
        let direct = figures.direct.load(Ordering::Relaxed);
        let forwarded = figures.forwarded.load(Ordering::Relaxed);
        Traffic {
            ops_direct: direct,
            ops_forwarded: forwarded,
            ops_received: copies
                .map_or(0, |copies| copies.figures.received.load(Ordering::Relaxed)),
            ops_resent: figures.resent.load(Ordering::Relaxed),
            not_applied: figures.not_applied.load(Ordering::Relaxed),
            unknown_outcome: figures.unknown.load(Ordering::Relaxed),
            degraded_admitted: figures.degraded.load(Ordering::Relaxed),
            debt_pending: figures.debt.load(Ordering::Relaxed),
            held: copies.map_or(0, |copies| copies.held().held as u64),
            hops: [direct, forwarded, 0],
        }
    }

    fn with_view<T>(&self, work: impl FnOnce(&ClusterView<'_>) -> T) -> Option<T> {
        let control = self.control()?;
        let mut links: BTreeMap<NodeId, PeerLink> = BTreeMap::new();
        for (whom, figures) in self.lanes()?.figures() {
            if let Whom::Node(node) = whom {
                let is_up = figures.links_now > 0;
                links.insert(node, PeerLink { is_up, clock_offset_ms: self.clock_offset_ms(node) });
            }
        }
        let (status, map) = (control.status(), control.map());
        Some(work(&ClusterView::of(&status, &map, &links, self.traffic())))
    }

    /// Answers `stats cluster` and its like; false if the topic is another.
    pub(crate) fn write_stats(&self, topic: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(topic) = Topic::of(topic) else { return false };
        self.with_view(|view| write(view, topic, out)).is_some()
    }

    /// Answers `config get cluster`.
    pub(crate) fn write_config(&self, out: &mut Vec<u8>) -> bool {
        self.with_view(|view| write_config(view, out)).is_some()
    }
}

impl Session {
    /// An operator's command: proposed to the leader while the client waits.
    pub(super) fn command_cluster(
        &mut self,
        round: &mut Round<'_>,
        verb: ClusterVerb<'_>,
        out: &mut Vec<u8>,
    ) {
        let Some(front) = &mut round.front else { return };
        if !(front.is_local || round.service.config().shutdown_command) {
            return self.replies.say(NOT_ALLOWED, out);
        }
        let node = Arc::clone(front.node());
        let (Some(control), Some(runtime)) = (node.control().cloned(), node.runtime().cloned())
        else {
            return self.replies.say(b"SERVER_ERROR not applied: the node is starting\r\n", out);
        };
        let myself = node.me().0.to_string();
        let verb = match verb {
            ClusterVerb::Drain(b"self") => ClusterVerb::Drain(myself.as_bytes()),
            verb => verb,
        };
        let command = match command_of(&control.map(), verb) {
            Ok(command) => command,
            Err(error) => {
                let told = format!("CLIENT_ERROR cluster: {error}\r\n");
                return self.replies.say(told.as_bytes(), out);
            }
        };
        let place = self.replies.wait();
        let token = front.wait_for_task(place, Use::Whole { quiet: false });
        let core = front.core();
        runtime.spawn(async move {
            let told = match control.propose(command, COMMAND_TTL).await.map(|done| done.answer) {
                Ok(Ok(_)) => "OK\r\n".to_owned(),
                Ok(Err(refused)) => format!("CLIENT_ERROR cluster: {refused}\r\n"),
                Err(error) => format!("SERVER_ERROR cluster: {error}\r\n"),
            };
            if let Some(inbox) = node.inbox(core) {
                inbox.push(Inbound::Told(token, Bytes::from(told)));
            }
        });
    }
}
