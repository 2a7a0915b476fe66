//! The metrics of Prometheus's exporter for memcached, under its names, so that its dashboards and
//! alerts go on without it.
//!
//! Source of names, kinds and labels: `prometheus/memcached_exporter`, its README
//! and `memcached-mixin`. Items are one slab class, number 1, as in `stats items`.

use std::sync::atomic::Ordering;

use nix::sys::resource::{UsageWho, getrusage};
use tollgate_http::{Labels, MetricFamily};

use super::process;
use crate::counters::CounterSums;
use crate::runtime::service::Service;
use crate::shards::Totals;

/// Returns all metrics of the page.
pub(super) fn all(service: &Service) -> Vec<MetricFamily> {
    let (sums, totals) = (service.sums(), service.shards().totals());
    let mut families = general(service, &sums, &totals);
    families.extend(slab(service, &sums, &totals));
    families
}

/// The commands with their status, as the exporter labels them.
fn commands(sums: &CounterSums) -> [(&'static str, &'static str, u64); 14] {
    [
        ("get", "hit", sums.get_hits),
        ("get", "miss", sums.get_misses),
        ("set", "hit", sums.cmd_set),
        ("delete", "hit", sums.delete_hits),
        ("delete", "miss", sums.delete_misses),
        ("incr", "hit", sums.incr_hits),
        ("incr", "miss", sums.incr_misses),
        ("decr", "hit", sums.decr_hits),
        ("decr", "miss", sums.decr_misses),
        ("cas", "hit", sums.cas_hits),
        ("cas", "miss", sums.cas_misses),
        ("cas", "badval", sums.cas_badval),
        ("touch", "hit", sums.touch_hits),
        ("touch", "miss", sums.touch_misses),
    ]
}

fn general(service: &Service, sums: &CounterSums, totals: &Totals) -> Vec<MetricFamily> {
    let version = vec![("version", crate::MEMCACHED_VERSION.into())];
    let now = service.clock().now();
    let uptime = service.clock().uptime_seconds();
    let mut families = vec![
        MetricFamily::gauge("memcached_up", "Whether the server can be reached", true),
        MetricFamily::gauge("memcached_uptime_seconds", "Seconds since the server started", uptime),
        MetricFamily::gauge("memcached_time_seconds", "The server's time", now.unix_ms / 1000),
        MetricFamily::gauges("memcached_version", "The version").with(version, 1_u64),
    ];
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        for (name, help, time) in [
            (
                "memcached_process_user_cpu_seconds",
                "Processor time in user mode",
                usage.user_time(),
            ),
            (
                "memcached_process_system_cpu_seconds",
                "Processor time in system mode",
                usage.system_time(),
            ),
        ] {
            let family = MetricFamily::counters(name, help);
            families.push(family.with(Vec::new(), process::seconds(time)));
        }
    }
    families.extend(counts(service, sums, totals));
    families.extend(gauges(service, totals));
    let family = MetricFamily::counters("memcached_commands", "Commands by status");
    families.push(commands(sums).into_iter().fold(family, |family, (command, status, count)| {
        family.with(vec![("command", command.into()), ("status", status.into())], count)
    }));
    families
}

fn counts(
    service: &Service,
    sums: &CounterSums,
    totals: &Totals,
) -> impl Iterator<Item = MetricFamily> {
    let losses = totals.losses;
    let connections = service.connections();
    [
        ("memcached_read_bytes", "Bytes read from clients", sums.bytes_read),
        ("memcached_written_bytes", "Bytes sent to clients", sums.bytes_written),
        ("memcached_connections", "Connections opened", connections.total()),
        ("memcached_connections_rejected", "Connections refused", connections.rejected()),
        ("memcached_connections_yielded", "Batches cut for fairness", sums.conn_yields),
        (
            "memcached_connections_listener_disabled",
            "Times that accepting paused",
            service.listen_disabled.load(Ordering::Relaxed),
        ),
        ("memcached_items", "Items stored", sums.total_items),
        ("memcached_items_evicted", "Items evicted", losses.evicted),
        ("memcached_items_reclaimed", "Expired items removed to make room", losses.reclaimed),
        ("memcached_item_too_large", "Values over the size bound", sums.store_too_large),
        ("memcached_item_no_memory", "Stores refused for lack of memory", sums.store_no_memory),
        (
            "memcached_direct_reclaims",
            "Items removed to make room",
            losses.evicted + losses.reclaimed,
        ),
    ]
    .into_iter()
    .map(|(name, help, count)| MetricFamily::counter(name, help, count))
}

fn gauges(service: &Service, totals: &Totals) -> impl Iterator<Item = MetricFamily> {
    let cap = service.shards().memory_cap();
    let connections = service.connections().current();
    [
        ("memcached_current_connections", "Open connections", connections),
        ("memcached_max_connections", "Most open connections", service.config().connections_max),
        ("memcached_current_bytes", "Bytes of items", totals.item_bytes as usize),
        ("memcached_limit_bytes", "The memory cap", cap.limit_bytes()),
        ("memcached_current_items", "Items", totals.items as usize),
        ("memcached_malloced_bytes", "Memory of items and tables", cap.used_bytes()),
    ]
    .into_iter()
    .map(|(name, help, value)| MetricFamily::gauge(name, help, value))
}

fn slab(service: &Service, sums: &CounterSums, totals: &Totals) -> Vec<MetricFamily> {
    let losses = totals.losses;
    let class = || -> Labels { vec![("slab", "1".into())] };
    let mut families = Vec::new();
    for (name, help, value) in [
        ("memcached_slab_current_items", "Items", totals.items),
        (
            "memcached_slab_items_age_seconds",
            "Upper bound of the age of the oldest item",
            service.clock().uptime_seconds(),
        ),
        ("memcached_slab_chunk_size_bytes", "Bytes of the smallest item", 48),
        ("memcached_slab_chunks_used", "Items", totals.items),
        ("memcached_slab_mem_requested_bytes", "Bytes of items", totals.item_bytes),
    ] {
        families.push(MetricFamily::gauges(name, help).with(class(), value));
    }
    for (name, help, count) in [
        ("memcached_slab_items_evicted", "Items evicted", losses.evicted),
        (
            "memcached_slab_items_evicted_unfetched",
            "Evicted items that were never fetched",
            losses.evicted_unfetched,
        ),
        (
            "memcached_slab_items_expired_unfetched",
            "Expired items that were never fetched",
            losses.expired_unfetched,
        ),
        (
            "memcached_slab_items_outofmemory",
            "Stores refused for lack of memory",
            sums.store_no_memory,
        ),
        ("memcached_slab_items_reclaimed", "Expired items removed to make room", losses.reclaimed),
    ] {
        families.push(MetricFamily::counters(name, help).with(class(), count));
    }
    let family = MetricFamily::counters("memcached_slab_commands", "Commands by status");
    let with_slab =
        |family: MetricFamily, (command, status, count): (&'static str, &'static str, u64)| {
            let labels =
                vec![("slab", "1".into()), ("command", command.into()), ("status", status.into())];
            family.with(labels, count)
        };
    // Misses belong to no slab class.
    let hits = commands(sums).into_iter().filter(|(_, status, _)| *status != "miss");
    families.push(hits.fold(family, with_slab));
    families
}
