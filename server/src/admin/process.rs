//! The metrics of the process, under the names that Prometheus's client libraries share.
//! Source: "Process metrics" in "Writing client libraries", prometheus.io.

use std::fs;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};
use tollgate_http::MetricFamily;

/// Returns the metrics that the system tells.
pub(super) fn all(start_seconds: f64) -> Vec<MetricFamily> {
    let mut families = vec![MetricFamily::gauge(
        "process_start_time_seconds",
        "Start of the process, in seconds since the Unix epoch",
        start_seconds,
    )];
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
        let seconds = seconds(usage.user_time()) + seconds(usage.system_time());
        families.push(
            MetricFamily::counters(
                "process_cpu_seconds",
                "Processor time of the process, in user and system mode",
            )
            .with(Vec::new(), seconds),
        );
    }
    let page_bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    if let Some([virtual_pages, resident_pages]) = memory_pages() {
        let bytes = |pages: u64| pages * u64::try_from(page_bytes).unwrap_or(4096);
        families.extend([
            MetricFamily::gauge(
                "process_virtual_memory_bytes",
                "Virtual memory of the process",
                bytes(virtual_pages),
            ),
            MetricFamily::gauge(
                "process_resident_memory_bytes",
                "Resident memory of the process",
                bytes(resident_pages),
            ),
        ]);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // The listing itself is one of them.
        let open = files.count().saturating_sub(1);
        families.push(MetricFamily::gauge(
            "process_open_fds",
            "Open file descriptors of the process",
            open,
        ));
    }
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        families.push(MetricFamily::gauge(
            "process_max_fds",
            "The limit on open file descriptors",
            limit,
        ));
    }
    families
}

/// The seconds of a system time.
pub(super) fn seconds(time: TimeVal) -> f64 {
    let micros = time.tv_sec() * 1_000_000 + time.tv_usec();
    #[expect(clippy::cast_precision_loss, reason = "a process runs for less than 285 years")]
    let seconds = micros as f64 / 1e6;
    seconds
}

/// The virtual and the resident memory of the process, in pages.
fn memory_pages() -> Option<[u64; 2]> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?])
}
