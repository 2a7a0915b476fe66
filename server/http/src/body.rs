//! The body of a request, with its bounds.

use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::problem::Problem;

/// Maximum size of a body, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a limits file, in bytes.
pub(crate) const FILE_BYTES_MAX: usize = 8 << 20;
/// Longest time for a body.
pub(crate) const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// Reads a body of at most `bytes_max` bytes.
pub(crate) async fn read(body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let read = timeout(BODY_TIME_MAX, Limited::new(body, bytes_max).collect()).await;
    match read {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("the body has more than {bytes_max} bytes");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail))
        }
        Ok(Err(_)) => Err(Problem::new(StatusCode::BAD_REQUEST, "the body ends too early")),
        Err(_) => Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took longer than 10 s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_bounded_in_size_and_time() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let status = |read: Result<Bytes, Problem>| read.map_err(|p| p.status.as_u16()).err();
            assert_eq!(status(read(Body::from("abc"), 3).await), None);
            assert_eq!(status(read(Body::from("abcd"), 3).await), Some(413));
            let silent = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
            assert_eq!(status(read(Body::from_stream(silent), 3).await), Some(408));
        });
    }
}
