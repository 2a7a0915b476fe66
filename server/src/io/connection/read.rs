//! The reading half of a connection: its socket, and its buffer for partly sent requests.
//!
//! Not here: running what was read (`connection`), writing (`write`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead as _, ReadBuf};

use super::{Connection, FREE_REQUEST_BYTES, READ_BYTES, READ_BYTES_MAX, ReadResult};
use crate::counters::Counters;
use crate::runtime::buffers::{Buffer, PROGRESS_BYTES};
use crate::runtime::connections::HangUp;
use crate::runtime::service::Service;
impl Connection {
    /// Writes outstanding replies and reads new bytes, into `buffer` if `pending` is empty.
    ///
    /// # Errors
    ///
    /// An I/O error of the stream.
    pub(crate) fn read(
        &mut self,
        context: &mut Context<'_>,
        service: &Service,
        counters: &Counters,
        buffer: &mut [u8],
    ) -> io::Result<ReadResult> {
        if self.registration.info.ending() == HangUp::Now {
            return Ok(ReadResult::Close);
        }
        if !self.unwritten.is_empty() {
            self.write_on(context, service, counters)?;
            if !self.unwritten.is_empty() {
                // The client does not read: run nothing more until it does.
                return Ok(ReadResult::Wait);
            }
        }
        if self.delayed_until_ms > 0 {
            if self.is_leaving() {
                return Ok(ReadResult::Close);
            }
            if service.clock().now().mono.millis() < self.delayed_until_ms {
                return Ok(ReadResult::Wait);
            }
            self.delayed_until_ms = 0;
            if self.has_left(context, counters)? {
                // The client has left: its delayed request needs no reply.
                return Ok(ReadResult::Close);
            }
        }
        if self.session.replies.is_ready() {
            return Ok(ReadResult::Held);
        }
        if self.closing {
            return Ok(if self.session.replies.is_empty() {
                ReadResult::Close
            } else {
                ReadResult::Wait
            });
        }
        if self.blocked && !self.session.replies.is_empty() {
            return Ok(ReadResult::Wait);
        }
        if self.unfinished || self.blocked {
            return Ok(ReadResult::Held);
        }
        if self.pending.is_empty() {
            let mut buffer = ReadBuf::new(buffer);
            return Ok(match Pin::new(&mut self.stream).poll_read(context, &mut buffer)? {
                Poll::Pending if self.is_leaving() && self.session.replies.is_empty() => {
                    ReadResult::Close
                }
                Poll::Pending => ReadResult::Wait,
                Poll::Ready(()) if buffer.filled().is_empty() => self.hung_up(),
                Poll::Ready(()) => {
                    counters.bytes_read.add(buffer.filled().len() as u64);
                    ReadResult::Bytes(buffer.filled().len())
                }
            });
        }
        self.read_on(context, service, counters)
    }

    /// Returns whether a delayed client has closed the connection; bytes that it sent meanwhile are
    /// read, in part.
    fn has_left(&mut self, context: &mut Context<'_>, counters: &Counters) -> io::Result<bool> {
        let mut bytes = [0; 256];
        let mut buffer = ReadBuf::new(&mut bytes);
        if self.pending.len() > READ_BYTES {
            return Ok(false);
        }
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer)?;
        counters.bytes_read.add(buffer.filled().len() as u64);
        self.pending.extend_from_slice(buffer.filled());
        Ok(polled.is_ready() && buffer.filled().is_empty())
    }

    /// Reads more of a request whose front is already in `pending`.
    fn read_on(
        &mut self,
        context: &mut Context<'_>,
        service: &Service,
        counters: &Counters,
    ) -> io::Result<ReadResult> {
        let held = self.pending.len();
        // A large value is read in steps that grow with it, and memory is reserved only as its
        // bytes arrive: a client that announces a value and does not send it holds no memory.
        let max = held.clamp(READ_BYTES, READ_BYTES_MAX);
        let step = self.needed.saturating_sub(held).clamp(READ_BYTES, max);
        if !self.make_room(service, step) {
            self.starves = true;
            return Ok(ReadResult::Held);
        }
        self.pending.resize(held + step, 0);
        let mut buffer = ReadBuf::new(&mut self.pending[held..]);
        let polled = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        self.pending.truncate(held + count);
        counters.bytes_read.add(count as u64);
        self.note_moved(service);
        Ok(match polled? {
            Poll::Pending => ReadResult::Wait,
            Poll::Ready(()) if count == 0 => self.hung_up(),
            Poll::Ready(()) => ReadResult::Held,
        })
    }

    /// Makes room for `step` bytes in `pending`. Returns false if the reading budget is used up.
    pub(super) fn make_room(&mut self, service: &Service, step: usize) -> bool {
        let wanted = self.pending.len() + step;
        if wanted <= self.pending.capacity() {
            return true;
        }
        // Double the capacity, so that few bytes are copied, but never beyond the value.
        let capacity = (2 * self.pending.capacity()).min(self.needed).max(wanted);
        if capacity > FREE_REQUEST_BYTES {
            if !self.is_reserved {
                let now_ms = service.clock().now().mono.millis();
                self.registration.info.holding.note_moved(now_ms);
            }
            self.is_reserved = self.reserve(service, Buffer::Reading, capacity);
            if !self.is_reserved {
                return false;
            }
        }
        self.pending.reserve_exact(capacity - self.pending.len());
        true
    }

    /// Records progress, if enough bytes have moved since it was last recorded.
    pub(super) fn note_moved(&mut self, service: &Service) {
        let moved = self.pending.len() + self.written;
        if moved.abs_diff(self.noted) >= PROGRESS_BYTES {
            self.noted = moved;
            let now_ms = service.clock().now().mono.millis();
            self.registration.info.holding.note_moved(now_ms);
        }
    }
}
