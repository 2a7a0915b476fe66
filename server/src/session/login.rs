//! The login of a client that must give a password (`-Y`).
//!
//! Not here: the password file (`auth`), the limit on attempts (`guesses`).

use protocol::{Form, Operation, Request, SetMode};

use super::Session;
use crate::commands::context::{ExecContext, RequestOutcome};
use crate::runtime::connections::ConnectionInfo;
use crate::runtime::guesses::FAILURES_MAX;

/// Most bytes of a request before login: a user name and a password need less.
const LOGIN_BYTES_MAX: usize = 4096;

impl Session {
    /// Returns whether the session may wait for a request of this many bytes.
    pub(crate) fn may_ask_for(&self, bytes: usize) -> bool {
        self.authenticated || bytes <= LOGIN_BYTES_MAX
    }

    /// Handles a request before login. Only `set <any key> … <length>` with the data "user
    /// password" is accepted.
    pub(crate) fn authenticate(
        &mut self,
        ctx: &ExecContext<'_>,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> RequestOutcome {
        let Request::Command { command, form: Form::Text { .. } } = request else {
            out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return RequestOutcome::Given;
        };
        let Operation::Set(set) = &command.operation else {
            out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return RequestOutcome::Given;
        };
        if set.mode != SetMode::Set || set.compare_cas.is_some() {
            out.extend_from_slice(b"CLIENT_ERROR unauthenticated\r\n");
            return RequestOutcome::Given;
        }
        if !set.value.contains(&b' ') {
            ctx.counters.auth_cmds.add(1);
            ctx.counters.auth_errors.add(1);
            out.extend_from_slice(b"CLIENT_ERROR bad authentication token format\r\n");
            return RequestOutcome::Given;
        }
        let guesses = ctx.service.guesses();
        let address = ctx.client.and_then(ConnectionInfo::address);
        if let Err(at_ms) = guesses.take(address, ctx.now.mono.millis()) {
            return RequestOutcome::Delayed(at_ms);
        }
        ctx.counters.auth_cmds.add(1);
        if ctx.service.knows_password(set.value) {
            guesses.give_back(address);
            self.authenticated = true;
            out.extend_from_slice(b"STORED\r\n");
            return RequestOutcome::Given;
        }
        ctx.counters.auth_errors.add(1);
        out.extend_from_slice(b"CLIENT_ERROR authentication failure\r\n");
        self.failures += 1;
        if self.failures >= FAILURES_MAX { RequestOutcome::Close } else { RequestOutcome::Given }
    }
}
