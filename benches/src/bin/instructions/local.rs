//! A client of a server without sockets: the work between reading and writing, and nothing else.
//!
//! Here: one conversation with a service. Not here: filling it (`run`), counting (`callgrind`).

use std::sync::Arc;

use engine::Now;
use tollgate::commands::scratch::Scratch;
use tollgate::limits::ActiveLimits;
use tollgate::runtime::service::Service;
use tollgate::session::{Pause, Session, SessionContext};

/// The private state of a server's worker, and one client of it.
pub(crate) struct Local {
    worker: usize,
    in_force: Arc<ActiveLimits>,
    session: Session,
    scratch: Scratch,
}

impl Local {
    /// A client of this worker of `service`, under the limits in force now.
    #[must_use]
    pub(crate) fn new(service: &Service, worker: usize) -> Self {
        let (session, scratch) = (Session::default(), Scratch::default());
        Self { worker, in_force: service.limits().load(), session, scratch }
    }

    /// Executes the requests in the client's input and writes the replies into `out`. Returns the
    /// number of bytes consumed, and the reason for stopping.
    pub(crate) fn answer(
        &mut self,
        service: &Service,
        now: Now,
        wire: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        let Self { worker, in_force, session, scratch } = self;
        let mut round =
            SessionContext::new(service, service.counters(*worker), now, in_force, scratch);
        session.run(&mut round, wire, out)
    }
}
