//! Tollgate's own metrics.
//!
//! All values are sums read at the moment of the scrape; no request waits for it. A key is never a
//! label; the names of limits are, of which there are at most 10,000.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use control::MembershipState;
use tollgate_http::{Labels, MetricFamily, Sample, SampleValue};

use super::{observations, process};
use crate::cluster_stats::ClusterView;
use crate::counters::CounterSums;
use crate::limits::{ActiveLimits, LimitTotals};
use crate::node::Node;
use crate::runtime::service::Service;
use crate::transport::Transport;

pub(super) fn label(name: &'static str, value: impl Into<Cow<'static, str>>) -> Labels {
    vec![(name, value.into())]
}

/// Adds a sample for each pair of a label's value and a count.
fn by<V: Into<SampleValue>>(
    family: MetricFamily,
    name: &'static str,
    samples: impl IntoIterator<Item = (&'static str, V)>,
) -> MetricFamily {
    samples
        .into_iter()
        .fold(family, |family, (value, count)| family.with(label(name, value), count))
}

/// Returns all metrics. `start_seconds` is the start of the server since the Unix epoch.
pub(super) fn all(
    service: &Service,
    node: Option<&Node>,
    start_seconds: f64,
    is_ready: bool,
) -> Vec<MetricFamily> {
    let build = vec![
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("protocol_level", crate::MEMCACHED_VERSION.into()),
    ];
    let mut families = vec![
        MetricFamily::gauges("tollgate_build_info", "The version of the server").with(build, 1_u64),
        MetricFamily::gauge(
            "tollgate_start_time_seconds",
            "Start of the server, in seconds since the Unix epoch",
            start_seconds,
        ),
        MetricFamily::gauge(
            "tollgate_ready",
            "1 if clients should be sent here, as `/readyz` says",
            is_ready,
        ),
    ];
    let sums = service.sums();
    families.push(commands(&sums));
    limits(service, &mut families);
    families.extend(observations::all(service));
    connections(service, &sums, &mut families);
    store(service, &mut families);
    snapshots(service, &mut families);
    if let Some(node) = node {
        node.with_view(service.clock().now(), |view| cluster(view, &mut families));
        if let Some(tls) = node.transport().and_then(Transport::tls) {
            families.extend(tls.families("peer"));
        }
    }
    families.extend(process::all(start_seconds));
    families
}

fn commands(sums: &CounterSums) -> MetricFamily {
    let family = MetricFamily::counters(
        "tollgate_commands",
        "Commands and keys of clients by command and result",
    );
    [
        ("get", "hit", sums.get_hits),
        ("get", "miss", sums.get_misses),
        ("set", "stored", sums.total_items),
        ("set", "too_large", sums.store_too_large),
        ("set", "no_memory", sums.store_no_memory),
        ("cas", "hit", sums.cas_hits),
        ("cas", "miss", sums.cas_misses),
        ("cas", "badval", sums.cas_badval),
        ("delete", "hit", sums.delete_hits),
        ("delete", "miss", sums.delete_misses),
        ("incr", "hit", sums.incr_hits),
        ("incr", "miss", sums.incr_misses),
        ("decr", "hit", sums.decr_hits),
        ("decr", "miss", sums.decr_misses),
        ("touch", "hit", sums.touch_hits),
        ("touch", "miss", sums.touch_misses),
        ("flush", "ok", sums.cmd_flush),
        ("meta", "ok", sums.cmd_meta),
        ("auth", "ok", sums.auth_cmds.saturating_sub(sums.auth_errors)),
        ("auth", "error", sums.auth_errors),
    ]
    .into_iter()
    .fold(family, |family, (command, result, count)| {
        family.with(vec![("command", command.into()), ("result", result.into())], count)
    })
}

fn name_of(active: &ActiveLimits, place: usize) -> Option<String> {
    active.limits().get(place).map(|limit| limit.name().to_owned())
}

/// The figures of each limit, which are read as their text is written.
fn of_limits(service: &Service, active: &Arc<ActiveLimits>) -> [MetricFamily; 4] {
    let active_keys = service.shards().active_keys();
    let decisions =
        MetricFamily::counters("tollgate_decisions", "Decisions of configured limits by outcome");
    let keys =
        MetricFamily::gauges("tollgate_limit_active_keys", "Keys of which the limit holds a state");
    let units = MetricFamily::counters(
        "tollgate_decision_units",
        "Units with which attempts passed a limit",
    );
    let near = MetricFamily::counters(
        "tollgate_near_limit",
        "Allowed attempts after which at least 80 % of the limit was used",
    );
    let with_totals = |family: MetricFamily, value: fn(LimitTotals) -> u64| {
        let active = Arc::clone(active);
        family.with_each(move |place| {
            let value = value(active.metrics(place)?.sums()).into();
            Some(Sample { labels: label("limit", name_of(&active, place)?), value })
        })
    };
    let units = with_totals(units, |totals| totals.units);
    let near = with_totals(near, |totals| totals.near);
    let of = Arc::clone(active);
    let decisions = decisions.with_each(move |number| {
        let (place, totals) = (number / 3, of.metrics(number / 3)?.sums());
        let (outcome, count) = match number % 3 {
            0 => ("allowed", totals.allowed),
            1 => ("denied", totals.denied),
            _ => ("shadow_denied", totals.shadow_denied),
        };
        let labels = vec![("limit", name_of(&of, place)?.into()), ("outcome", outcome.into())];
        Some(Sample { labels, value: count.into() })
    });
    let of = Arc::clone(active);
    let keys = keys.with_each(move |place| {
        let count = active_keys.get(&of.metrics(place)?.number()).copied().unwrap_or(0);
        Some(Sample { labels: label("limit", name_of(&of, place)?), value: count.into() })
    });
    [decisions, units, near, keys]
}

fn limits(service: &Service, families: &mut Vec<MetricFamily>) {
    let handle = service.limits();
    let active = handle.load();
    families.extend(of_limits(service, &active));
    families.extend([
        MetricFamily::gauge("tollgate_limits", "Limits in force", active.limits().len()),
        by(
            MetricFamily::gauges("tollgate_overrides", "Overrides, by their source"),
            "source",
            service.limits_store().override_counts(),
        ),
        by(
            MetricFamily::counters("tollgate_limit_changes", "Changes of limits and overrides"),
            "via",
            service
                .limits_store()
                .change_counts()
                .into_iter()
                .map(|(via, count)| (via.word(), count)),
        ),
        MetricFamily::gauge(
            "tollgate_limits_generation",
            "Times that the limits in force were replaced",
            handle.generation(),
        ),
        MetricFamily::counter(
            "tollgate_limits_refused",
            "Limits files that were refused",
            handle.refused(),
        ),
        MetricFamily::gauge(
            "tollgate_limits_fault",
            "1 while the last limits file is refused and older limits are in force",
            handle.fault().is_some(),
        ),
    ]);
}

fn connections(service: &Service, sums: &CounterSums, families: &mut Vec<MetricFamily>) {
    let mut open = MetricFamily::gauges("tollgate_connections", "Open connections of clients");
    let mut accepted = MetricFamily::counters(
        "tollgate_connections_accepted",
        "Connections of clients that were accepted",
    );
    let mut rejected = MetricFamily::counters(
        "tollgate_connections_rejected",
        "Connections of clients that were refused at the limit of connections",
    );
    for (surface, [current, total, refused]) in service.connections().by_surface() {
        let listener = || label("listener", surface.word());
        open = open.with(listener(), current);
        accepted = accepted.with(listener(), total);
        rejected = rejected.with(listener(), refused);
    }
    families.extend([
        open,
        accepted,
        rejected,
        MetricFamily::gauge(
            "tollgate_connections_max",
            "The limit of connections of clients",
            service.config().connections_max,
        ),
        MetricFamily::counter(
            "tollgate_received_bytes",
            "Bytes received from clients",
            sums.bytes_read,
        ),
        MetricFamily::counter("tollgate_sent_bytes", "Bytes sent to clients", sums.bytes_written),
        by(
            MetricFamily::counters("tollgate_auth_failures", "Wrong passwords and tokens"),
            "surface",
            [("client", sums.auth_errors)],
        ),
    ]);
}

/// Adds the samples of plain items and of states of limits; `all` counts both.
fn by_kind(family: MetricFamily, (all, states): (u64, u64)) -> MetricFamily {
    by(family, "kind", [("item", all.saturating_sub(states)), ("limit", states)])
}

fn store(service: &Service, families: &mut Vec<MetricFamily>) {
    let totals = service.shards().totals();
    let memory_cap = service.shards().memory_cap();
    let losses = totals.losses;
    families.extend([
        MetricFamily::gauge("tollgate_items", "Items and states of limits", totals.items),
        MetricFamily::gauge(
            "tollgate_item_bytes",
            "Bytes of items and states of limits",
            totals.item_bytes,
        ),
        MetricFamily::gauge(
            "tollgate_memory_limit_bytes",
            "The memory cap for items",
            memory_cap.limit_bytes(),
        ),
        MetricFamily::gauge(
            "tollgate_memory_used_bytes",
            "Memory that counts towards the cap",
            memory_cap.used_bytes(),
        ),
        by_kind(
            MetricFamily::counters(
                "tollgate_evictions",
                "Items and states of limits removed before their deadline to make room",
            ),
            (losses.evicted, losses.evicted_states),
        ),
        by_kind(
            MetricFamily::counters(
                "tollgate_expired",
                "Items and states of limits removed past their deadline",
            ),
            (losses.expired, losses.expired_states),
        ),
    ]);
}

fn snapshots(service: &Service, families: &mut Vec<MetricFamily>) {
    if service.config().snapshot_file.is_none() {
        return;
    }
    let metrics = service.snapshots();
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    families.extend([
        MetricFamily::gauge(
            "tollgate_snapshot_last_success_timestamp_seconds",
            "Start of the last saved snapshot, in seconds since the Unix epoch; 0 before the first",
            read(&metrics.last_begun_unix_ms) / 1000,
        ),
        MetricFamily::gauge(
            "tollgate_snapshot_items",
            "Items of the last saved snapshot",
            read(&metrics.last_items),
        ),
        MetricFamily::counter(
            "tollgate_snapshot_failures",
            "Snapshots that could not be saved",
            read(&metrics.failed),
        ),
    ]);
}

/// The metrics of a node of a cluster.
fn cluster(view: &ClusterView<'_>, families: &mut Vec<MetricFamily>) {
    nodes(view, families);
    operations(view, families);
    partitions(view, families);
}

fn operations(view: &ClusterView<'_>, families: &mut Vec<MetricFamily>) {
    let traffic = view.traffic;
    families.extend([
        by(
            MetricFamily::counters(
                "tollgate_operations",
                "Operations by way: on keys of this node, forwarded, received, sent again",
            ),
            "way",
            [
                ("direct", traffic.ops_direct),
                ("forwarded", traffic.ops_forwarded),
                ("received", traffic.ops_received),
                ("resent", traffic.ops_resent),
            ],
        ),
        MetricFamily::counter(
            "tollgate_not_applied",
            "Operations that clients were told were not applied",
            traffic.not_applied,
        ),
        MetricFamily::counter(
            "tollgate_unknown_outcome",
            "Operations that clients were told have an unknown outcome",
            traffic.unknown_outcome,
        ),
        MetricFamily::counter(
            "tollgate_degraded_admitted",
            "Units admitted by this node alone while the owner was out of reach",
            traffic.degraded_admitted,
        ),
        MetricFamily::gauge(
            "tollgate_debt_pending",
            "Units of these that the owner does not know yet",
            traffic.debt_pending,
        ),
        MetricFamily::gauge(
            "tollgate_held_requests",
            "Operations that wait for a partition to move",
            traffic.held,
        ),
    ]);
}

fn partitions(view: &ClusterView<'_>, families: &mut Vec<MetricFamily>) {
    let partitions = view.partitions;
    let own = view.own();
    families.extend([
        by(
            MetricFamily::gauges(
                "tollgate_partitions",
                "Partitions: primary and backup are those of this node, the others those of all",
            ),
            "state",
            [
                ("primary", own.map_or(0, |row| row.primaries)),
                ("backup", own.map_or(0, |row| row.backups)),
                ("moving", partitions.moving),
                ("below_replicas", partitions.under_replicated),
                ("unavailable", partitions.without_primary),
            ],
        ),
        MetricFamily::gauge(
            "tollgate_map_version",
            "The version of the cluster's map at this node",
            view.status.map_ver,
        ),
        MetricFamily::gauge(
            "tollgate_control_leader",
            "1 if this node leads the control plane",
            view.node.is_some() && view.status.leader == view.node,
        ),
    ]);
    // Without a map it would be 0, and its first value a rise: an alert looks for one.
    if view.status.map_ver > 0 {
        families.push(MetricFamily::counter(
            "tollgate_partitions_lost",
            "Times that a partition of the cluster lost its last copy and started empty",
            partitions.lost,
        ));
    }
    if let Some(age) = view.status.lease {
        families.push(MetricFamily::gauge(
            "tollgate_control_lease_seconds",
            "Time since this node last heard most voters of the control plane",
            age.as_secs_f64(),
        ));
    }
}

fn nodes(view: &ClusterView<'_>, families: &mut Vec<MetricFamily>) {
    let mut info = MetricFamily::gauges("tollgate_node_info", "The nodes of the cluster");
    let mut up = MetricFamily::gauges("tollgate_peer_up", "1 while the link to the node is up");
    let mut offsets = MetricFamily::gauges(
        "tollgate_peer_clock_offset_seconds",
        "Time by which the wall clock of the node is ahead of what most nodes agree on",
    );
    for row in &view.nodes {
        let name = format!("n{}", row.id.0);
        let state = crate::cluster_stats::membership_word(MembershipState::Member(row.node.state));
        info = info.with(
            vec![
                ("node", name.clone().into()),
                ("ring_name", row.node.description.ring_name.clone().into()),
                ("zone", row.node.description.zone.clone().into()),
                ("state", state.into()),
            ],
            1_u64,
        );
        if let Some(link) = row.link {
            up = up.with(label("peer", name.clone()), link.is_up);
        }
        if let Some(offset_ms) = row.clock_offset_ms {
            #[expect(clippy::cast_precision_loss, reason = "offsets are far below 2^52 ms")]
            let seconds = offset_ms as f64 / 1e3;
            offsets = offsets.with(label("peer", name), seconds);
        }
    }
    families.extend([info, up, offsets]);
}
