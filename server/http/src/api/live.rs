//! `/api/v1/live`: once a second the figures that a page shows, as server-sent events.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::reply::view;
use super::request::ApiRequest;
use super::tail::{TailFilter, TailReader, events};
use crate::app::App;
use crate::host::{HotKind, Scope, TailEvent};
use crate::problem::Problem;
use crate::streams::StreamEnd;

/// The time between two rounds of figures.
const ROUND: Duration = Duration::from_secs(1);
/// Denied keys of a round.
const DENIED_KEYS: usize = 5;

/// The figures of a stream, and the names of their events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiveTopic {
    Status,
    Rates,
    Latency,
    Denied,
    Tail,
}

impl LiveTopic {
    /// All topics with their words.
    const WORDS: [(&str, Self); 5] = [
        ("status", Self::Status),
        ("rates", Self::Rates),
        ("latency", Self::Latency),
        ("denied", Self::Denied),
        ("tail", Self::Tail),
    ];

    /// Parses words that are joined by commas; none are all but `tail`.
    fn parse(words: Option<&str>) -> Result<Vec<Self>, Problem> {
        let words = words.unwrap_or("status,rates,latency,denied");
        let mut topics = Vec::new();
        for word in words.split(',') {
            let found = Self::WORDS.iter().find(|(known, _)| *known == word);
            let Some((_, topic)) = found else {
                let known = Self::WORDS.map(|(known, _)| known).join(", ");
                let detail = format!("topics are some of: {known}");
                return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
            };
            if !topics.contains(topic) {
                topics.push(*topic);
            }
        }
        Ok(topics)
    }

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, topic)| *topic == self).map_or("", |(word, _)| word)
    }
}

/// The state of one stream.
struct LiveState {
    app: App,
    topics: Vec<LiveTopic>,
    ticks: Interval,
    /// With the topic `tail`.
    tail: Option<TailReader>,
    end: StreamEnd,
    pending: std::vec::IntoIter<Event>,
    _place: OwnedSemaphorePermit,
}

pub(super) async fn live(request: ApiRequest) -> Result<Response, Problem> {
    let topics = LiveTopic::parse(request.query(&["topics"])?.text("topics")?)?;
    let place = request.app.streams.take()?;
    let tail = topics.contains(&LiveTopic::Tail);
    let tail = tail.then(|| TailReader::new(request.host().tail(), TailFilter::default()));
    let mut ticks = interval(ROUND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = request.stream_end();
    let pending = Vec::new().into_iter();
    let state = LiveState { app: request.app, topics, ticks, tail, end, pending, _place: place };
    Ok(events(stream::unfold(state, |mut state| async {
        loop {
            if let Some(event) = state.pending.next() {
                return Some((Ok(event), state));
            }
            let has_tail = state.tail.is_some();
            let batch = tokio::select! {
                biased;
                () = state.end.wait() => return None,
                _ = state.ticks.tick() => None,
                batch = next(&mut state.tail), if has_tail => Some(batch),
            };
            state.pending = match batch {
                None => state.figures().await,
                Some(Some((lost, events))) => vec![tail_event(lost, &events)],
                // The observer has ended: the other topics go on.
                Some(None) => {
                    state.tail = None;
                    Vec::new()
                }
            }
            .into_iter();
        }
    })))
}

async fn next(tail: &mut Option<TailReader>) -> Option<(u64, Vec<TailEvent>)> {
    tail.as_mut()?.next().await
}

fn event(topic: LiveTopic, data: &Value) -> Event {
    Event::default().event(topic.word()).data(data.to_string())
}

fn tail_event(lost: u64, events: &[TailEvent]) -> Event {
    event(LiveTopic::Tail, &json!({ "lost": lost, "events": view(&events) }))
}

impl LiveState {
    /// The events of a round.
    async fn figures(&self) -> Vec<Event> {
        let host = &self.app.host;
        let mut events = Vec::new();
        for topic in &self.topics {
            let data = match topic {
                LiveTopic::Status => view(&host.status()),
                LiveTopic::Rates => view(&host.rates()),
                LiveTopic::Latency => view(&host.latency()),
                LiveTopic::Denied => {
                    let keys = host.hot_keys(HotKind::Denied, None, DENIED_KEYS, Scope::Node);
                    // The next round may have them again.
                    let Ok(keys) = keys.await else { continue };
                    view(&keys)
                }
                LiveTopic::Tail => continue,
            };
            events.push(event(*topic, &data));
        }
        events
    }
}
