//! The places for streams, and their end with the listener.
//!
//! Not here: the events (`api::tail`, `api::live`).

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::problem::Problem;

/// Maximum number of streams at once; one more gets 503.
pub(crate) const STREAMS_MAX: usize = 16;

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
pub(crate) struct StreamEnd(pub(crate) Option<watch::Receiver<()>>);

impl StreamEnd {
    /// Waits for the end. Never completes for a request that came without the listener.
    pub(crate) async fn wait(&mut self) {
        match &mut self.0 {
            // An error means that the listener is gone.
            Some(end) => drop(end.changed().await),
            None => std::future::pending().await,
        }
    }
}

impl<S: Sync> FromRequestParts<S> for StreamEnd {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}
