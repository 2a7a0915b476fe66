//! The places for streams, and their end: with the listener, or with the right to read.
//!
//! Not here: the events (`api::tail`, `api::live`).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::access::{Access, Credential};
use crate::problem::Problem;
use crate::tokens::TokenRole;

/// Maximum number of streams at once; one more gets 503.
pub(crate) const STREAMS_MAX: usize = 16;
/// The time between two checks of the right to read a stream.
pub(crate) const RIGHT_CHECK: Duration = Duration::from_secs(1);

/// The places for streams.
#[derive(Debug, Clone)]
pub(crate) struct StreamPlaces(Arc<Semaphore>);

impl Default for StreamPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

impl StreamPlaces {
    /// Takes a place until the result is dropped.
    pub(crate) fn take(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.0).try_acquire_owned().map_err(|_| {
            let detail = "too many streams: close a page or a tail of this server";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })
    }
}

/// The end of the listener, as a request sees it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ListenerEnd(pub(crate) Option<watch::Receiver<()>>);

impl<S: Sync> FromRequestParts<S> for ListenerEnd {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// The end of a stream: the listener ends, or the reader's token or session does.
#[derive(Debug)]
pub(crate) struct StreamEnd {
    listener: ListenerEnd,
    access: Arc<Access>,
    credential: Credential,
    role: TokenRole,
    /// `None` where everyone may read.
    checks: Option<Interval>,
}

impl StreamEnd {
    /// Creates the end of a stream that needs the role `role`, which `credential` has now.
    pub(crate) fn new(
        listener: ListenerEnd,
        access: Arc<Access>,
        credential: Credential,
        role: TokenRole,
    ) -> Self {
        let checks = (credential != Credential::Anyone).then(|| {
            let mut checks = interval(RIGHT_CHECK);
            checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            checks
        });
        Self { listener, access, credential, role, checks }
    }

    /// Waits for the end. Dropping the future loses nothing.
    pub(crate) async fn wait(&mut self) {
        loop {
            tokio::select! {
                () = ended(&mut self.listener) => return,
                () = tick(&mut self.checks) => {
                    if !self.access.admits(&self.credential, self.role) {
                        return;
                    }
                }
            }
        }
    }
}

/// Waits for the end of the listener. Never completes for a request that came without it.
async fn ended(listener: &mut ListenerEnd) {
    match &mut listener.0 {
        // An error means that the listener is gone.
        Some(end) => drop(end.changed().await),
        None => std::future::pending().await,
    }
}

async fn tick(checks: &mut Option<Interval>) {
    match checks {
        Some(checks) => drop(checks.tick().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use axum::http::{HeaderMap, HeaderValue, header};
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::caller::ClientAddress;
    use crate::tokens::{Tokens, new_token};

    /// The longest time that a stream outlives its right.
    const OUTLIVES_MAX: Duration = Duration::from_secs(2);

    fn tokens(text: &str) -> Tokens {
        Tokens::parse(Path::new("tokens"), text).expect("it is well formed")
    }

    /// Ends the right of a stream by `end`, and returns the time that the stream went on.
    async fn outlived(access: &Arc<Access>, sent: &HeaderMap, end: impl FnOnce()) -> Duration {
        let credential = access.credential(sent);
        let listener = ListenerEnd::default();
        let mut stream =
            StreamEnd::new(listener, Arc::clone(access), credential, TokenRole::Viewer);
        let long = Duration::from_mins(1);
        assert!(timeout(long, stream.wait()).await.is_err(), "it has the right");
        end();
        let start = Instant::now();
        timeout(long, stream.wait()).await.expect("the right has ended");
        start.elapsed()
    }

    #[test]
    fn a_stream_ends_soon_after_its_token_or_session() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (token, hex) = new_token([1; 32]);
            let line = format!("a viewer {hex}\n");
            let others = tokens(&format!("b admin {}\n", new_token([2; 32]).1));
            let access = Arc::new(Access::new(Vec::new(), Some(tokens(&line)), false));
            let header = |name, value: &str| {
                let value = HeaderValue::from_str(value).expect("the test writes header values");
                HeaderMap::from_iter([(name, value)])
            };
            let bearer = header(header::AUTHORIZATION, &format!("Bearer {token}"));
            let gone = outlived(&access, &bearer, || access.set_tokens(others.clone()));
            assert!(gone.await < OUTLIVES_MAX);
            access.set_tokens(tokens(&line));
            let weaker = tokens(&format!("a metrics {hex}\n"));
            let gone = outlived(&access, &bearer, || access.set_tokens(weaker));
            assert!(gone.await < OUTLIVES_MAX);
            access.set_tokens(tokens(&line));
            let nobody = ClientAddress::default();
            let begin = || {
                let id = access.login(&token, nobody).expect("the token is right");
                header(header::COOKIE, &format!("tollgate_session={id}"))
            };
            let cookie = begin();
            let gone = outlived(&access, &cookie, || access.logout(&cookie, nobody));
            assert!(gone.await < OUTLIVES_MAX);
            let cookie = begin();
            let gone = outlived(&access, &cookie, || access.set_tokens(others));
            assert!(gone.await < OUTLIVES_MAX);
        });
    }

    #[test]
    fn a_stream_without_tokens_is_not_checked() {
        let access = Arc::new(Access::default());
        let credential = access.credential(&HeaderMap::new());
        let listener = ListenerEnd::default();
        let end = StreamEnd::new(listener, access, credential, TokenRole::Viewer);
        assert!(end.checks.is_none());
    }
}
