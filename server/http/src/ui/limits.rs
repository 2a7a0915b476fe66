//! The table of all limits.

use askama::Template;

use crate::host::{LimitActivity, LimitView, SeriesPoint};

use super::visit::{PageFrame, PageResult, Visit, page};
use super::{chart, format as f};

/// Limits on a page.
const LIMITS_A_PAGE: usize = 100;

/// A limit with its figures of the last hour.
struct LimitLine {
    limit: LimitView,
    attempts: String,
    denied: String,
    near: String,
    spark: String,
}

#[derive(Template)]
#[template(path = "limits.html")]
struct LimitsPage {
    frame: PageFrame,
    lines: Vec<LimitLine>,
    /// The limits that the filter leaves.
    found: usize,
    query: String,
    owner: String,
    source: String,
    owners: Vec<String>,
    read_only: Option<String>,
    can_edit: bool,
    /// Whether other nodes have figures of their own.
    has_cluster: bool,
    /// The number of this page, from 1, and of the last one.
    number: usize,
    pages: usize,
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let host = visit.host();
    let mut limits = host.limits();
    let mut owners: Vec<String> = limits.iter().filter_map(|limit| limit.owner.clone()).collect();
    owners.sort_unstable();
    owners.dedup();
    let [query, owner, source] = ["q", "owner", "source"].map(|name| visit.query(name).to_owned());
    limits.retain(|limit| limit.name.contains(&query) || limit.pattern.contains(&query));
    limits.retain(|limit| owner.is_empty() || limit.owner.as_ref() == Some(&owner));
    limits.retain(|limit| source.is_empty() || limit.source == source);
    let found = limits.len();
    let pages = found.div_ceil(LIMITS_A_PAGE).max(1);
    let number = visit.query("page").parse().unwrap_or(1).clamp(1, pages);
    let shown = limits.into_iter().skip((number - 1) * LIMITS_A_PAGE).take(LIMITS_A_PAGE);
    let line = |limit: LimitView| {
        let LimitActivity { minutes, near, .. } = host.activity(&limit.name).unwrap_or_default();
        let passed_in = |minute: &SeriesPoint| minute.allowed.saturating_add(minute.shadow_denied);
        let passed: u64 = minutes.iter().map(passed_in).sum();
        let denied: u64 = minutes.iter().map(|minute| minute.denied).sum();
        LimitLine {
            attempts: f::count(passed.saturating_add(denied)),
            denied: f::share(denied, passed.saturating_add(denied)),
            near: f::count(near),
            spark: chart::sparkline(&minutes),
            limit,
        }
    };
    Ok(page(&LimitsPage {
        frame: visit.frame("Limits", "/ui/limits"),
        lines: shown.map(line).collect(),
        found,
        query,
        owner,
        source,
        owners,
        read_only: host.read_only(),
        can_edit: visit.caller.edits() && host.read_only().is_none(),
        has_cluster: host.nodes().is_some(),
        number,
        pages,
    }))
}
