//! Requests of the server to itself: a worker serves them as those of any client, so in a cluster
//! the owner of the key answers.
//!
//! Here: a connection for one request, with the rights of the admin socket. Not here: the requests
//! (`operator`, `explain`).

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;
use tollgate_http::ServiceError;

use super::host::ServerHost;
use crate::io::worker_handle::ClientArrival;
use crate::net::{DetachedStream, Stream};
use crate::runtime::connections::Connections;

/// Longest wait for a reply: longer than an operation waits for its owner.
const REPLY_MAX: Duration = Duration::from_secs(8);

/// Longest line of a reply, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// A request's reply by lines.
pub(super) struct OwnReply(BufReader<Stream>);

impl OwnReply {
    /// Returns the next line, without its line end.
    ///
    /// # Errors
    ///
    /// No line came in time.
    pub(super) async fn line(&mut self) -> Result<Vec<u8>, ServiceError> {
        let mut line = Vec::new();
        let read = async { (&mut self.0).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await };
        let read = timeout(REPLY_MAX, read).await.map_err(io::Error::from).and_then(|read| read);
        match read {
            Ok(_) if line.ends_with(b"\r\n") => {
                line.truncate(line.len() - 2);
                Ok(line)
            }
            Ok(_) => Err(unavailable("the server ended the request")),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }

    /// Returns the next `count` bytes, or as many as `max`, and skips the rest with the line end.
    ///
    /// # Errors
    ///
    /// They did not come in time.
    pub(super) async fn block(&mut self, count: u64, max: u64) -> Result<Vec<u8>, ServiceError> {
        let mut bytes = Vec::new();
        let read = async {
            (&mut self.0).take(count.min(max)).read_to_end(&mut bytes).await?;
            let rest = &mut (&mut self.0).take(count.saturating_sub(max) + 2);
            tokio::io::copy(rest, &mut tokio::io::sink()).await
        };
        match timeout(REPLY_MAX, read).await.map_err(io::Error::from).and_then(|read| read) {
            Ok(_) => Ok(bytes),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }
}

fn unavailable(reason: &str) -> ServiceError {
    ServiceError::Unavailable(format!("no answer of the key's owner: {reason}"))
}

impl ServerHost {
    /// Sends `request` to the worker with the fewest connections, on a connection of its own. The
    /// limit of connections does not apply: the admin listener has a lower one.
    ///
    /// # Errors
    ///
    /// The system refuses the connection, or the workers do not run.
    pub(super) fn request(
        &self,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<OwnReply, ServiceError>> + Send + use<> {
        let stream = self.connect();
        async move {
            let mut own = stream?;
            let written = timeout(REPLY_MAX, own.write_all(&request)).await;
            match written.map_err(io::Error::from).and_then(|written| written) {
                Ok(()) => Ok(OwnReply(BufReader::new(own))),
                Err(error) => Err(unavailable(&error.to_string())),
            }
        }
    }

    /// Opens a connection to a worker.
    fn connect(&self) -> Result<Stream, ServiceError> {
        let Some(worker) = self.workers().iter().min_by_key(|worker| worker.connections()) else {
            return Err(ServiceError::Unavailable("the server is starting".to_owned()));
        };
        let pair = DetachedStream::pair().map_err(|error| unavailable(&error.to_string()));
        let (own, stream) = pair?;
        let registration = Connections::register(&self.service, &stream, true);
        worker.deal(ClientArrival { stream, registration });
        Ok(own)
    }

    /// Sends a line and returns the line of its reply. The future borrows nothing, so that a task
    /// can have it.
    ///
    /// # Errors
    ///
    /// As [`ServerHost::request`].
    pub(super) fn request_line(
        &self,
        parts: &[&[u8]],
    ) -> impl Future<Output = Result<Vec<u8>, ServiceError>> + Send + use<> {
        let mut line = parts.join(&b' ');
        line.extend_from_slice(b"\r\n");
        let request = self.request(line);
        async move { request.await?.line().await }
    }
}
