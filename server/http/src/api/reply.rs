//! Replies of the API: JSON with times of RFC 3339 and integers that are exact everywhere.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, SecondsFormat};
use serde::Serialize;
use serde_json::{Map, Value};

use super::request::INTEGER_MAX;
use crate::host::ChangedLimit;
use crate::problem::{Problem, etag};

/// Fields of the host's types that are milliseconds since the Unix epoch, and their names here.
const TIMES: [(&str, &str); 2] = [("at_ms", "at"), ("expires_ms", "expires")];

/// Returns the JSON of a value of the host.
pub(super) fn view(value: &impl Serialize) -> Value {
    // The host's types have text as keys, so they are always JSON.
    plain(serde_json::to_value(value).unwrap_or_default())
}

/// Converts times, and integers that are too large.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| {
                match TIMES.iter().find(|(ms, _)| *ms == name) {
                    Some((_, name)) => ((*name).to_owned(), value.as_u64().map(time).into()),
                    None => (name, plain(value)),
                }
            });
            Value::Object(fields.collect())
        }
        Value::Array(values) => values.into_iter().map(plain).collect(),
        Value::Number(number) => match number.as_u64() {
            Some(integer) => integer.min(INTEGER_MAX).into(),
            None => Value::Number(number),
        },
        other => other,
    }
}

/// Returns the object of names and values.
pub(super) fn object(pairs: impl IntoIterator<Item = (String, String)>) -> Value {
    pairs
        .into_iter()
        .map(|(name, value)| (name, Value::String(value)))
        .collect::<Map<_, _>>()
        .into()
}

/// Returns the RFC 3339 text of milliseconds since the Unix epoch, in UTC.
pub(super) fn time(unix_ms: u64) -> String {
    let time = i64::try_from(unix_ms).ok().and_then(DateTime::from_timestamp_millis);
    // Later than the calendar: the last moment with four digits for the year.
    let last = "9999-12-31T23:59:59.999Z";
    time.map(|time| time.to_rfc3339_opts(SecondsFormat::Millis, true))
        .filter(|text| text.len() == last.len())
        .unwrap_or_else(|| last.to_owned())
}

/// Parses a time of RFC 3339 into milliseconds since the Unix epoch.
pub(super) fn parse_time(name: &str, text: &str) -> Result<u64, Problem> {
    let time = DateTime::parse_from_rfc3339(text).ok();
    time.and_then(|time| u64::try_from(time.timestamp_millis()).ok()).ok_or_else(|| {
        let detail = format!("{name} is a time such as 2026-12-01T00:00:00Z");
        Problem::new(StatusCode::BAD_REQUEST, detail)
    })
}

/// Returns the present time, in milliseconds since the Unix epoch.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A reply with JSON.
pub(super) fn json(value: &Value) -> Response {
    let kind = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, kind)], value.to_string()).into_response()
}

/// A reply with JSON and the version of the thing.
pub(super) fn versioned(version: u64, value: &Value) -> Response {
    let mut response = json(value);
    response.headers_mut().insert(header::ETAG, etag(version));
    response
}

/// The reply to a change: 201 if it created something.
pub(super) fn changed(done: ChangedLimit, is_new: bool) -> Response {
    let value = view(&done);
    let mut response =
        if done.version == 0 { json(&value) } else { versioned(done.version, &value) };
    if is_new && done.version != 0 {
        *response.status_mut() = StatusCode::CREATED;
    }
    response
}

/// The reply to a change that has nothing to tell.
pub(super) fn done() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn times_are_text_and_integers_exact() {
        let value = json!({
            "at_ms": 1_790_000_000_123_u64,
            "expires_ms": null,
            "span_ms": 5,
            "rows": [{"at_ms": 0, "n": u64::MAX, "m": -1, "x": 0.5}],
        });
        let expected = json!({
            "at": "2026-09-21T14:13:20.123Z",
            "expires": null,
            "span_ms": 5,
            "rows": [{"at": "1970-01-01T00:00:00.000Z", "n": INTEGER_MAX, "m": -1, "x": 0.5}],
        });
        assert_eq!(view(&value), expected);
        assert_eq!(time(u64::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn a_time_survives_its_text() {
        for ms in [0, 1, 999, 1_790_000_000_123, 253_402_300_799_999] {
            assert_eq!(parse_time("expires", &time(ms)), Ok(ms));
        }
        assert_eq!(parse_time("expires", "2026-12-01T01:00:00+01:00"), Ok(1_796_083_200_000));
        for bad in ["", "2026-12-01", "1969-12-31T00:00:00Z", "2h", "2026-13-01T00:00:00Z"] {
            assert!(parse_time("expires", bad).is_err(), "{bad}");
        }
    }
}
