//! `stats hotkeys`, `stats denied` and `stats latency`.
//!
//! Not here: the observations (`observe`).

use protocol::lenient_u64;
use tollgate_http::HotKind;

use super::StatLines;
use crate::observe::HOT_KEYS_MAX;
use crate::runtime::service::Service;

/// Keys that are listed if the client names no number.
const KEYS_DEFAULT: usize = 20;

/// Writes the lines of `topic`. Returns false if it is another topic.
pub(super) fn write(service: &Service, topic: &[u8], lines: &mut StatLines<'_>) -> bool {
    let mut words = topic.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (name, count, more) = (words.next(), words.next(), words.next());
    let kind = match name {
        Some(b"hotkeys") => HotKind::Taken,
        Some(b"denied") => HotKind::Denied,
        Some(b"latency") if count.is_none() => {
            latency(service, lines);
            return true;
        }
        _ => return false,
    };
    let Some(count) = count.map_or(Some(KEYS_DEFAULT), number) else { return false };
    if more.is_some() {
        return false;
    }
    let name = if kind == HotKind::Taken { "hot" } else { "denied" };
    let keys = service.observatory().hot_keys(kind, None, count).keys;
    for (rank, key) in (1..).zip(&keys) {
        let limit = key.limit.as_deref().unwrap_or("-");
        let (rate, at_least) = (key.rate, key.rate_at_least);
        let figures = format_args!("{rate:.1} {at_least:.1} {limit} {}", key.key);
        lines.stat(&format!("{name}:{rank}"), figures);
    }
    true
}

fn number(word: &[u8]) -> Option<usize> {
    let number = usize::try_from(lenient_u64(word)?).ok()?;
    (1..=HOT_KEYS_MAX).contains(&number).then_some(number)
}

fn latency(service: &Service, lines: &mut StatLines<'_>) {
    let view = service.observatory().latency();
    for (name, value) in [
        ("latency_count", view.count),
        ("latency_p50_us", view.p50_us),
        ("latency_p99_us", view.p99_us),
        ("latency_p999_us", view.p999_us),
        ("latency_max_us", view.max_us),
    ] {
        lines.stat(name, value);
    }
}
