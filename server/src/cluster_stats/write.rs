//! `ClusterView` → bytes: `STAT` lines, and the list of nodes in `ElastiCache`'s format.
//!
//! Every line of `stats` is `STAT <name> <value>`; the value `-` means unknown. Not here: the
//! source of the numbers (`cluster_stats`).

use std::fmt::{Display, Write as _};
use std::net::IpAddr;

use cluster::id::NodeId;
use cluster::map::{NodeState, OWN_NAME};
use tollgate_limits::map_text::entries;

use super::{
    ClusterView, NodeRow, PartitionHealth, PartitionRow, disk_word, membership_word, millis,
    not_safe_to_proceed, state_word,
};
use crate::config::host_and_port;

/// Most partitions in `stats cluster partitions`: after a start all 65536 may be without a primary.
const PARTITION_LINES_MAX: usize = 20;

/// The topic of `stats cluster`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// `stats cluster`: the node, the cluster as a whole, traffic.
    General,
    /// `stats cluster nodes`: several lines per node.
    Nodes,
    /// `stats cluster partitions`: totals, and a line for each partition with a problem.
    Partitions,
    /// `stats cluster partitions all`: a line for each partition.
    AllPartitions,
    /// `stats cluster limits`: the limits in order, each with its version.
    Limits,
}

impl Topic {
    /// Returns the topic in the words after `stats`; `None` for other topics.
    #[must_use]
    pub fn of(topic: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> =
            topic.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            [b"cluster"] => Some(Self::General),
            [b"cluster", b"nodes"] => Some(Self::Nodes),
            [b"cluster", b"partitions"] => Some(Self::Partitions),
            [b"cluster", b"partitions", b"all"] => Some(Self::AllPartitions),
            [b"cluster", b"limits"] => Some(Self::Limits),
            _ => None,
        }
    }
}

/// Writes the reply to `stats` about `topic`, including `END`.
pub fn write(view: &ClusterView<'_>, topic: Topic, out: &mut Vec<u8>) {
    let mut lines = LineWriter(String::new());
    match topic {
        Topic::General => general(view, &mut lines),
        Topic::Nodes => view.nodes.iter().for_each(|row| node(row, view, &mut lines)),
        Topic::Partitions => partitions(view, false, &mut lines),
        Topic::AllPartitions => partitions(view, true, &mut lines),
        Topic::Limits => limits(view, &mut lines),
    }
    lines.0.push_str("END\r\n");
    out.extend_from_slice(lines.0.as_bytes());
}

/// Writes the reply to `config get cluster`: the nodes that clients should list.
pub fn write_config(view: &ClusterView<'_>, out: &mut Vec<u8>) {
    let mut body = format!("{}\n", view.map.ver());
    let mut is_first = true;
    for row in &view.nodes {
        let is_member = matches!(row.node.state, NodeState::Joining | NodeState::Active);
        let address = &row.node.description.client_address;
        let Ok((host, Some(port))) = host_and_port(address) else { continue };
        if !is_member || row.node.description.weight == 0 {
            continue;
        }
        // Empty for a host name, so that clients resolve it.
        let ip = if host.parse::<IpAddr>().is_ok() { host } else { "" };
        let blank = if is_first { "" } else { " " };
        is_first = false;
        write!(body, "{blank}{host}|{ip}|{port}").expect("a String takes every write");
    }
    body.push('\n');
    out.extend_from_slice(format!("CONFIG cluster 0 {}\r\n", body.len()).as_bytes());
    out.extend_from_slice(body.as_bytes());
    out.extend_from_slice(b"\r\nEND\r\n");
}

/// Collects the lines.
struct LineWriter(String);

impl LineWriter {
    fn stat(&mut self, name: impl Display, value: impl Display) {
        write!(self.0, "STAT {name} {value}\r\n").expect("a String takes every write");
    }
}

fn limits(view: &ClusterView<'_>, lines: &mut LineWriter) {
    let limits = view.map.limits();
    let is_limit = |name: &str| !name.starts_with(OWN_NAME);
    lines.stat("limits", limits.keys().filter(|name| is_limit(name)).count());
    let bodies = limits.iter().filter(|(name, _)| is_limit(name));
    let bodies = bodies.map(|(name, limit)| (name.as_str(), limit.body.as_slice()));
    for entry in entries(bodies) {
        let name = &entry.text.name;
        let version = limits.get(name).map_or(0, |limit| limit.version);
        lines.stat(format_args!("{}:version", printable(name)), version);
    }
}

/// Returns `-` for an unknown value.
fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// Returns a node's own text as one line that is not empty.
fn printable(text: &str) -> String {
    match text {
        "" => "-".to_owned(),
        text => text.replace(char::is_control, "?"),
    }
}

/// Joins several nodes to one word.
fn list(nodes: impl IntoIterator<Item = NodeId>, between: &str) -> String {
    let names: Vec<_> = nodes.into_iter().map(|node| node.to_string()).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(between) }
}

fn general(view: &ClusterView<'_>, lines: &mut LineWriter) {
    let status = view.status;
    let head = view.map.head();
    let settings = view.map.settings();
    lines.stat("node", known(view.node));
    lines.stat("tollgate_version", env!("CARGO_PKG_VERSION"));
    lines.stat("incarnation", status.identity.incarnation.0);
    // Enough digits to tell clusters apart. The rest stays secret: it seeds the key hashes.
    let id = head.map(|head| format!("{:08x}", (head.cluster >> 96) as u32));
    lines.stat("cluster", known(id));
    lines.stat("place", membership_word(status.membership_state));
    let not_ready = view.not_ready();
    lines.stat("ready", yes(not_ready.is_none()));
    lines.stat("not_ready", not_ready.unwrap_or("-"));
    let not_safe = not_safe_to_proceed(view);
    lines.stat("safe_to_proceed", yes(not_safe.is_none()));
    lines.stat("not_safe", not_safe.as_deref().unwrap_or("-"));
    lines.stat("leader", known(status.leader));
    lines.stat("voters", list(status.voters.iter().copied(), ","));
    lines.stat("raft_term", status.raft_term);
    lines.stat("map_ver", status.map_ver);
    lines.stat("contact_ms", known(status.contact.map(millis)));
    lines.stat("lease_ms", known(status.lease.map(millis)));
    let own = view.own();
    lines.stat("clock_offset_ms", known(own.and_then(|row| row.clock_offset_ms)));
    lines.stat("clock_off", known(own.and_then(NodeRow::is_clock_off).map(yes)));
    let fault = status.fault.as_deref().or(view.refusal.as_deref());
    lines.stat("fault", known(fault.map(printable)));
    lines.stat("disk", disk_word(status.disk));
    let scheme = head.map(|head| format!("{:?}", head.placement.scheme()).to_ascii_lowercase());
    lines.stat("placement", known(scheme));
    lines.stat("replicas", settings.replicas);
    let lost_after = settings.lost_after_ms.map(|after| after / 1000);
    lines.stat("lost_after", lost_after.map_or("never".to_owned(), |after| after.to_string()));
    for (name, value) in &settings.others {
        lines.stat(format_args!("setting:{}", printable(name)), printable(value));
    }
    let count = |state| view.nodes.iter().filter(|row| row.node.state == state).count();
    lines.stat("nodes", view.nodes.len());
    for state in [NodeState::Joining, NodeState::Active, NodeState::Draining, NodeState::Dead] {
        lines.stat(format_args!("nodes_{}", state_word(state)), count(state));
    }
    totals(view, lines);
    let traffic = view.traffic;
    for (name, value) in [
        ("ops_direct", traffic.ops_direct),
        ("ops_forwarded", traffic.ops_forwarded),
        ("ops_received", traffic.ops_received),
        ("ops_resent", traffic.ops_resent),
        ("not_applied", traffic.not_applied),
        ("unknown_outcome", traffic.unknown_outcome),
        ("degraded_admitted", traffic.degraded_admitted),
        ("debt_pending", traffic.debt_pending),
        ("held", traffic.held),
        ("links_broken", traffic.links_broken),
        ("data_links", traffic.data_links),
        ("frames_relayed", traffic.frames_relayed),
    ] {
        lines.stat(name, value);
    }
}

fn totals(view: &ClusterView<'_>, lines: &mut LineWriter) {
    let totals = view.partitions;
    for (name, value) in [
        ("partitions", totals.total),
        ("partitions_served", totals.served),
        ("partitions_without_primary", totals.without_primary),
        ("partitions_under_replicated", totals.under_replicated),
        ("partitions_moving", totals.moving),
        ("partitions_learners", totals.learners),
    ] {
        lines.stat(name, value);
    }
    lines.stat("partitions_lost", totals.lost);
}

fn node(row: &NodeRow<'_>, view: &ClusterView<'_>, lines: &mut LineWriter) {
    let id = row.id;
    let described = &row.node.description;
    let mut stat = |name: &str, value: &dyn Display| lines.stat(format_args!("{id}:{name}"), value);
    stat("ring_name", &printable(&described.ring_name));
    stat("client", &printable(&described.client_address));
    stat("peer", &printable(&described.peer_address));
    stat("zone", &printable(&described.zone));
    stat("weight", &described.weight);
    stat("state", &state_word(row.node.state));
    stat("incarnation", &row.node.incarnation.0);
    stat("voter", &yes(view.voters().contains(&id)));
    stat("leader", &yes(view.status.leader == Some(id)));
    stat("self", &yes(view.node == Some(id)));
    stat("heard_ms_ago", &known(row.heard_ms_ago));
    stat("ready", &known(row.is_ready.map(yes)));
    stat("ops_per_second", &known(row.ops_per_second));
    stat("disk", &known(row.disk.map(disk_word)));
    stat("primaries", &row.primaries);
    stat("backups", &row.backups);
    stat("learners", &row.learners);
    stat("link", &known(row.link.map(|link| if link.is_up { "up" } else { "down" })));
    stat("clock_offset_ms", &known(row.clock_offset_ms));
    stat("clock_off", &known(row.is_clock_off().map(yes)));
}

/// Writes the totals, then all partitions in order, or those with a problem, the worst first.
fn partitions(view: &ClusterView<'_>, all: bool, lines: &mut LineWriter) {
    totals(view, lines);
    if all {
        view.partition_rows().for_each(|row| lines.stat(row.partition, partition(&row)));
        return;
    }
    let mut rows: Vec<_> =
        view.partition_rows().filter(|row| row.state != PartitionHealth::Fine).collect();
    rows.sort_by_key(|row| row.state);
    for row in rows.iter().take(PARTITION_LINES_MAX) {
        lines.stat(row.partition, partition(row));
    }
    lines.stat("partitions_left_out", rows.len().saturating_sub(PARTITION_LINES_MAX));
}

fn partition(row: &PartitionRow<'_>) -> String {
    let state = match row.state {
        PartitionHealth::NoPrimary => "no_primary",
        PartitionHealth::UnderReplicated => "under_replicated",
        PartitionHealth::Moving => "moving",
        PartitionHealth::Learning => "learning",
        PartitionHealth::Fine => "fine",
    };
    let entry = row.entry;
    format!(
        "state={state},primary={},backups={},learner={},to={},term={},era={},ver={}",
        known(entry.primary.map(|copy| copy.node)),
        list(row.backups(), "+"),
        known(entry.learner.map(|copy| copy.node)),
        known(entry.transfer_to.map(|copy| copy.node)),
        entry.term.0,
        entry.era,
        entry.ver,
    )
}
