//! Ends a batch before a request that is not whole, and refuses those that cannot be decoded:
//! faulty lines, and values without memory to read them.
//!
//! Not here: the syntax (`protocol`).

use protocol::{
    Bounds, Command, DecodeError, Decoded, Key, Operation, ProtocolError, Request, decode,
};

use super::{Pause, Session, SessionContext, pause_before};
use crate::commands::admin::SHUTDOWN_NOT_ENABLED;
use crate::commands::items::line;

/// The reason why a batch ends before it is full.
pub(super) enum BatchEnd {
    Incomplete { scanned: usize, needed: usize },
    Refused(DecodeError),
}

impl Session {
    /// Ends a batch of `done` bytes before a request that is not whole, or cannot be decoded.
    #[inline]
    pub(super) fn end_batch(
        &mut self,
        ctx: &mut SessionContext<'_>,
        end: &BatchEnd,
        (done, input_bytes): (usize, usize),
        out: &mut Vec<u8>,
    ) -> (usize, Option<Pause>) {
        let refusal = match end {
            BatchEnd::Incomplete { scanned, needed } => {
                self.scanned = *scanned;
                return (done, Some(Pause::Input(*needed)));
            }
            BatchEnd::Refused(refusal) => refusal,
        };
        if let Some(pause) = pause_before(ctx, out) {
            return (done, Some(pause));
        }
        if !self.replies.is_empty() {
            return (done, Some(Pause::Peers));
        }
        if refusal.error == ProtocolError::Close {
            return (input_bytes, Some(Pause::Close));
        }
        self.refuse(ctx, refusal, out);
        ctx.requests -= 1;
        self.scanned = 0;
        (done + refusal.consumed, refusal.closes.then_some(Pause::Close))
    }

    /// Refuses a storage command of `needed` bytes, of which `front` has arrived. The rest of its
    /// data is dropped as it arrives; the caller drops `front`. Returns false if `front` holds no
    /// line end: the length of the data is then unknown, so the caller must close the connection.
    pub fn refuse_value(
        &mut self,
        ctx: &mut SessionContext<'_>,
        front: &[u8],
        needed: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.scanned = 0;
        let Some(end) = front.iter().position(|byte| *byte == b'\n') else { return false };
        self.skip = needed.saturating_sub(front.len());
        if !self.authenticated {
            out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return true;
        }
        ctx.exec.counters.store_no_memory.add(1);
        let text = front[..end].trim_ascii_end();
        let reply: &'static str = if text.ends_with(b" noreply") {
            ""
        } else {
            "SERVER_ERROR out of memory storing object\r\n"
        };
        let replaced = replaced_key(&front[..=end]);
        if let Some(mut dispatch) = self.dispatch_in(ctx) {
            dispatch.refuse_value(replaced.as_ref().map(Key::as_bytes), reply, out);
            return true;
        }
        if let Some(key) = replaced {
            let hash = ctx.exec.service.shards().hash(key.as_bytes());
            let command = Command { key, operation: Operation::TooLarge { drop: true } };
            ctx.exec.service.shards().apply(ctx.exec.now, hash, &command, |_| ());
        }
        out.extend_from_slice(reply.as_bytes());
        true
    }

    fn refuse(&self, ctx: &SessionContext<'_>, refusal: &DecodeError, out: &mut Vec<u8>) {
        if !self.authenticated {
            out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return;
        }
        if refusal.error == ProtocolError::BadDataChunk {
            ctx.exec.counters.cmd_set.add(1);
        }
        let allowed = ctx.exec.service.config().shutdown_command;
        if refusal.error == ProtocolError::BadShutdownMode && !allowed {
            out.extend_from_slice(SHUTDOWN_NOT_ENABLED);
        } else if !refusal.quiet {
            line(out, &refusal.error.to_string());
        }
    }
}

/// Returns the key whose value the storage command on `line` would have replaced. As after every
/// failed store, the old value must not be readable any more.
fn replaced_key(line: &[u8]) -> Option<Key<'_>> {
    // With a bound of zero bytes, every value is too large.
    let Ok(Decoded::Request { request: Request::Command { command, .. }, .. }) =
        decode(line, 0, Bounds { item_bytes_max: 0 })
    else {
        return None;
    };
    let replaces = [&b"set "[..], b"replace ", b"cas ", b"ms "];
    let is_one = replaces.iter().any(|verb| line.starts_with(verb));
    (is_one && matches!(command.operation, Operation::TooLarge { .. })).then_some(command.key)
}
