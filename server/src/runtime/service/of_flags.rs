//! The shared state of a server with given flags, for tests.

use tollgate_limits::Limits;

use super::Service;
use crate::config::{Config, Startup};

impl Service {
    /// Creates the state of a server with one worker, 64 MB and these flags, of which later ones
    /// take precedence.
    pub(crate) fn of_flags(flags: &[&str], limits: Limits) -> Self {
        let args = ["tollgate", "--threads=1", "--memory-limit=64"].iter().chain(flags);
        let startup = Config::from_sources(args.map(Into::into), []).expect("the flags are right");
        let Startup::Serve(config) = startup else { panic!("it serves") };
        Self::new(*config, None, limits, [1; 4], Box::new(|_| ()))
    }
}
