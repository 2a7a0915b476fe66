//! The tail: denials and changes as they come. The page shows the last ones; a module adds more.

use std::time::Duration;

use askama::Template;
use tokio::time::timeout;

use crate::host::TailEvent;

use super::format as f;
use super::visit::{PageFrame, PageResult, Visit, page};

/// Events on the page at first.
const TAIL_SHOWN: usize = 50;
/// Longest wait for the last events.
const TAIL_WAIT_MAX: Duration = Duration::from_millis(100);

#[derive(Template)]
#[template(path = "tail.html")]
struct TailPage {
    frame: PageFrame,
    what: String,
    limit: String,
    prefix: String,
    hashed: bool,
    /// Newest first.
    events: Vec<TailEvent>,
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let [what, limit, prefix] =
        ["what", "limit", "prefix"].map(|name| visit.query(name).to_owned());
    let mut stream = visit.host().tail();
    let last = timeout(TAIL_WAIT_MAX, stream.events.recv()).await;
    let mut events = last.ok().flatten().map(|(_, events)| events).unwrap_or_default();
    events.retain(|event| {
        (what.is_empty() || event.kind == what)
            && (limit.is_empty() || event.limit.as_ref() == Some(&limit))
            && event.key.starts_with(&prefix)
    });
    events.reverse();
    events.truncate(TAIL_SHOWN);
    let mut frame = visit.frame("Tail", "/ui/tail");
    frame.live = "tail";
    let hashed = visit.host().status().keys_hashed;
    Ok(page(&TailPage { frame, what, limit, prefix, hashed, events }))
}
