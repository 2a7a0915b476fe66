//! Writes replies to the client, and keeps those that it does not read.
//!
//! Not here: the turns (`connection`), the budget (`buffers`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite as _;

use super::{ConnContext, Connection};
use crate::counters::Counters;
use crate::net::Stream;
use crate::runtime::buffers::Buffer;
use crate::runtime::service::Service;
use crate::session::REPLY_BYTES_HIGH;

/// Unwritten replies beyond this many bytes count against the service's unwritten budget. A batch
/// of small replies stays below.
const FREE_UNWRITTEN_BYTES: usize = 2 * REPLY_BYTES_HIGH;

impl Connection {
    /// Reserves memory for replies that the client does not read.
    ///
    /// # Errors
    ///
    /// The budget is used up and all other clients make progress: this client must be disconnected.
    fn pay_for_unwritten(&self, service: &Service) -> io::Result<()> {
        let waiting = self.unwritten.capacity();
        if waiting > FREE_UNWRITTEN_BYTES && !self.reserve(service, Buffer::Unwritten, waiting) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Writes more of the replies that did not fit before.
    pub(super) fn write_on(
        &mut self,
        context: &mut Context<'_>,
        service: &Service,
        counters: &Counters,
    ) -> io::Result<()> {
        let unwritten = &self.unwritten[self.written..];
        let count = write_ready(&mut self.stream, context, unwritten)?;
        counters.bytes_written.add(count as u64);
        self.written += count;
        self.note_moved(service);
        if self.written == self.unwritten.len() {
            if self.unwritten.capacity() > FREE_UNWRITTEN_BYTES {
                self.reserve(service, Buffer::Unwritten, 0);
            }
            (self.unwritten, self.written) = (Vec::new(), 0);
        }
        Ok(())
    }

    /// Writes the turn's replies as far as the socket takes them at once, and keeps the rest.
    pub(super) fn write(
        &mut self,
        context: &mut Context<'_>,
        conn_ctx: &mut ConnContext<'_>,
    ) -> io::Result<()> {
        let count = write_ready(&mut self.stream, context, conn_ctx.output)?;
        conn_ctx.counters.bytes_written.add(count as u64);
        let left = conn_ctx.output.len() - count;
        if left == 0 {
            conn_ctx.output.clear();
            return Ok(());
        }
        let is_much = left > REPLY_BYTES_HIGH && conn_ctx.output.capacity() <= 2 * left;
        if is_much && self.unwritten.is_empty() {
            // A large rest is moved, not copied; the worker gets a new buffer.
            let fresh = Vec::with_capacity(2 * REPLY_BYTES_HIGH);
            self.unwritten = std::mem::replace(conn_ctx.output, fresh);
            self.written = count;
        } else {
            self.unwritten.extend_from_slice(&conn_ctx.output[count..]);
            conn_ctx.output.clear();
        }
        self.registration.info.holding.note_moved(conn_ctx.now.mono.millis());
        self.pay_for_unwritten(conn_ctx.service)
    }
}

/// Writes as many bytes as the socket takes at once and returns their number.
fn write_ready(stream: &mut Stream, context: &mut Context<'_>, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match Pin::new(&mut *stream).poll_write(context, &bytes[written..])? {
            Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(count) => written += count,
            Poll::Pending => break,
        }
    }
    Ok(written)
}
