//! The hottest keys.

use askama::Template;

use crate::host::{HotKeys, HotKind, Scope};

use super::format as f;
use super::visit::{PageFrame, PageResult, Visit, page};

/// Keys on the page.
const HOT_SHOWN: usize = 50;

#[derive(Template)]
#[template(path = "hot.html")]
struct HotPage {
    frame: PageFrame,
    what: &'static str,
    is_cluster: bool,
    /// Whether there is a cluster to ask.
    has_cluster: bool,
    limit: String,
    hashed: bool,
    hot: Result<HotKeys, String>,
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let (what, kind) = match visit.query("what") {
        "denied" => ("denied", HotKind::Denied),
        "shadow" => ("shadow", HotKind::Shadow),
        _ => ("taken", HotKind::Taken),
    };
    let host = visit.host();
    let has_cluster = host.nodes().is_some();
    let is_cluster = has_cluster && visit.query("scope") != "node";
    let scope = if is_cluster { Scope::Cluster } else { Scope::Node };
    let limit = visit.query("limit").to_owned();
    let of = Some(limit.clone()).filter(|limit| !limit.is_empty());
    let keys = host.hot_keys(kind, of, HOT_SHOWN, scope).await;
    Ok(page(&HotPage {
        frame: visit.frame("Hot keys", "/ui/hot"),
        what,
        is_cluster,
        has_cluster,
        limit,
        hashed: host.status().keys_hashed,
        hot: keys.map_err(|error| error.to_string()),
    }))
}
