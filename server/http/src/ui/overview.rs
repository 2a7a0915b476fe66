//! The overview: rates, times, memory, nodes and faults at a glance.

use askama::Template;

use crate::host::{HotKeys, HotKind, LatencyView, NodesView, Scope, ServerStatus};

use super::chart::ChartView;
use super::format as f;
use super::visit::{PageFrame, PageResult, Visit, page};

/// Denied keys on the page.
const TOP_DENIED: usize = 5;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: PageFrame,
    status: ServerStatus,
    limits: usize,
    chart: ChartView,
    latency: LatencyView,
    /// The most denied keys, or the reason why they are not known.
    denied: Result<HotKeys, String>,
    nodes: Option<NodesView>,
}

impl OverviewPage {
    /// Returns the used share of the memory cap, as percent for a meter.
    fn memory_percent(&self) -> u64 {
        self.status.memory_used_bytes.saturating_mul(100) / self.status.memory_limit_bytes.max(1)
    }
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let host = visit.host();
    let denied = host.hot_keys(HotKind::Denied, None, TOP_DENIED, Scope::Node).await;
    let mut frame = visit.frame("Overview", "/ui/");
    frame.live = "status,rates,latency,denied";
    Ok(page(&OverviewPage {
        frame,
        status: host.status(),
        limits: host.limits().len(),
        chart: ChartView::rates(&host.rates()),
        latency: host.latency(),
        denied: denied.map_err(|error| error.to_string()),
        nodes: host.nodes(),
    }))
}
