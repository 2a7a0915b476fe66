//! The metrics of the admin listener itself: requests, refused tokens, TLS.
//!
//! Here: the counters and their families. Not here: the server's own metrics (the `AdminHost`), the
//! text of all (`metrics`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::access::Access;
use crate::metrics::{Labels, MetricFamily};

/// Maximum number of pairs of a route and a status code that are counted apart. All routes together
/// have some 60 patterns, and a route answers with a few codes.
const PAIRS_MAX: usize = 1024;
/// The route of paths that no pattern matches, and of pairs beyond [`PAIRS_MAX`].
const OTHER: &str = "other";
/// The value of the label `surface` for this listener.
const SURFACE: &str = "http";

/// Counts of requests by the pattern of their route and the status code of their reply.
#[derive(Debug, Default)]
pub(crate) struct RequestCounts {
    by_pair: Mutex<BTreeMap<(String, u16), u64>>,
}

impl RequestCounts {
    /// Counts a reply. `route` is the pattern of the route; `None`: no pattern matches the path.
    pub(crate) fn count(&self, route: Option<&str>, code: u16) {
        let route = route.unwrap_or(OTHER);
        let mut by_pair = self.by_pair.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pair = (route.to_owned(), code);
        if by_pair.len() >= PAIRS_MAX && !by_pair.contains_key(&pair) {
            pair = (OTHER.to_owned(), 0);
        }
        *by_pair.entry(pair).or_default() += 1;
    }

    fn family(&self) -> MetricFamily {
        let family = MetricFamily::counters(
            "tollgate_http_requests",
            "Requests of the admin listener by the pattern of their path and the status code",
        );
        let by_pair = self.by_pair.lock().unwrap_or_else(PoisonError::into_inner);
        by_pair.iter().fold(family, |family, ((route, code), count)| {
            let labels = vec![("route", route.clone().into()), ("code", code.to_string().into())];
            family.with(labels, *count)
        })
    }
}

/// The TLS handshakes of a surface, and the end of its certificate.
#[derive(Debug, Default)]
pub struct TlsFigures {
    /// 0 while it is unknown.
    expiry_s: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl TlsFigures {
    /// Sets the end of the certificate, in seconds since the Unix epoch; `None`: it is unknown, and
    /// no metric tells it.
    pub fn set_expiry(&self, seconds: Option<u64>) {
        self.expiry_s.store(seconds.unwrap_or(0), Relaxed);
    }

    /// Counts a handshake.
    pub fn count(&self, is_completed: bool) {
        let counter = if is_completed { &self.completed } else { &self.failed };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the metrics of the surface that the label `surface` names.
    #[must_use]
    pub fn families(&self, surface: &'static str) -> Vec<MetricFamily> {
        let labels = |result: &'static str| -> Labels {
            vec![("surface", surface.into()), ("result", result.into())]
        };
        let handshakes = MetricFamily::counters("tollgate_tls_handshakes", "TLS handshakes")
            .with(labels("ok"), self.completed.load(Relaxed))
            .with(labels("error"), self.failed.load(Relaxed));
        let mut expiry = MetricFamily::gauges(
            "tollgate_tls_cert_expiry_timestamp_seconds",
            "End of the certificate, the earliest of its chain, in seconds since the Unix epoch",
        );
        let seconds = self.expiry_s.load(Relaxed);
        if seconds > 0 {
            expiry = expiry.with(vec![("surface", surface.into())], seconds);
        }
        vec![handshakes, expiry]
    }
}

/// Adds the metrics of the listener to those of the server; a family that the server has too gets
/// more samples.
pub(crate) fn add_own(families: &mut Vec<MetricFamily>, requests: &RequestCounts, access: &Access) {
    let failures = MetricFamily::counters("tollgate_auth_failures", "Wrong passwords and tokens")
        .with(vec![("surface", SURFACE.into())], access.wrong_tokens());
    let tls = access.tls().map(|figures| figures.families(SURFACE)).unwrap_or_default();
    for own in [requests.family(), failures].into_iter().chain(tls) {
        match families.iter_mut().find(|family| family.name == own.name) {
            Some(family) => family.samples.extend(own.samples),
            None => families.push(own),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ScrapeText;

    fn prometheus_text(families: Vec<MetricFamily>) -> String {
        ScrapeText::new(families, false).collect()
    }

    #[test]
    fn pairs_of_route_and_code_are_bounded() {
        let counts = RequestCounts::default();
        for n in 0..2 * PAIRS_MAX {
            counts.count(Some(&format!("/{n}")), 200);
        }
        counts.count(Some("/0"), 200);
        counts.count(None, 404);
        let family = counts.family();
        assert!(family.samples.len() <= PAIRS_MAX + 1, "{}", family.samples.len());
        let text = prometheus_text(vec![family]);
        assert!(text.contains("{route=\"/0\",code=\"200\"} 2\n"), "{text}");
        let beyond = format!("{{route=\"other\",code=\"0\"}} {}\n", PAIRS_MAX + 1);
        assert!(text.contains(&beyond), "{text}");
    }

    #[test]
    fn own_samples_join_the_family_of_the_server() {
        let of_clients = MetricFamily::counters("tollgate_auth_failures", "Wrong passwords")
            .with(vec![("surface", "client".into())], 3_u64);
        let mut families = vec![of_clients];
        let figures = TlsFigures::default();
        figures.set_expiry(Some(1_900_000_000));
        figures.count(true);
        figures.count(false);
        figures.count(false);
        let access = Access::default().with_tls(figures.into());
        add_own(&mut families, &RequestCounts::default(), &access);
        let text = prometheus_text(families);
        for line in [
            "tollgate_auth_failures_total{surface=\"client\"} 3\n",
            "tollgate_auth_failures_total{surface=\"http\"} 0\n",
            "tollgate_tls_handshakes_total{surface=\"http\",result=\"ok\"} 1\n",
            "tollgate_tls_handshakes_total{surface=\"http\",result=\"error\"} 2\n",
            "tollgate_tls_cert_expiry_timestamp_seconds{surface=\"http\"} 1900000000\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
