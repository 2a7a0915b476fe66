//! Hot keys of all nodes: the answer of one node as bytes, and the merge of all answers.
//!
//! Here: the body of an answer (JSON), its bound, the merge. Not here: a node's own hot keys
//! (`observer`), asking the nodes (`crate::node::query`).

use std::collections::HashMap;
use std::sync::Arc;

use cluster::message::query::QUERY_BYTES_MAX;
use serde_json::Value;
use tollgate_http::{HotKey, HotKeys, HotKind, ServiceError};

use super::try_limit::answer_try;
use crate::node::Node;
use crate::node::query::{HotKeysOf, QueryAnswer, QueryAnswers, QueryTopic};
use crate::runtime::service::Service;

/// Each node is asked for this many keys: a key that no node has among them is not hot. As many
/// fit into an answer, unless names are long.
pub(crate) const KEYS_ASKED: u16 = 300;

/// Answers the queries of other nodes, and of this one, from what the observer has published.
pub(crate) struct ObservedAnswers(pub(crate) Arc<Service>);

impl QueryAnswers for ObservedAnswers {
    fn answer(&self, topic: QueryTopic) -> QueryAnswer {
        let body = match topic {
            QueryTopic::HotKeys { kind, count, limit } => {
                let kind = match kind {
                    HotKeysOf::Taken => HotKind::Taken,
                    HotKeysOf::Denied => HotKind::Denied,
                    HotKeysOf::Shadow => HotKind::Shadow,
                };
                let observatory = self.0.observatory();
                encode_hot_keys(&observatory.hot_keys(kind, limit.as_deref(), count.into()))
            }
            QueryTopic::Try(request) => {
                return Box::pin(answer_try(Arc::clone(&self.0), request));
            }
        };
        Box::pin(std::future::ready(body))
    }
}

/// Returns the hottest keys of all nodes, at most `count`, hottest first.
///
/// # Errors
///
/// [`ServiceError::Unavailable`] if too many queries are under way.
pub(crate) async fn hot_keys(
    node: &Arc<Node>,
    service: &Service,
    kind: HotKind,
    limit: Option<String>,
    count: usize,
) -> Result<HotKeys, ServiceError> {
    let kind = match kind {
        HotKind::Taken => HotKeysOf::Taken,
        HotKind::Denied => HotKeysOf::Denied,
        HotKind::Shadow => HotKeysOf::Shadow,
    };
    let topic = QueryTopic::HotKeys { kind, count: KEYS_ASKED, limit };
    let replies = node.query_all(service, topic).await;
    let replies = replies.map_err(|error| ServiceError::Unavailable(error.to_string()))?;
    let answers = replies.answers.iter();
    let answers: Vec<_> =
        answers.map(|(node, body)| (node.to_string(), decode_hot_keys(body))).collect();
    Ok(merge_hot_keys(answers, replies.missing, count))
}

/// Returns a node's answer: JSON of `keys`, without the coldest keys that do not fit.
pub(crate) fn encode_hot_keys(keys: &HotKeys) -> Vec<u8> {
    let mut kept = keys.clone();
    loop {
        // Nothing in these types fails to become JSON.
        let body = serde_json::to_vec(&kept).unwrap_or_default();
        if body.len() <= QUERY_BYTES_MAX || kept.keys.is_empty() {
            return body;
        }
        // At least one goes, and about as many as are too many.
        let room = kept.keys.len() * QUERY_BYTES_MAX / body.len();
        kept.keys.truncate(room.min(kept.keys.len() - 1));
    }
}

/// Reads a node's answer. `None`: another version's, or nonsense.
fn decode_hot_keys(body: &[u8]) -> Option<HotKeys> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let number = |name: &str| body.get(name).and_then(Value::as_u64).unwrap_or(0);
    let rate = |row: &Value, name: &str| {
        row.get(name).and_then(Value::as_f64).filter(|rate| rate.is_finite() && *rate >= 0.0)
    };
    let key = |row: &Value| {
        Some(HotKey {
            key: row.get("key")?.as_str()?.to_owned(),
            limit: row.get("limit").and_then(Value::as_str).map(str::to_owned),
            rate: rate(row, "rate")?,
            rate_at_least: rate(row, "rate_at_least")?,
        })
    };
    Some(HotKeys {
        keys: body.get("keys")?.as_array()?.iter().map(key).collect::<Option<_>>()?,
        span_ms: number("span_ms"),
        dropped: number("dropped"),
        missing: Vec::new(),
    })
}

/// Adds the rates of equal keys under equal limits. The result has the `count` hottest, the longest
/// span, all dropped samples, and as missing also the nodes whose answer could not be read.
///
/// A key that a node does not list counts as 0 there: the node knows keys that are hotter.
fn merge_hot_keys(
    answers: Vec<(String, Option<HotKeys>)>,
    mut missing: Vec<String>,
    count: usize,
) -> HotKeys {
    let mut merged = HotKeys::default();
    let mut sums: HashMap<(String, Option<String>), (f64, f64)> = HashMap::new();
    for (node, answer) in answers {
        let Some(answer) = answer else {
            missing.push(node);
            continue;
        };
        merged.span_ms = merged.span_ms.max(answer.span_ms);
        merged.dropped = merged.dropped.saturating_add(answer.dropped);
        for row in answer.keys {
            let sum = sums.entry((row.key, row.limit)).or_default();
            sum.0 += row.rate;
            sum.1 += row.rate_at_least;
        }
    }
    merged.keys = sums
        .into_iter()
        .map(|((key, limit), (rate, rate_at_least))| HotKey { key, limit, rate, rate_at_least })
        .collect();
    // Equal rates in a fixed order, so that a page does not jump.
    merged.keys.sort_unstable_by(|one, other| {
        let by_name = || (&one.key, &one.limit).cmp(&(&other.key, &other.limit));
        other.rate.total_cmp(&one.rate).then_with(by_name)
    });
    merged.keys.truncate(count);
    merged.missing = missing;
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(key: &str, limit: Option<&str>, rate: f64, rate_at_least: f64) -> HotKey {
        HotKey { key: key.to_owned(), limit: limit.map(str::to_owned), rate, rate_at_least }
    }

    fn keys(keys: Vec<HotKey>) -> HotKeys {
        HotKeys { keys, span_ms: 70_000, dropped: 3, missing: Vec::new() }
    }

    #[test]
    fn equal_keys_of_nodes_are_added_by_limit() {
        let one = keys(vec![key("a", Some("api"), 10.0, 8.0), key("b", None, 4.0, 1.0)]);
        let two = HotKeys { span_ms: 90_000, ..keys(vec![key("b", None, 9.0, 5.0)]) };
        let other_limit = keys(vec![key("a", Some("web"), 11.0, 11.0), key("c", None, 1.0, 0.0)]);
        let answers = vec![
            ("n1".to_owned(), Some(one)),
            ("n2".to_owned(), Some(two)),
            ("n3".to_owned(), Some(other_limit)),
            ("n4".to_owned(), None),
        ];
        let merged = merge_hot_keys(answers, vec!["n5 (x)".to_owned()], 3);
        let expected = HotKeys {
            keys: vec![
                key("b", None, 13.0, 6.0),
                key("a", Some("web"), 11.0, 11.0),
                key("a", Some("api"), 10.0, 8.0),
            ],
            span_ms: 90_000,
            dropped: 9,
            missing: vec!["n5 (x)".to_owned(), "n4".to_owned()],
        };
        assert_eq!(merged, expected);
    }

    #[test]
    fn answer_comes_back_and_drops_what_does_not_fit() {
        let few = keys(vec![key("a\u{1b}\"", Some("api"), 10.5, 8.25), key("b", None, 4.0, 1.0)]);
        assert_eq!(decode_hot_keys(&encode_hot_keys(&few)), Some(few));
        let rows = (0..2000).map(|at| key(&format!("{at:96}"), Some("api"), 9.0, 1.0)).collect();
        let body = encode_hot_keys(&keys(rows));
        assert!(body.len() <= QUERY_BYTES_MAX && body.len() > QUERY_BYTES_MAX - 1000);
        let read = decode_hot_keys(&body).expect("it is an answer");
        assert!(read.keys.len() >= usize::from(KEYS_ASKED));
        assert_eq!(read.keys[0].key, format!("{:96}", 0));
        let one = keys(vec![key(&"k".repeat(QUERY_BYTES_MAX), None, 1.0, 1.0)]);
        assert_eq!(decode_hot_keys(&encode_hot_keys(&one)).map(|read| read.keys), Some(vec![]));
    }

    #[test]
    fn answer_that_is_none_is_not_read() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"keys":[{"key":"a","rate":-1,"rate_at_least":0}]}"#,
            r#"{"keys":[{"key":7,"rate":1,"rate_at_least":0}]}"#,
            r#"{"keys":[{"key":"a","rate":1e999,"rate_at_least":0}]}"#,
        ] {
            assert_eq!(decode_hot_keys(body.as_bytes()), None, "{body}");
        }
    }

    proptest! {
        /// The slow twin searches the answers for every key.
        #[test]
        fn merge_is_a_sum_by_key(
            nodes in proptest::collection::vec(
                proptest::collection::vec((0..6_u8, 0..2_u8, 0..100_u16), 0..20), 0..4),
            count in 0..12_usize,
        ) {
            let row = |&(name, limit, rate): &(u8, u8, u16)| {
                let limit = (limit > 0).then_some("api");
                key(&name.to_string(), limit, f64::from(rate), f64::from(rate / 2))
            };
            let answers: Vec<HotKeys> =
                nodes.iter().map(|rows| keys(rows.iter().map(row).collect())).collect();
            let all: Vec<&HotKey> = answers.iter().flat_map(|answer| &answer.keys).collect();
            let given = answers.iter().cloned().map(|keys| (String::new(), Some(keys))).collect();
            let merged = merge_hot_keys(given, Vec::new(), count);
            let mut names: Vec<_> = all.iter().map(|row| (&row.key, &row.limit)).collect();
            names.sort_unstable();
            names.dedup();
            prop_assert_eq!(merged.keys.len(), names.len().min(count));
            prop_assert!(merged.keys.is_sorted_by(|one, next| one.rate >= next.rate));
            for row in &merged.keys {
                let same = || all.iter().filter(|it| (&it.key, &it.limit) == (&row.key, &row.limit));
                let rate: f64 = same().map(|it| it.rate).sum();
                let at_least: f64 = same().map(|it| it.rate_at_least).sum();
                prop_assert!((row.rate - rate).abs() < 1e-9);
                prop_assert!((row.rate_at_least - at_least).abs() < 1e-9);
            }
        }
    }
}
