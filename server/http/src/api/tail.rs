//! `/api/v1/tail`: denials and changes as server-sent events.
//!
//! Here: the choice and the thinning of events. Not here: their source (`Observer`).

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until};

use super::reply::view;
use super::request::ApiRequest;
use crate::host::{TailEvent, TailStream};
use crate::problem::Problem;
use crate::streams::StreamEnd;

/// The time between two batches of a stream.
const ROUND: Duration = Duration::from_millis(100);
/// Events of a round; with ten rounds a second these are a thousand a second.
const ROUND_EVENTS: usize = 100;
/// Events of one round after a pause, such as those before the subscription.
const ROUND_EVENTS_MAX: usize = 1024;
/// The time between two signs of life on a stream without events.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Kinds of events, in the query and as names of the events.
const KINDS: [&str; 4] = ["denied", "shadow", "limit-changed", "node"];

/// The events that a reader wants.
#[derive(Debug, Clone, Default)]
pub(super) struct TailFilter {
    kind: Option<&'static str>,
    limit: Option<String>,
    prefix: Option<String>,
}

impl TailFilter {
    fn wants(&self, event: &TailEvent) -> bool {
        self.kind.is_none_or(|kind| kind == event.kind)
            && self.limit.as_ref().is_none_or(|limit| event.limit.as_ref() == Some(limit))
            && self.prefix.as_ref().is_none_or(|prefix| event.key.starts_with(prefix))
    }
}

/// The events of a reader, batch by batch.
pub(super) struct TailReader {
    source: TailStream,
    filter: TailFilter,
    /// Events that the next round may have.
    budget: usize,
    next_round: Instant,
}

impl TailReader {
    pub(super) fn new(source: TailStream, filter: TailFilter) -> Self {
        Self { source, filter, budget: ROUND_EVENTS_MAX, next_round: Instant::now() }
    }

    /// Waits for events. Returns the number of events lost before them, and the events; those
    /// that were left out add to the weight of the others. `None`: there will be no more.
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Option<(u64, Vec<TailEvent>)> {
        loop {
            sleep_until(self.next_round).await;
            let (mut lost, mut events) = self.source.events.recv().await?;
            while let Ok((more, batch)) = self.source.events.try_recv() {
                lost = lost.saturating_add(more);
                events.extend(batch);
            }
            events.retain(|event| self.filter.wants(event));
            let now = Instant::now();
            let rounds = now.duration_since(self.next_round).as_millis() / ROUND.as_millis();
            let earned = usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(ROUND_EVENTS);
            self.budget = self.budget.saturating_add(earned).clamp(ROUND_EVENTS, ROUND_EVENTS_MAX);
            self.next_round = now + ROUND;
            thin(&mut events, self.budget);
            self.budget -= events.len();
            if lost > 0 || !events.is_empty() {
                return Some((lost, events));
            }
        }
    }
}

/// Keeps one event of each run of equal length, so that at most `max` stay; their weights count all
/// events of their runs.
fn thin(events: &mut Vec<TailEvent>, max: usize) {
    if events.len() <= max {
        return;
    }
    let run = events.len().div_ceil(max.max(1));
    for chunk in events.chunks_mut(run) {
        let sum = chunk.iter().fold(0_u64, |sum, event| sum.saturating_add(event.weight));
        chunk[0].weight = sum;
    }
    let mut index = 0;
    events.retain(|_| {
        index += 1;
        (index - 1) % run == 0
    });
}

/// The state of one stream.
struct TailState {
    reader: TailReader,
    end: StreamEnd,
    pending: std::vec::IntoIter<Event>,
    _place: OwnedSemaphorePermit,
}

pub(super) async fn tail(request: ApiRequest) -> Result<Response, Problem> {
    let query = request.query(&["what", "limit", "prefix"])?;
    let kinds = KINDS.map(|kind| (kind, Some(kind)));
    let filter = TailFilter {
        kind: query.choice("what", &kinds, None)?,
        limit: query.text("limit")?.map(str::to_owned),
        prefix: query.text("prefix")?.map(str::to_owned),
    };
    let place = request.app.streams.take()?;
    let state = TailState {
        reader: TailReader::new(request.host().tail(), filter),
        end: request.stream_end(),
        pending: Vec::new().into_iter(),
        _place: place,
    };
    Ok(events(stream::unfold(state, |mut state| async {
        loop {
            if let Some(event) = state.pending.next() {
                return Some((Ok(event), state));
            }
            let (lost, batch) = tokio::select! {
                biased;
                () = state.end.wait() => return None,
                batch = state.reader.next() => batch?,
            };
            let lost = (lost > 0).then(|| {
                Event::default().event("lost").data(json!({ "events": lost }).to_string())
            });
            let batch = batch.iter().map(|tail_event| {
                Event::default().event(tail_event.kind).data(view(tail_event).to_string())
            });
            state.pending = lost.into_iter().chain(batch).collect::<Vec<_>>().into_iter();
        }
    })))
}

/// A reply of server-sent events.
pub(super) fn events(
    stream: impl stream::Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Response {
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn event(key: &str) -> TailEvent {
        TailEvent {
            kind: "denied",
            at_ms: 0,
            key: key.to_owned(),
            limit: Some("login".to_owned()),
            cost: 1,
            retry_ms: None,
            weight: 2,
        }
    }

    #[test]
    fn thinned_events_keep_their_weight() {
        for (count, max) in [(0, 1), (1, 1), (5, 5), (6, 5), (100, 7), (1024, 100), (3, 1)] {
            let mut events = vec![event("a"); count];
            thin(&mut events, max);
            assert!(events.len() <= max && (count == 0 || !events.is_empty()), "{count} {max}");
            let weight: u64 = events.iter().map(|event| event.weight).sum();
            assert_eq!(weight, 2 * count as u64);
        }
    }

    #[test]
    fn a_reader_gets_a_thousand_events_a_second() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (sender, events) = mpsc::channel(1);
            let prefix = Some("a".to_owned());
            let filter = TailFilter { prefix, ..TailFilter::default() };
            let mut reader = TailReader::new(TailStream { events }, filter);
            tokio::spawn(async move {
                loop {
                    let batch = [vec![event("a"); 500], vec![event("b"); 9]].concat();
                    if sender.send((1, batch)).await.is_err() {
                        return;
                    }
                }
            });
            let (start, mut count, mut lost) = (Instant::now(), 0, 0);
            while start.elapsed() < Duration::from_secs(10) {
                let (more, events) = reader.next().await.expect("the sender runs");
                assert!(events.iter().all(|event| event.key == "a"));
                count += events.len();
                lost += more;
            }
            assert!((9_000..=11_200).contains(&count), "{count}");
            assert!(lost > 100, "{lost}");
        });
    }
}
