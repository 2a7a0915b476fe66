//! Answers on their way to the client, and what is kept of them while it does not read.
//!
//! Not here: when it is their turn (`connection`), the budget they are paid from (`buffers`).

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

/// Answers that wait beyond so many bytes are paid for from the service's unwritten budget. A batch
/// of small answers is less.
const FREE_UNWRITTEN_BYTES: usize = 2 * REPLY_BYTES_HIGH;

impl Connection {
    /// Pays for answers that the client does not read.
    ///
    /// # Errors
    ///
    /// When too many of them wait, over all clients, and all of those read: this one is to be hung
    /// up on.
    fn pay_for_unwritten(&self, service: &Service) -> io::Result<()> {
        let waiting = self.unwritten.capacity();
        if waiting > FREE_UNWRITTEN_BYTES && !self.reserve(service, Buffer::Unwritten, waiting) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Goes on writing what did not fit before.
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

    /// Writes what the socket takes at once of the turn's answers; the rest is kept.
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
            // Much is not copied: the worker gets a new buffer.
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

/// Writes what the socket takes at once, and tells how much that is.
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
