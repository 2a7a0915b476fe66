//! The signals of the process.
//!
//! Here: their effect, and the end of serving. Not here: the work of housekeeping (`housekeeping`),
//! the drain (`server`).

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::housekeeping::run_housekeeping;
use super::observer::ObserverBell;
use crate::LIFE;
use crate::admin::AdminThread;
use crate::config::Config;
use crate::node::{Node, leave, lifecycle};
use crate::runtime::service::Service;
use crate::runtime::snapshot::keeper::Keeper;
use crate::runtime::watched_file::WatchedFile;

/// Period of the check for changed files.
const FILES_PERIOD: Duration = Duration::from_millis(1024);

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

/// The parts of the server that signals and changed files concern.
pub(super) struct Handled<'a> {
    pub(super) service: &'a Service,
    pub(super) node: Option<&'a Node>,
    pub(super) keeper: Option<&'a Keeper>,
    pub(super) admin: Option<&'a AdminThread>,
    pub(super) bell: &'a ObserverBell,
}

impl Handled<'_> {
    /// Reads again all files that may change while the server runs.
    fn reload(&self) {
        self.service.reload_users();
        if let Some(node) = self.node {
            lifecycle::reload_security(self.service, node);
        }
        self.service.reload_limits();
        self.service.limits_store().follow_override_files(true);
        self.reload_tokens();
    }

    fn reload_tokens(&self) {
        let http = self.service.config().http.as_ref();
        if let (Some(admin), Some(path)) = (self.admin, http.and_then(|http| http.tokens.as_ref()))
        {
            admin.reload_tokens(path);
        }
    }
}

/// The files whose changes are followed.
pub(super) struct WatchedFiles {
    limits: WatchedFile,
    tokens: WatchedFile,
}

impl WatchedFiles {
    /// Marks the current versions as those that are about to be read.
    pub(super) fn now(config: &Config) -> Self {
        let tokens = config.http.as_ref().and_then(|http| http.tokens.as_deref());
        Self {
            limits: WatchedFile::now(config.limits_file.as_deref()),
            tokens: WatchedFile::now(tokens),
        }
    }

    /// Reads again what has changed.
    fn follow(&mut self, handled: &Handled<'_>) {
        if self.limits.has_changed() {
            handled.service.reload_limits();
        }
        handled.service.limits_store().follow_override_files(false);
        if self.tokens.has_changed() {
            handled.reload_tokens();
        }
    }
}

/// Runs housekeeping and handles signals until the stop request.
pub(super) async fn handle_signals(
    handled: Handled<'_>,
    mut files: WatchedFiles,
    signals: Signals,
) {
    let Handled { service, node, keeper, bell, .. } = handled;
    let Signals { mut terminate, mut interrupt, mut save, mut keep, mut reload } = signals;
    let mut house = pin!(run_housekeeping(service, Some(bell)));
    let mut look = service.grid().ticks(FILES_PERIOD);
    loop {
        let (why, is_signal) = tokio::select! {
            biased;
            _ = terminate.recv() => ("SIGTERM", true),
            _ = interrupt.recv() => ("SIGINT", true),
            // memcached's warm restart: saves the snapshot and exits.
            _ = save.recv() => ("SIGUSR1", true),
            () = service.stopped() => ("shutdown command", false),
            why = leave::until_removed(node) => (why, false),
            _ = reload.recv() => {
                files = WatchedFiles::now(service.config());
                handled.reload();
                tracing::info!("SIGHUP: users, peer security, limits file and tokens read again");
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
            () = look.tick() => {
                files.follow(&handled);
                continue;
            }
            never = &mut house => match never {},
        };
        tracing::info!(target: LIFE, why, "stopping");
        service.stop();
        tokio::spawn(async move {
            // Whoever drains a node and then stops its service sends a first signal too.
            let signals_to_exit = if is_signal { 1 } else { 2 };
            for _ in 0..signals_to_exit {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
            tracing::warn!(target: LIFE, "second signal: exiting at once without saving");
            std::process::exit(1);
        });
        return;
    }
}
