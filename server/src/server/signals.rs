//! The signals of the process.
//!
//! Here: their effect, and the end of serving. Not here: the work of housekeeping (`housekeeping`),
//! the drain (`server`).

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::housekeeping::run_housekeeping;
use crate::LIFE;
use crate::node::{Node, leave, lifecycle};
use crate::runtime::limits_file::LimitsFile;
use crate::runtime::service::Service;
use crate::runtime::snapshot::keeper::Keeper;

/// Period of the check for a changed limits file.
const LIMITS_FILE_PERIOD: Duration = Duration::from_secs(1);

/// The handled signals. Once this exists, they no longer kill the process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    save: Signal,
    /// Saves a snapshot; the server continues.
    keep: Signal,
    reload: Signal,
}

impl Signals {
    pub(super) fn listen(runtime: &Runtime) -> io::Result<Self> {
        let _context = runtime.enter();
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            save: signal(SignalKind::user_defined1())?,
            keep: signal(SignalKind::user_defined2())?,
            reload: signal(SignalKind::hangup())?,
        })
    }
}

/// Runs housekeeping and handles signals until the stop request.
pub(super) async fn handle_signals(
    (service, node): (&Service, Option<&Node>),
    mut limits_file: LimitsFile,
    signals: Signals,
    keeper: Option<&Keeper>,
) {
    let Signals { mut terminate, mut interrupt, mut save, mut keep, mut reload } = signals;
    let mut house = pin!(run_housekeeping(service));
    let mut look = interval(LIMITS_FILE_PERIOD);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let why = tokio::select! {
            biased;
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
            // memcached's warm restart: saves the snapshot and exits.
            _ = save.recv() => "SIGUSR1",
            () = service.stopped() => "shutdown command",
            why = leave::until_removed(node) => why,
            _ = reload.recv() => {
                service.reload_users();
                if let Some(node) = node {
                    lifecycle::reload_security(service, node);
                }
                limits_file = LimitsFile::now(service.config());
                service.reload_limits();
                tracing::info!("SIGHUP: users, peer security and limits file read again");
                continue;
            }
            _ = keep.recv() => {
                if let Some(keeper) = keeper {
                    keeper.want();
                } else {
                    tracing::warn!("SIGUSR2 ignored: set a snapshot file with -e");
                }
                continue;
            }
            _ = look.tick() => {
                limits_file.follow(service);
                continue;
            }
            never = &mut house => match never {},
        };
        tracing::info!(target: LIFE, why, "stopping");
        service.stop();
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::warn!(target: LIFE, "second signal: exiting at once without saving");
            std::process::exit(1);
        });
        return;
    }
}
