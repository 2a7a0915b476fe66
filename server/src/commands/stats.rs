//! The replies to `stats`: memcached's names, in memcached's order, with this server's numbers.
//!
//! Every line is `STAT <name> <value>`; monitoring agents reject lines without a value. Not here:
//! the counting (`counters`, `shards`, `connections`).

mod conns;
mod hot;

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

use engine::Now;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use protocol::{StatsTopic, write_escaped_key};
use tollgate_limits::OverrideSource;

use crate::config::KeyDisplay;
use crate::counters::CounterSums;
use crate::limits::ActiveLimits;
use crate::observe::shown_key;
use crate::runtime::service::Service;
use crate::shards::Totals;

/// Longest reply to `stats cachedump`, as in memcached: two megabytes.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// Collects `STAT` lines.
struct StatLines<'a>(&'a mut Vec<u8>);

impl StatLines<'_> {
    fn stat(&mut self, name: &str, value: impl Display) {
        let mut text = String::with_capacity(48);
        write!(text, "STAT {name} {value}").expect("writing to a String cannot fail");
        // A path or a fault in the limits file may contain line ends.
        let bytes =
            text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte });
        self.0.extend(bytes);
        self.0.extend_from_slice(b"\r\n");
    }

    /// Writes a switch in the format of memcached's settings.
    fn switch(&mut self, name: &str, on: bool) {
        self.stat(name, if on { "yes" } else { "no" });
    }

    fn zeros(&mut self, names: &[&str]) {
        for name in names {
            self.stat(name, 0);
        }
    }
}

/// Writes the reply to `stats` about `topic`. `active_limits` are those of the requesting worker,
/// so that the reply is valid for the client's next request; `asking` is the client's file
/// descriptor.
pub(crate) fn write(
    service: &Service,
    active_limits: &ActiveLimits,
    (now, asking): (Now, i32),
    topic: StatsTopic<'_>,
    out: &mut Vec<u8>,
) {
    if let (StatsTopic::Other(topic), Some(node)) = (topic, service.node())
        && node.write_stats(now, topic, out)
    {
        return;
    }
    let mut lines = StatLines(out);
    match topic {
        StatsTopic::General => {
            general(service, now, &mut lines);
            snapshots(service, &mut lines);
        }
        StatsTopic::Settings => settings(service, &mut lines),
        StatsTopic::Items => items(service, &mut lines),
        StatsTopic::Slabs => slabs(service, &mut lines),
        StatsTopic::Sizes => lines.stat("sizes_status", "disabled"),
        StatsTopic::Conns => conns::write(service, asking, now, &mut lines),
        StatsTopic::Reset => {
            service.reset_counters();
            out.extend_from_slice(b"RESET\r\n");
            return;
        }
        StatsTopic::Detail(on) => {
            service.prefixes().enable(on);
            out.extend_from_slice(b"OK\r\n");
            return;
        }
        StatsTopic::DetailDump if service.config().dumping => {
            service.prefixes().write(out);
            return;
        }
        StatsTopic::DetailDump => {
            out.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n");
            return;
        }
        StatsTopic::CacheDump { class, count } => {
            cachedump(service, now, class, count, out);
            return;
        }
        StatsTopic::Other(topic) if topic.trim_ascii() == b"limits" => {
            limits(service, active_limits, &mut lines);
        }
        StatsTopic::Other(topic) if hot::write(service, topic, &mut lines) => {}
        StatsTopic::Other(_) => {
            out.extend_from_slice(b"ERROR\r\n");
            return;
        }
    }
    out.extend_from_slice(b"END\r\n");
}

/// Formats a time as `seconds.microseconds`, the only format that the Prometheus exporter accepts.
fn processor_time(time: TimeVal) -> String {
    format!("{}.{:06}", time.tv_sec(), time.tv_usec())
}

/// Writes the decisions of each limit, in the order of the file.
fn limits(service: &Service, active_limits: &ActiveLimits, lines: &mut StatLines<'_>) {
    lines.stat("limits", active_limits.limits().len());
    lines.stat("limits_generation", service.limits().generation());
    lines.stat("limits_refused", service.limits().refused());
    if let Some(fault) = service.limits().fault() {
        lines.stat("limits_fault", fault);
    }
    let active = service.shards().active_keys();
    for limit in active_limits.limits() {
        let Some(metrics) = active_limits.metrics(limit.index()) else { continue };
        let (name, sums) = (limit.name(), metrics.sums());
        lines.stat(&format!("{name}:policy"), limit.policy());
        lines.stat(&format!("{name}:allowed"), sums.allowed);
        lines.stat(&format!("{name}:denied"), sums.denied);
        lines.stat(&format!("{name}:shadow_denied"), sums.shadow_denied);
        if let Some(path) = limit.overrides_file() {
            let count = limit.override_table_len(OverrideSource::File);
            lines.stat(&format!("{name}:overrides_file"), path);
            lines.stat(&format!("{name}:overrides_of_file"), count);
        }
        lines.stat(&format!("{name}:active_keys"), active.get(&metrics.number()).unwrap_or(&0));
    }
}

fn general(service: &Service, now: Now, lines: &mut StatLines<'_>) {
    let sums = service.sums();
    let totals = service.shards().totals();
    process(service, now, lines);
    verb_counts(&sums, &totals, lines);
    threads_and_table(service, &sums, &totals, lines);
    item_counts(service, &sums, &totals, lines);
}

/// Writes the statistics of the process and of its connections.
fn process(service: &Service, now: Now, lines: &mut StatLines<'_>) {
    let connections = service.connections();
    let config = service.config();
    lines.stat("pid", std::process::id());
    lines.stat("uptime", service.clock().uptime_seconds());
    lines.stat("time", now.unix_ms / 1000);
    lines.stat("version", crate::MEMCACHED_VERSION);
    lines.stat("libevent", "none");
    lines.stat("pointer_size", usize::BITS);
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        lines.stat("rusage_user", processor_time(usage.user_time()));
        lines.stat("rusage_system", processor_time(usage.system_time()));
    }
    lines.stat("max_connections", config.connections_max);
    lines.stat("curr_connections", connections.current());
    lines.stat("total_connections", connections.total());
    lines.stat("rejected_connections", connections.rejected());
    lines.stat("connection_structures", connections.current());
    lines.stat("response_obj_oom", 0);
    lines.stat("response_obj_count", config.threads);
    lines.stat("response_obj_bytes", 0);
    lines.stat("read_buf_count", config.threads);
    lines.stat("read_buf_bytes", config.threads * crate::runtime::buffers::INPUT_BYTES);
    lines.stat("read_buf_bytes_free", 0);
    lines.stat("read_buf_oom", 0);
    lines.stat("reserved_fds", crate::RESERVED_FILES);
}

/// Writes the counters of verbs, logins and bytes.
fn verb_counts(sums: &CounterSums, totals: &Totals, lines: &mut StatLines<'_>) {
    for (name, value) in [
        ("cmd_get", sums.cmd_get),
        ("cmd_set", sums.cmd_set),
        ("cmd_flush", sums.cmd_flush),
        ("cmd_touch", sums.cmd_touch),
        ("cmd_meta", sums.cmd_meta),
        ("get_hits", sums.get_hits),
        ("get_misses", sums.get_misses),
        ("get_expired", totals.get_expired),
        ("get_flushed", totals.get_flushed),
        ("delete_misses", sums.delete_misses),
        ("delete_hits", sums.delete_hits),
        ("incr_misses", sums.incr_misses),
        ("incr_hits", sums.incr_hits),
        ("decr_misses", sums.decr_misses),
        ("decr_hits", sums.decr_hits),
        ("cas_misses", sums.cas_misses),
        ("cas_hits", sums.cas_hits),
        ("cas_badval", sums.cas_badval),
        ("touch_hits", sums.touch_hits),
        ("touch_misses", sums.touch_misses),
        ("store_too_large", sums.store_too_large),
        ("store_no_memory", sums.store_no_memory),
        ("auth_cmds", sums.auth_cmds),
        ("auth_errors", sums.auth_errors),
        ("bytes_read", sums.bytes_read),
        ("bytes_written", sums.bytes_written),
    ] {
        lines.stat(name, value);
    }
}

/// Writes the statistics of memory, threads and the item table.
fn threads_and_table(
    service: &Service,
    sums: &CounterSums,
    totals: &Totals,
    lines: &mut StatLines<'_>,
) {
    let config = service.config();
    let memory_cap = service.shards().memory_cap();
    lines.stat("limit_maxbytes", memory_cap.limit_bytes());
    lines.stat("accepting_conns", u8::from(service.accepting.load(Ordering::Relaxed)));
    lines.stat("listen_disabled_num", service.listen_disabled.load(Ordering::Relaxed));
    let disabled_us = service.listen_disabled_us.load(Ordering::Relaxed);
    lines.stat("time_in_listen_disabled_us", disabled_us);
    lines.stat("threads", config.threads);
    lines.stat("conn_yields", sums.conn_yields);
    lines.stat("hash_power_level", (totals.index_bytes / 64).max(1).ilog2());
    lines.stat("hash_bytes", totals.index_bytes);
    lines.zeros(&["hash_is_expanding", "slab_reassign_rescues", "slab_reassign_chunk_rescues"]);
    lines.zeros(&["slab_reassign_evictions_nomem", "slab_reassign_inline_reclaim"]);
    lines.zeros(&["slab_reassign_busy_items", "slab_reassign_busy_deletes"]);
    lines.zeros(&["slab_reassign_running", "slabs_moved", "lru_crawler_running"]);
    lines.stat("lru_crawler_starts", 0);
    lines.zeros(&["lru_maintainer_juggles", "malloc_fails", "log_worker_dropped"]);
    lines.zeros(&["log_worker_written", "log_watcher_skipped", "log_watcher_sent"]);
    lines.zeros(&["log_watchers", "unexpected_napi_ids", "round_robin_fallback"]);
}

/// Writes the counts of items, of their removals, and of ids.
fn item_counts(service: &Service, sums: &CounterSums, totals: &Totals, lines: &mut StatLines<'_>) {
    let connections = service.connections();
    lines.stat("bytes", totals.item_bytes);
    lines.stat("curr_items", totals.items);
    lines.stat("total_items", sums.total_items);
    lines.zeros(&["slab_global_page_pool"]);
    lines.stat("expired_unfetched", totals.losses.expired_unfetched);
    lines.stat("evicted_unfetched", totals.losses.evicted_unfetched);
    lines.stat("evicted_active", totals.losses.evicted_active);
    lines.stat("evictions", totals.losses.evicted);
    lines.stat("reclaimed", totals.losses.reclaimed);
    lines.stat("crawler_reclaimed", totals.losses.swept);
    lines.stat("crawler_items_checked", totals.losses.sweep_checked);
    lines.zeros(&["lrutail_reflocked", "moves_to_cold", "moves_to_warm", "moves_within_lru"]);
    lines.stat("direct_reclaims", totals.losses.evicted + totals.losses.reclaimed);
    lines.zeros(&["lru_bumps_dropped"]);
    lines.stat("idle_kicks", connections.idle_kicks());
    let ids = service.shards().idempotency_metrics();
    lines.stat("ids", ids.count);
    lines.stat("ids_bytes", ids.bytes);
    lines.stat("ids_oldest_seconds", ids.oldest_seconds);
    lines.stat("ids_forgotten", ids.forgotten);
}

fn settings(service: &Service, lines: &mut StatLines<'_>) {
    let config = service.config();
    let interfaces: Vec<&str> = config.listen.iter().map(|listen| listen.host.as_str()).collect();
    lines.stat("maxbytes", service.shards().memory_cap().limit_bytes());
    lines.stat("maxconns", config.connections_max);
    lines.stat("tcpport", service.port.load(Ordering::Relaxed));
    lines.stat("udpport", 0);
    match interfaces.as_slice() {
        [] => lines.stat("inter", "NULL"),
        some => lines.stat("inter", some.join(",")),
    }
    lines.stat("verbosity", config.log_level.verbosity());
    lines.stat("oldest", 0);
    lines.stat("evictions", if config.evict { "on" } else { "off" });
    if let Some(socket) = &config.unix_socket {
        lines.stat("domain_socket", socket.path.display());
        lines.stat("umask", format_args!("{:o}", socket.mask));
    } else {
        lines.stat("domain_socket", "NULL");
        lines.stat("umask", "700");
    }
    lines.switch("shutdown_command", config.shutdown_command);
    lines.stat("growth_factor", "1.25");
    lines.stat("chunk_size", 48);
    lines.stat("num_threads", config.threads);
    lines.stat("num_threads_per_udp", config.threads);
    lines.stat("stat_key_prefix", char::from(config.prefix_delimiter));
    lines.switch("detail_enabled", service.prefixes().is_enabled());
    lines.stat("reqs_per_event", config.requests_per_event);
    lines.switch("cas_enabled", config.cas);
    lines.stat("tcp_backlog", config.backlog);
    lines.stat("binding_protocol", "ascii");
    lines.switch("auth_enabled_sasl", false);
    lines.switch("auth_enabled_ascii", service.asks_password());
    lines.stat("item_size_max", config.item_bytes_max);
    lines.switch("maxconns_fast", config.connections_fast);
    lines.stat("hashpower_init", config.hashpower.unwrap_or(0));
    lines.switch("slab_reassign", false);
    lines.stat("slab_automove", 0);
    // With `no`, the Prometheus exporter omits the gauges of an LRU that this server does not have.
    lines.switch("lru_crawler", false);
    lines.switch("flush_enabled", config.flush_all);
    lines.switch("dump_enabled", config.dumping);
    lines.stat("hash_algorithm", "ahash");
    lines.switch("lru_maintainer_thread", false);
    lines.switch("lru_segmented", false);
    lines.stat("idle_timeout", config.idle_timeout.map_or(0, |timeout| timeout.as_secs()));
    lines.switch("track_sizes", false);
    lines.switch("inline_ascii_response", false);
    lines.switch("ssl_enabled", false);
    match &config.snapshot_file {
        Some(path) => lines.stat("memory_file", path.display()),
        None => lines.stat("memory_file", "(null)"),
    }
    lines.stat("client_flags_size", 4);
}

/// Writes the metrics of snapshots taken while the server runs, if a snapshot file is configured.
fn snapshots(service: &Service, lines: &mut StatLines<'_>) {
    if service.config().snapshot_file.is_none() {
        return;
    }
    let metrics = service.snapshots();
    for (name, counter, unit) in [
        ("snapshot_saved", &metrics.saved, 1),
        ("snapshot_failed", &metrics.failed, 1),
        ("snapshot_items", &metrics.last_items, 1),
        // Unix seconds, as in `time`; 0 before the first snapshot.
        ("snapshot_begun", &metrics.last_begun_unix_ms, 1000),
        ("snapshot_took_ms", &metrics.last_took_ms, 1),
    ] {
        lines.stat(name, counter.load(Ordering::Relaxed) / unit);
    }
}

/// Writes the items as one slab class, number 1.
fn items(service: &Service, lines: &mut StatLines<'_>) {
    let totals = service.shards().totals();
    if totals.items == 0 {
        return;
    }
    let losses = totals.losses;
    for (name, value) in [
        ("number", totals.items),
        ("number_hot", 0),
        ("number_warm", 0),
        ("number_cold", totals.items),
        ("age_hot", 0),
        ("age_warm", 0),
        // The age of the oldest item is not tracked; the process's age is its upper bound.
        ("age", service.clock().uptime_seconds()),
        ("mem_requested", totals.item_bytes),
        ("evicted", losses.evicted),
        ("evicted_nonzero", 0),
        ("evicted_time", 0),
        ("outofmemory", service.sums().store_no_memory),
        ("tailrepairs", 0),
        ("reclaimed", losses.reclaimed),
        ("expired_unfetched", losses.expired_unfetched),
        ("evicted_unfetched", losses.evicted_unfetched),
        ("evicted_active", losses.evicted_active),
        ("crawler_reclaimed", losses.swept),
        ("crawler_items_checked", losses.sweep_checked),
        ("lrutail_reflocked", 0),
        ("moves_to_cold", 0),
        ("moves_to_warm", 0),
        ("moves_within_lru", 0),
        ("direct_reclaims", losses.evicted + losses.reclaimed),
        ("hits_to_hot", 0),
        ("hits_to_warm", 0),
        ("hits_to_cold", service.sums().get_hits),
        ("hits_to_temp", 0),
    ] {
        lines.stat(&format!("items:1:{name}"), value);
    }
}

fn slabs(service: &Service, lines: &mut StatLines<'_>) {
    let totals = service.shards().totals();
    let sums = service.sums();
    let used = service.shards().memory_cap().used_bytes() as u64;
    if totals.items > 0 {
        for (name, value) in [
            ("chunk_size", 48),
            ("chunks_per_page", 1),
            ("total_pages", totals.items),
            ("total_chunks", totals.items),
            ("used_chunks", totals.items),
            ("free_chunks", 0),
            ("free_chunks_end", 0),
            // No `mem_requested` here, because `stats items` has it: an exporter that reads both
            // refuses a name that is a gauge in one and a counter in the other.
            ("get_hits", sums.get_hits),
            ("cmd_set", sums.cmd_set),
            ("delete_hits", sums.delete_hits),
            ("incr_hits", sums.incr_hits),
            ("decr_hits", sums.decr_hits),
            ("cas_hits", sums.cas_hits),
            ("cas_badval", sums.cas_badval),
            ("touch_hits", sums.touch_hits),
        ] {
            lines.stat(&format!("1:{name}"), value);
        }
    }
    lines.stat("active_slabs", u8::from(totals.items > 0));
    lines.stat("total_malloced", used);
}

/// Writes the keys of the only class, each with its length and its deadline in Unix seconds.
fn cachedump(service: &Service, now: Now, class: u32, count: u32, out: &mut Vec<u8>) {
    if !service.config().dumping {
        out.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n");
        return;
    }
    let mut left = if count == 0 { u32::MAX } else { count };
    let start = out.len();
    let display = service.observatory().display();
    if class == 1 {
        service.shards().visit(now, |record| {
            let ends = record.left_ms.map_or(0, |left_ms| (now.unix_ms + left_ms) / 1000);
            out.extend_from_slice(b"ITEM ");
            if display == KeyDisplay::Full {
                write_escaped_key(out, record.key);
            } else {
                let hash = service.shards().hash(record.key);
                let key = shown_key(display, hash, (record.key, false), None);
                out.extend_from_slice(key.as_bytes());
            }
            let stats = format!(" [{} b; {ends} s]\r\n", record.value.len());
            out.extend_from_slice(stats.as_bytes());
            left -= 1;
            left > 0 && out.len() - start < CACHEDUMP_BYTES_MAX
        });
    }
    out.extend_from_slice(b"END\r\n");
}
