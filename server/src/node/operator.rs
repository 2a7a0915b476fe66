//! Statistics that a node shows to an operator, and the operator's commands to the cluster.
//!
//! Here: collecting the metrics, and executing a command while the client waits. Not here: the
//! format of the statistics and the syntax of commands (`cluster_stats`).

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use cluster::id::NodeId;
use cluster::map::command::FOUNDED;
use cluster::map::{MapCommand, RECORDS_VERSION};
use control::Control;
use protocol::ClusterVerb;
use tokio::time::timeout;
use tollgate_http::{Actor, ServiceError, Via};
use tollgate_limits::LimitsError;
use tollgate_limits::map_text::{self, LimitText, OrderedLimit};

use super::dispatch::{Dispatch, STARTING};
use super::pending::ReplyKind;
use super::{Node, WorkerEvent, limits};
use crate::cluster_stats::{
    ClusterView, PeerLinkView, Topic, Traffic, command_of, write, write_config,
};
use crate::limits::service::{LimitsRequest, LimitsStore};
use crate::runtime::audit;
use crate::runtime::cluster_node::ClusterNode;
use crate::runtime::connections;
use crate::transport::PeerAddr;

/// The time to live of an operator's command.
const COMMAND_TTL: Duration = Duration::from_secs(5);

const OK: &str = "OK\r\n";

/// The reply to a command that would change the cluster, on a connection without permission.
const NOT_ALLOWED: &[u8] = b"CLIENT_ERROR cluster: not allowed on this connection; \
      use the server's --admin-socket, or start it with --admin-loopback or -A\r\n";

impl Node {
    fn traffic(&self) -> Traffic {
        let metrics = &self.metrics;
        let copies = self.keyspace().map(|keyspace| &keyspace.replicas);
        let direct = metrics.direct.load(Ordering::Relaxed);
        let forwarded = metrics.forwarded.load(Ordering::Relaxed);
        let (links_broken, frames_relayed) = self.paths.metrics();
        Traffic {
            ops_direct: direct,
            ops_forwarded: forwarded,
            ops_received: copies
                .map_or(0, |copies| copies.metrics.received.load(Ordering::Relaxed)),
            ops_resent: metrics.resent.load(Ordering::Relaxed),
            not_applied: metrics.not_applied.load(Ordering::Relaxed),
            unknown_outcome: metrics.unknown.load(Ordering::Relaxed),
            degraded_admitted: metrics.degraded.load(Ordering::Relaxed),
            debt_pending: metrics.debt.load(Ordering::Relaxed),
            held: copies.map_or(0, |copies| copies.held() as u64),
            links_broken,
            data_links: self.links().up() as u64,
            frames_relayed,
        }
    }

    /// Runs `work` on the view of the cluster; `None` before the node has a control plane.
    pub(crate) fn with_view<T>(
        &self,
        now: engine::Now,
        work: impl FnOnce(&ClusterView<'_>) -> T,
    ) -> Option<T> {
        let control = self.control()?;
        let mut links: BTreeMap<NodeId, PeerLinkView> = BTreeMap::new();
        let clocks = self.clocks.lock().all(now.mono.0);
        for (peer_addr, metrics) in self.transport()?.metrics() {
            if let PeerAddr::Node(node) = peer_addr {
                let is_up = metrics.links_now > 0;
                links.insert(
                    node,
                    PeerLinkView { is_up, clock_offset_ms: clocks.get(&node).copied() },
                );
            }
        }
        let (status, map) = (control.status(), control.map());
        let mut view = ClusterView::of(&status, &map, &links, self.traffic());
        view.refusal = self.refusal();
        view.waits_for = self.awaited_limits(&map);
        Some(work(&view))
    }
}

impl ClusterNode for Node {
    fn write_stats(&self, now: engine::Now, topic: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(topic) = Topic::of(topic) else { return false };
        if self.with_view(now, |view| write(view, topic, out)).is_none() {
            out.extend_from_slice(STARTING.as_bytes());
        }
        true
    }

    fn write_config(&self, now: engine::Now, out: &mut Vec<u8>) -> bool {
        self.with_view(now, |view| write_config(view, out)).is_some()
    }

    fn reload_limits(&self, path: &Path) -> Result<(), LimitsError> {
        self.limits_file.reload(path)
    }
}

impl Dispatch<'_, '_> {
    /// Returns the client as the author of a change. `None` is the server itself, which acts for a
    /// caller of its API.
    fn client_actor(&self) -> Option<Actor> {
        let list = self.ctx.service.connections().list();
        let client = list.iter().find(|info| Some(info.fd) == self.router.operator_fd);
        match client {
            Some(info) if info.is_server() => None,
            client => Some(actor_of(client.map_or("-", |info| &info.peer))),
        }
    }

    /// Starts an operator's command: it is proposed to the leader while the client waits.
    pub(crate) fn cluster_verb(&mut self, verb: ClusterVerb<'_>, out: &mut Vec<u8>) {
        let client = match verb {
            ClusterVerb::Limits => None,
            _ => self.client_actor(),
        };
        let router = &mut *self.router;
        if verb == ClusterVerb::Limits {
            let text = router.node().control().map(|control| limits::as_file(&control.map()));
            let reply = text.map_or_else(
                || STARTING.to_owned(),
                |text| format!("CONFIG limits 0 {}\r\n{text}\r\nEND\r\n", text.len()),
            );
            return self.replies.push_ready(reply.as_bytes(), out);
        }
        if router.operator_fd.is_none() {
            return self.replies.push_ready(NOT_ALLOWED, out);
        }
        let node = Arc::clone(router.node());
        let (Some(control), Some(runtime)) = (node.control().cloned(), node.runtime().cloned())
        else {
            return self.replies.push_ready(STARTING.as_bytes(), out);
        };
        let myself = node.me().0.to_string();
        let verb = match verb {
            ClusterVerb::Drain(b"self") => ClusterVerb::Drain(myself.as_bytes()),
            verb => verb,
        };
        let service = self.ctx.service;
        // The store of limits logs their changes itself.
        let audited = client.clone().and_then(|client| Some((client, audit_text(verb)?)));
        let actor = client.unwrap_or_else(|| actor_of("-"));
        let store = (control.map().settings().version >= RECORDS_VERSION)
            .then(|| (Arc::clone(service.limits_store()), service.clock().now().unix_ms, actor));
        let wanted = match OperatorRequest::of(&control, verb) {
            Ok(wanted) => wanted,
            Err(error) => return self.replies.push_ready(client_error(&error).as_bytes(), out),
        };
        let place = self.replies.reserve();
        let token = router.wait_for_task(place, ReplyKind::Whole { quiet: false });
        let core = router.core();
        runtime.spawn(async move {
            let reply = match store {
                Some(store) => wanted.carry_out_by_store(&control, store).await,
                None => wanted.carry_out(&control).await,
            };
            if let Some((client, what)) = audited {
                audit(&client, &what, &reply.trim_end());
            }
            if let Some(inbox) = node.inbox(core) {
                inbox.push(WorkerEvent::Reply(token, Bytes::from(reply)));
            }
        });
    }
}

/// Returns the client as the author of a change, named by its address without the port.
fn actor_of(peer: &str) -> Actor {
    let address = connections::address(peer);
    let name = address.map_or_else(|| peer.to_owned(), |address| address.to_string());
    Actor { name, via: Via::ClientPort, address, is_admin: true }
}

/// The text of a change for the audit log; `None` for a change of limits.
fn audit_text(verb: ClusterVerb<'_>) -> Option<String> {
    let line = match verb {
        ClusterVerb::Drain(node) => [b"cluster drain ", node].concat(),
        ClusterVerb::Forget(node) => [b"cluster forget ", node].concat(),
        ClusterVerb::Set { name, value } => [b"cluster set ", name, b" ", value].concat(),
        ClusterVerb::Limits | ClusterVerb::Limit { .. } | ClusterVerb::Unlimit(_) => return None,
    };
    Some(String::from_utf8_lossy(&line).into_owned())
}

fn client_error(error: &impl Display) -> String {
    // The error may quote the operator's text.
    format!("CLIENT_ERROR cluster: {}\r\n", error.to_string().replace(char::is_control, "?"))
}

fn server_error(error: &impl Display) -> String {
    format!("SERVER_ERROR cluster: {error}\r\n")
}

/// Waits until the founder has stored the settings of its configuration. Returns false if it has
/// not in time: it would replace a setting that an operator has changed before.
async fn is_founded(control: &Control) -> bool {
    let founded = async {
        let mut watch = control.watch();
        while !watch.changed().await.map.settings().others.contains_key(FOUNDED) {}
    };
    timeout(COMMAND_TTL, founded).await.is_ok()
}

/// An operator's command, copied out of the client's buffer.
enum OperatorRequest {
    Command(MapCommand),
    Limit { text: LimitText, before: Option<String> },
    NoLimit(String),
}

impl OperatorRequest {
    fn of(control: &Control, verb: ClusterVerb<'_>) -> Result<Self, Box<dyn Error>> {
        let string = |string| String::from_utf8_lossy(string).into_owned();
        Ok(match verb {
            ClusterVerb::Limit { name, before, text } => Self::Limit {
                text: LimitText::of_one(&string(name), text)?,
                before: before.map(string),
            },
            ClusterVerb::Unlimit(name) => Self::NoLimit(string(name)),
            verb => Self::Command(command_of(&control.map(), verb)?),
        })
    }

    /// Executes the command; a change of a limit enters the history.
    async fn carry_out_by_store(
        self,
        control: &Control,
        (store, now_ms, actor): (Arc<LimitsStore>, u64, Actor),
    ) -> String {
        let name = match &self {
            Self::Limit { text, .. } => text.name.clone(),
            _ => String::new(),
        };
        let request = match self {
            Self::Command(_) => return self.carry_out(control).await,
            Self::Limit { text, before } => LimitsRequest::PutAny { text, before, actor },
            Self::NoLimit(name) => LimitsRequest::Remove { name, version: None, note: None, actor },
        };
        let address = request.address();
        match store.change(request, now_ms, address).await {
            Ok(_) => OK.to_owned(),
            Err(error @ ServiceError::Unavailable(_)) => server_error(&error),
            Err(ServiceError::Invalid { detail, line: Some(line) }) => {
                client_error(&format!("limit {name}:{line}: {detail}"))
            }
            Err(error) => client_error(&error),
        }
    }

    /// Executes the command and returns the reply.
    async fn carry_out(self, control: &Control) -> String {
        let changed = match self {
            Self::Command(command) => {
                if matches!(command, MapCommand::Set(_)) && !is_founded(control).await {
                    return STARTING.to_owned();
                }
                return match control.propose(command, COMMAND_TTL).await.map(|done| done.answer) {
                    Ok(Ok(_)) => OK.to_owned(),
                    Ok(Err(refused)) => client_error(&refused),
                    Err(error) => server_error(&error),
                };
            }
            Self::Limit { text, before } => {
                let put = |entries: &mut Vec<OrderedLimit>| {
                    map_text::put(entries, text.clone(), before.as_deref())
                };
                limits::change(control, put).await
            }
            Self::NoLimit(name) => {
                limits::change(control, |entries| map_text::remove(entries, &name)).await
            }
        };
        let result = match changed {
            Ok(_) => limits::note_limits_set(control).await.map_err(Into::into),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => OK.to_owned(),
            Err(error) if error.is_final() => client_error(&error),
            Err(error) => server_error(&error),
        }
    }
}

#[cfg(test)]
mod tests;
