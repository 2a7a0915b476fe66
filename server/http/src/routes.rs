//! The routes, and what holds for every request: the names in `Host`, the time, the headers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::time::timeout;

use crate::access::Access;
use crate::api;
use crate::app::App;
use crate::caller::ClientAddress;
use crate::health;
use crate::host::AdminHost;
use crate::listener::Place;
use crate::metrics::{self, MetricFamily, OPEN_METRICS, PROMETHEUS_TEXT, ScrapeText};
use crate::problem::Problem;
use crate::streams::StreamPlaces;
use crate::traffic::{self, RequestCounts};
use crate::ui;

/// Longest time for a request.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The routes that say whether the server is well.
const PROBES: [&str; 3] = ["/livez", "/readyz", "/healthz"];

/// Returns the routes of the admin listener.
pub fn router(host: Arc<dyn AdminHost>, access: Arc<Access>) -> Router {
    let pages = ui::routes(Arc::clone(&host), Arc::clone(&access));
    let requests = Arc::new(RequestCounts::default());
    let app = App { host, access, streams: StreamPlaces::default(), requests };
    let [live, ready, health] = PROBES;
    api::router(&app)
        .route(live, get(livez))
        .route(ready, get(readyz))
        .route(health, get(readyz))
        .route("/metrics", get(prometheus))
        .route("/metrics/memcached", get(memcached))
        .with_state(app.clone())
        .merge(pages)
        .fallback(missing)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app, guard))
}

/// Applies the rules of every request.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let (method, headers) = (request.method(), request.headers());
    let checked = check_place(request.extensions().get(), route.as_ref());
    let checked = checked.and_then(|()| app.access.check_host(headers));
    let checked = checked.and_then(|()| Access::check_origin(method, headers));
    let mut response = if let Err(problem) = checked {
        problem.into_response()
    } else {
        timeout(REQUEST_MAX, next.run(request)).await.unwrap_or_else(|_| {
            let detail = "the request took longer than 30 s";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response()
        })
    };
    let route = route.as_ref().map(MatchedPath::as_str);
    app.requests.count(route, response.status().as_u16());
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        // An asset says itself that it may be kept.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Refuses all but probes to connections beyond the most.
fn check_place(place: Option<&Place>, route: Option<&MatchedPath>) -> Result<(), Problem> {
    let is_probe = route.is_some_and(|route| PROBES.contains(&route.as_str()));
    if place == Some(&Place::ProbeOnly) && !is_probe {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many connections"));
    }
    Ok(())
}

type Pairs = Query<BTreeMap<String, String>>;

async fn livez(State(app): State<App>, Query(pairs): Pairs) -> Response {
    health::reply(&app.host.liveness().await, pairs.contains_key("verbose"))
}

async fn readyz(State(app): State<App>, Query(pairs): Pairs) -> Response {
    health::reply(&app.host.readiness(), pairs.contains_key("verbose"))
}

async fn prometheus(
    State(app): State<App>,
    address: ClientAddress,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app.access.may_read_metrics(&headers, address)?;
    let mut families = app.host.metrics();
    traffic::add_own(&mut families, &app.requests, &app.access);
    Ok(scrape(&headers, families))
}

async fn memcached(
    State(app): State<App>,
    address: ClientAddress,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    app.access.may_read_metrics(&headers, address)?;
    Ok(scrape(&headers, app.host.memcached_metrics()))
}

fn scrape(headers: &HeaderMap, families: Vec<MetricFamily>) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let is_open_metrics = metrics::wants_open_metrics(accept);
    let kind = if is_open_metrics { OPEN_METRICS } else { PROMETHEUS_TEXT };
    let mut chunks = ScrapeText::new(families, is_open_metrics);
    let first = chunks.next().unwrap_or_default();
    let body = if chunks.has_ended() {
        Body::from(first)
    } else {
        let chunks = std::iter::once(first).chain(chunks).map(Ok::<_, Infallible>);
        Body::from_stream(futures_util::stream::iter(chunks))
    };
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}

async fn missing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no such path; see docs/reference/http.md")
}

async fn wrong_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method")
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tower::ServiceExt as _;

    use super::*;
    use crate::fake_host::FakeHost;

    async fn ask(
        fault: Option<&str>,
        request: axum::http::request::Builder,
    ) -> (u16, HeaderMap, String) {
        let host = Arc::new(FakeHost { fault: fault.map(str::to_owned), ..FakeHost::default() });
        let router = router(host, Arc::default());
        let request = request.body(Body::empty()).expect("the test writes requests");
        let response = router.oneshot(request).await.expect("routes do not fail");
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("the body is in memory");
        let body = String::from_utf8(body.to_vec()).expect("replies are UTF-8");
        (parts.status.as_u16(), parts.headers, body)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime")
    }

    #[test]
    fn probes_name_the_checks_that_fail() {
        runtime().block_on(async {
            for (path, fault, status, body) in [
                ("/livez", None, 200, "ok\n"),
                ("/readyz", None, 200, "ok\n"),
                ("/healthz?verbose", None, 200, "[+] listeners ok\n[+] cluster ok\nok\n"),
                ("/livez", Some("no answer"), 503, "[-] worker-0: no answer\nfailed\n"),
                (
                    "/readyz?verbose",
                    Some("it is draining"),
                    503,
                    "[+] listeners ok\n[-] cluster: it is draining\nfailed\n",
                ),
            ] {
                let (got, headers, text) = ask(fault, Request::get(path)).await;
                assert_eq!((got, text.as_str()), (status, body), "{path}");
                assert_eq!(headers["cache-control"], "no-store");
            }
        });
    }

    #[test]
    fn the_accept_header_selects_the_content_type() {
        runtime().block_on(async {
            let (_, headers, text) = ask(None, Request::get("/metrics")).await;
            assert_eq!(headers["content-type"], PROMETHEUS_TEXT);
            assert!(text.contains("tollgate_samples_total 1\n"), "{text}");
            let request = Request::get("/metrics/memcached")
                .header("accept", "application/openmetrics-text; version=1.0.0");
            let (_, headers, text) = ask(None, request).await;
            assert_eq!(headers["content-type"], OPEN_METRICS);
            assert!(text.ends_with("memcached_up 1\n# EOF\n"), "{text}");
        });
    }

    #[test]
    fn other_paths_methods_and_names_are_refused() {
        runtime().block_on(async {
            for (request, status) in [
                (Request::get("/"), 303),
                (Request::get("/metrics/"), 404),
                (Request::post("/metrics"), 405),
                (Request::head("/livez"), 200),
                (Request::get("/livez").header("host", "evil.example"), 421),
            ] {
                let (got, headers, _) = ask(None, request).await;
                assert_eq!(got, status);
                if got >= 400 {
                    assert_eq!(headers["content-type"], "application/problem+json");
                }
            }
        });
    }
}
