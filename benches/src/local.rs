//! A client of a server without sockets: what lies between reading and writing, and nothing else.
//!
//! Here: one conversation with a service. Not here: filling it, counting and timing (`workers`,
//! `instructions`).

use std::sync::Arc;

use engine::Now;
use tollgate::commands::scratch::Scratch;
use tollgate::limits::ActiveLimits;
use tollgate::runtime::service::Service;
use tollgate::session::{ExecContext, Pause, Session};

/// What a worker of the server has for itself, and one client of it.
pub struct Local {
    worker: usize,
    in_force: Arc<ActiveLimits>,
    session: Session,
    scratch: Scratch,
}

impl Local {
    /// A client of this worker of `service`, under the limits that are now in force.
    #[must_use]
    pub fn new(service: &Service, worker: usize) -> Self {
        let (session, scratch) = (Session::default(), Scratch::default());
        Self { worker, in_force: service.limits().load(), session, scratch }
    }

    /// Answers what the client sent into `out`; the answer is how much of it, and why no more.
    pub fn answer(
        &mut self,
        service: &Service,
        now: Now,
        wire: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Pause) {
        let Self { worker, in_force, session, scratch } = self;
        let mut round =
            ExecContext::new(service, service.counters(*worker), now, in_force, scratch);
        session.run(&mut round, wire, out)
    }
}
