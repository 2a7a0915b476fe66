//! Single keys, nodes and settings, as the admin listener reads and changes them.

use std::sync::atomic::Ordering;

use cluster::map::NodeState;
use control::MembershipState;
use tollgate_http::{
    Actor, AdminHost as _, Answer, Check, ExplainView, NodeView, NodesView, Observer as _,
    Operator, ServerStatus, ServiceError,
};

use super::explain::{check_key, text};
use super::host::ServerHost;
use crate::cluster_stats::{ClusterView, NodeRow, membership_word, not_safe_to_proceed};
use crate::config::KeyDisplay;
use crate::observe::shown_key;
use crate::runtime::audit;

/// Highest level of `verbosity`.
const LOG_LEVEL_MAX: u32 = 4;
/// Fronts of a cluster's answers about something that is not there.
const MISSING: [&str; 2] = ["there is no node ", "there is no setting "];
/// Seconds of rates that count as the last minute.
const MINUTE_POINTS: usize = 6;

impl ServerHost {
    /// Asks the server for a change by a line of the text protocol. The audit log gets a line with
    /// `what` in any case: also if the caller drops this future, and if the outcome is unknown.
    async fn change(
        &self,
        line: &[&[u8]],
        what: String,
        actor: Actor,
    ) -> Result<String, ServiceError> {
        let asked = self.request_line(line);
        let audited = async move {
            let reply = asked.await.map(|reply| text(&reply));
            match &reply {
                Ok(reply) => audit(&actor, &what, reply),
                Err(error) => audit(&actor, &what, error),
            }
            reply
        };
        let reply = self.running.run(audited).await?;
        if let Some(reason) = reply.strip_prefix("CLIENT_ERROR ") {
            let is_missing = |reason: &&str| MISSING.iter().any(|front| reason.starts_with(front));
            let missing = reason.strip_prefix("cluster: ").filter(is_missing);
            return Err(match missing {
                Some(reason) => ServiceError::NotFound(reason.to_owned()),
                None => ServiceError::Conflict(reason.to_owned()),
            });
        }
        if reply.starts_with("SERVER_ERROR ") || reply.starts_with("ERROR") {
            let reason = reply.strip_prefix("SERVER_ERROR ").unwrap_or(&reply);
            return Err(ServiceError::Unavailable(reason.to_owned()));
        }
        Ok(reply)
    }

    /// Returns the form in which the log shows a key.
    fn shown(&self, key: &[u8]) -> String {
        let active = self.service.limits().load();
        let mut scratch = Vec::new();
        let found = active.limits().find(key, &mut scratch).ok().flatten();
        let (counted, limit) = match &found {
            Some(found) => (found.key(), Some(found.limit().name())),
            None => (key, None),
        };
        let hash = self.service.shards().hash(counted);
        shown_key(self.service.config().key_display, hash, (key, false), limit)
    }

    /// Changes the cluster, which must be there.
    async fn change_cluster(&self, line: &[&[u8]], actor: Actor) -> Result<(), ServiceError> {
        if self.node.is_none() {
            return Err(ServiceError::NotFound("the server is not part of a cluster".to_owned()));
        }
        if line.iter().any(|word| check_key(word).is_err()) {
            let detail = "a name or a value is one word".to_owned();
            return Err(ServiceError::Invalid { detail, line: None });
        }
        self.change(line, text(&line.join(&b' ')), actor).await.map(drop)
    }

    /// The faults of the server, each a sentence.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some(fault) = self.service.limits().fault() {
            faults.push(format!("The last limits are not in force: {fault}"));
        }
        if let Some(fault) = self.service.limits_store().store_fault() {
            faults.push(format!("The last change of limits could not be stored: {fault}"));
        }
        for Check { name, fault } in self.readiness() {
            if let Some(fault) = fault {
                faults.push(format!("Not ready ({name}): {fault}"));
            }
        }
        let failed = &self.service.snapshots().failed;
        let failed = failed.load(Ordering::Relaxed);
        if failed > 0 {
            faults.push(format!("Snapshots that could not be saved since the start: {failed}"));
        }
        if let Some(node) = &self.node {
            let now = self.service.clock().now();
            faults.extend(node.with_view(now, cluster_faults).into_iter().flatten());
        }
        faults
    }
}

/// The faults of the cluster, each a sentence.
fn cluster_faults(view: &ClusterView<'_>) -> Vec<String> {
    let partitions = view.partitions;
    let mut faults = Vec::new();
    if partitions.without_primary > 0 {
        let count = partitions.without_primary;
        faults.push(format!("Partitions without a living primary: {count}"));
    }
    if partitions.under_replicated > 0 {
        let count = partitions.under_replicated;
        faults.push(format!("Partitions with fewer copies than wanted: {count}"));
    }
    for row in &view.nodes {
        if row.node.state == NodeState::Dead {
            let name = &row.node.description.ring_name;
            faults.push(format!("Node n{} ({name}) is dead", row.id.0));
        }
        if row.is_clock_off() == Some(true) {
            faults.push(format!("The clock of node n{} is off", row.id.0));
        }
    }
    faults
}

fn nodes_view(view: &ClusterView<'_>) -> NodesView {
    let node = |row: &NodeRow<'_>| NodeView {
        id: format!("n{}", row.id.0),
        ring_name: row.node.description.ring_name.clone(),
        client_address: row.node.description.client_address.clone(),
        zone: row.node.description.zone.clone(),
        weight: row.node.description.weight,
        state: membership_word(MembershipState::Member(row.node.state)).to_owned(),
        primaries: row.primaries as u64,
        backups: row.backups as u64,
        learners: row.learners as u64,
        heard_ms_ago: row.heard_ms_ago,
        clock_offset_ms: row.clock_offset_ms,
        ops_per_second: row.ops_per_second.map(u64::from),
        is_up: row.link.map(|link| link.is_up),
        is_self: Some(row.id) == view.node,
        is_leader: Some(row.id) == view.status.leader,
        incarnation: row.node.incarnation.0,
    };
    let settings = view.map.settings();
    let lost_after = settings.lost_after_ms.map(|ms| (ms / 1000).to_string());
    NodesView {
        nodes: view.nodes.iter().map(node).collect(),
        partitions: view.partitions.total as u64,
        below_replicas: view.partitions.under_replicated as u64,
        unavailable: view.partitions.without_primary as u64,
        moving: (view.partitions.moving + view.partitions.learners) as u64,
        settings: vec![
            ("replicas".to_owned(), settings.replicas.to_string()),
            ("lost_after".to_owned(), lost_after.unwrap_or_else(|| "never".to_owned())),
        ],
        not_safe: not_safe_to_proceed(view),
    }
}

/// The last rate, and the mean of the last minute.
fn last_and_minute(rates: &[f64]) -> (f64, f64) {
    let last = rates.last().copied().unwrap_or(0.0);
    let minute = &rates[rates.len().saturating_sub(MINUTE_POINTS)..];
    #[expect(clippy::cast_precision_loss, reason = "there are at most six")]
    let mean = minute.iter().fold(0.0, |sum, rate| sum + rate) / (minute.len().max(1) as f64);
    (last, mean)
}

impl Operator for ServerHost {
    fn status(&self) -> ServerStatus {
        let service = &self.service;
        let (totals, memory_cap) = (service.shards().totals(), service.shards().memory_cap());
        let now = service.clock().now();
        let node = self.node.as_ref().and_then(|node| {
            node.with_view(now, |view| view.node.map(|id| format!("n{}", id.0))).flatten()
        });
        let rates = self.rates();
        let (requests_per_s, requests_per_s_minute) = last_and_minute(&rates.requests);
        let (_, denied_per_s_minute) = last_and_minute(&rates.denied);
        let listeners = service.connections().listeners();
        ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: service.clock().uptime_seconds(),
            role: if self.node.is_some() { "node" } else { "alone" },
            node,
            listeners: listeners.into_iter().map(|listener| listener.address).collect(),
            memory_used_bytes: memory_cap.used_bytes() as u64,
            memory_limit_bytes: memory_cap.limit_bytes() as u64,
            items: totals.items,
            connections: service.connections().current() as u64,
            connections_max: service.config().connections_max as u64,
            requests_per_s,
            requests_per_s_minute,
            denied_per_s_minute,
            faults: self.faults(),
            keys_hashed: service.config().key_display == KeyDisplay::Hashed,
        }
    }

    fn explain(&self, key: Vec<u8>, cost: u64) -> Answer<'_, ExplainView> {
        Box::pin(async move { self.explain_key(&key, cost).await })
    }

    fn reset_key(&self, key: Vec<u8>, actor: Actor) -> Answer<'_, bool> {
        Box::pin(async move {
            check_key(&key)?;
            let what = format!("reset {}", self.shown(&key));
            let reply = self.change(&[b"delete", &key], what, actor).await?;
            Ok(reply == "DELETED")
        })
    }

    fn refund_key(&self, key: Vec<u8>, units: u64, actor: Actor) -> Answer<'_, ()> {
        Box::pin(async move {
            check_key(&key)?;
            let units = units.to_string();
            let what = format!("refund {units} to {}", self.shown(&key));
            let reply = self.change(&[b"refund", &key, units.as_bytes()], what, actor).await?;
            if reply == "NOT_FOUND" {
                return Err(ServiceError::NotFound("the key has no state of a limit".to_owned()));
            }
            Ok(())
        })
    }

    fn nodes(&self) -> Option<NodesView> {
        self.node.as_ref()?.with_view(self.service.clock().now(), nodes_view)
    }

    fn drain_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        Box::pin(async move {
            self.change_cluster(&[b"cluster", b"drain", node.as_bytes()], actor).await
        })
    }

    fn forget_node(&self, node: String, actor: Actor) -> Answer<'_, ()> {
        Box::pin(async move {
            self.change_cluster(&[b"cluster", b"forget", node.as_bytes()], actor).await
        })
    }

    fn put_setting(&self, name: String, value: String, actor: Actor) -> Answer<'_, ()> {
        Box::pin(async move {
            let line = [&b"cluster"[..], b"set", name.as_bytes(), value.as_bytes()];
            self.change_cluster(&line, actor).await
        })
    }

    fn set_log_level(&self, level: u32, actor: Actor) -> Answer<'_, ()> {
        Box::pin(async move {
            if level > LOG_LEVEL_MAX {
                let detail = format!("a level is a number from 0 to {LOG_LEVEL_MAX}");
                return Err(ServiceError::Invalid { detail, line: None });
            }
            self.service.set_verbosity(level);
            audit(&actor, &format!("log level {level}"), &"OK");
            Ok(())
        })
    }

    fn configuration(&self) -> String {
        self.service.config().to_toml()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::map::{MapLimit, Put};
    use tollgate_limits::Limits;

    use super::*;
    use crate::records::{Changed, Records, RecordsError};
    use crate::runtime::service::Service;

    /// An empty store on a full disk.
    struct FullRecords;

    impl Records for FullRecords {
        fn mark(&self) -> u64 {
            0
        }

        fn get(&self, _: &str) -> Option<MapLimit> {
            None
        }

        fn scan(&self, _: &str, _: &mut dyn FnMut(&str, &MapLimit)) {}

        fn change(&self, _: Vec<Put>) -> Changed<'_> {
            Box::pin(async { Err(RecordsError::Unavailable("the disk is full".to_owned())) })
        }

        fn read_only(&self) -> Option<String> {
            None
        }

        fn fault(&self) -> Option<String> {
            Some("the disk is full".to_owned())
        }
    }

    #[test]
    fn a_store_that_cannot_be_written_is_a_fault() {
        let service = Service::of_flags(&[], Limits::default());
        service.limits_store().set_records(Arc::new(FullRecords));
        let faults = ServerHost::new(Arc::new(service), None).faults();
        let expected = "The last change of limits could not be stored: the disk is full";
        assert!(faults.iter().any(|fault| fault == expected), "{faults:?}");
    }
}
