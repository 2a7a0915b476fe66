//! Changes to the process itself, before the runtime starts.
//!
//! Here: background, pidfile, limits on descriptors and core files, locked memory, change of user;
//! all through the safe calls of `nix`. Not here: the order of these steps (`server/program`: the
//! change of user after binding, the others before it), binding, signals.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::kill;
use nix::unistd::{Gid, Pid, Uid, User, daemon, geteuid, getpid, setgid, setgroups, setuid};
use tollgate_limits::files;

use crate::config::{Config, LogLevel};

/// Descriptors besides those of clients: listeners, epoll, log, snapshot, files being read.
const SPARE_DESCRIPTORS: u64 = 64;

/// The reason why the process cannot apply the configuration. The process exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// `-d` failed.
    #[error("cannot run in the background: {0}")]
    Daemon(Errno),
    /// The pidfile cannot be written.
    #[error("cannot write pidfile {}: {source}", path.display())]
    Pidfile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The hard limit is below `-c` and cannot be raised.
    #[error(
        "-c {wanted} needs as many open files and the limit is {allowed}: \
         start as root, raise the limit, or lower -c"
    )]
    Descriptors {
        /// The value of `-c`.
        wanted: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// A resource limit cannot be read or set.
    #[error("cannot change the limit on {what}: {source}")]
    Limit {
        /// The name of the limit.
        what: &'static str,
        /// The error of the operating system.
        source: Errno,
    },
    /// There is no user with the name of `-u`.
    #[error("can't find the user {0} to switch to")]
    UnknownUser(String),
    /// The system refuses the change to the user of `-u`.
    #[error("cannot become the user {user}: {step}: {source}")]
    Privileges {
        /// The user as written in `-u`.
        user: String,
        /// The call that failed.
        step: &'static str,
        /// The error of the operating system.
        source: Errno,
    },
}

/// Moves the process to the background: fork, new session, standard streams to `/dev/null`.
///
/// Call it while the process has one thread: other threads do not survive the fork. As in
/// memcached, `-v` keeps the streams, and `-r` keeps the working directory, because core files are
/// written there; otherwise it becomes `/`.
///
/// # Errors
///
/// The system cannot fork or open `/dev/null`.
pub fn daemonize(config: &Config) -> Result<(), ProcessError> {
    let keep_streams = config.log_level > LogLevel::Warn;
    daemon(config.coredumps, keep_streams).map_err(ProcessError::Daemon)
}

/// A file with the process id, removed on drop.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    pid: Pid,
}

impl Pidfile {
    /// Writes a temporary file and renames it to `path`, so that no reader finds a partial file.
    ///
    /// Call it after [`daemonize`], which changes the process id, and after [`drop_privileges`], so
    /// that the user that wrote the file may remove it.
    ///
    /// # Errors
    ///
    /// The directory is missing or not writable.
    pub fn create(path: &Path) -> Result<Self, ProcessError> {
        let pid = getpid();
        // Do not read a pipe or replace a device.
        files::must_be_replaceable(path)
            .map_err(|source| ProcessError::Pidfile { path: path.to_owned(), source })?;
        if let Some(other) = read_pid(path)
            && other != pid
            && kill(other, None).is_ok()
        {
            tracing::warn!(
                path = %path.display(),
                pid = %other,
                "the pidfile names another running process: replacing it"
            );
        }
        let write = || {
            let mut name = path.as_os_str().to_owned();
            name.push(".tmp");
            let beside = Path::new(&name);
            // Remove the file of a crashed process, so that `create_new` succeeds and follows no
            // symbolic link.
            match fs::remove_file(beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let mut file = File::create_new(beside)?;
            writeln!(file, "{pid}")?;
            drop(file);
            fs::rename(beside, path)
        };
        write().map_err(|source| ProcessError::Pidfile { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), pid })
    }
}

/// Removes the file if it still has this process's id: a successor may have replaced it.
impl Drop for Pidfile {
    fn drop(&mut self) {
        if read_pid(&self.path) == Some(self.pid)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove pidfile");
        }
    }
}

/// The process id in a file. `None` if there is no valid one; zero and negative numbers address
/// process groups.
fn read_pid(path: &Path) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (pid > 0).then(|| Pid::from_raw(pid))
}

/// Raises `RLIMIT_NOFILE` to `connections_max` clients and spare descriptors. Returns the
/// resulting limit. A higher limit is not lowered.
///
/// # Errors
///
/// The hard limit is below `connections_max` and cannot be raised, so that clients within `-c`
/// would be refused. A hard limit without room for the spare descriptors is no error.
pub fn raise_descriptor_limit(connections_max: usize) -> Result<u64, ProcessError> {
    let failed = |source| ProcessError::Limit { what: "open files", source };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
    let wanted = connections_max as u64;
    let wished = wanted.saturating_add(SPARE_DESCRIPTORS);
    if soft >= wished {
        return Ok(soft);
    }
    if setrlimit(Resource::RLIMIT_NOFILE, wished, hard.max(wished)).is_ok() {
        return Ok(wished);
    }
    if hard < wanted {
        return Err(ProcessError::Descriptors { wanted, allowed: hard });
    }
    let max = hard.min(wished);
    setrlimit(Resource::RLIMIT_NOFILE, max, hard).map_err(failed)?;
    Ok(max)
}

/// Raises the limit on core files as far as possible (`-r`).
///
/// # Errors
///
/// The hard limit forbids core files.
pub fn raise_core_limit() -> Result<(), ProcessError> {
    let failed = |source| ProcessError::Limit { what: "core files", source };
    if setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY).is_ok() {
        return Ok(());
    }
    let (_, hard): (rlim_t, rlim_t) = getrlimit(Resource::RLIMIT_CORE).map_err(failed)?;
    if hard == 0 {
        return Err(failed(Errno::EPERM));
    }
    setrlimit(Resource::RLIMIT_CORE, hard, hard).map_err(failed)
}

/// Locks the memory of the process (`-k`): the current memory and, if the limit on locked memory is
/// unlimited, all future memory. As in memcached, a failure is only logged. Returns whether all
/// memory is locked.
///
/// Pages are locked when they are first used: the allocator reserves far more addresses than it
/// uses, and locking them at once would allocate all of them.
///
/// Call it after [`daemonize`]: locks are not inherited across a fork.
pub fn lock_memory() -> bool {
    // Only root may raise the limit; the next call reads the result.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let unlimited =
        matches!(getrlimit(Resource::RLIMIT_MEMLOCK), Ok((soft, _)) if soft == RLIM_INFINITY);
    // With a limit in place `MCL_FUTURE` would succeed as root, but after the change of user every
    // allocation beyond the limit would fail and end the process.
    let flags = if unlimited {
        MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE
    } else {
        MlockAllFlags::MCL_CURRENT
    };
    // nix has no constant for this flag.
    let flags = flags | MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT);
    match mlockall(flags) {
        Ok(()) if unlimited => true,
        Ok(()) => {
            tracing::warn!(
                "-k locks no memory allocated later: set the limit on locked memory to unlimited"
            );
            false
        }
        Err(error) => {
            tracing::warn!(%error, "-k has no effect: the system refuses to lock memory");
            false
        }
    }
}

/// The result of `-u`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// The process now runs as the user of `-u`.
    Dropped,
    /// The process was not root, so `-u` is ignored, as in memcached.
    NotRoot,
    /// The process stays root: no `-u`, or `-u root`.
    Root,
}

/// Changes to `config.user` permanently, if the process is root. Call it after all sockets are
/// bound.
///
/// # Errors
///
/// The process is root, and the user is unknown or the change fails.
pub fn drop_privileges(config: &Config) -> Result<Privileges, ProcessError> {
    if !geteuid().is_root() {
        return Ok(Privileges::NotRoot);
    }
    let Some(name) = &config.user else { return Ok(Privileges::Root) };
    let (uid, gid) = find_user(name)?;
    if uid.is_root() {
        return Ok(Privileges::Root);
    }
    let failed = |step| move |source| ProcessError::Privileges { user: name.clone(), step, source };
    // The user comes last: without root's rights the groups cannot be changed.
    setgroups(&[]).map_err(failed("setgroups"))?;
    setgid(gid).map_err(failed("setgid"))?;
    setuid(uid).map_err(failed("setuid"))?;
    if config.coredumps {
        // The kernel writes no core file for a process that changed its user, unless this is set.
        prctl::set_dumpable(true).map_err(failed("set_dumpable"))?;
    }
    Ok(Privileges::Dropped)
}

/// User and group of `name`. A number without a user stands for itself, so that `-u 11211` works in
/// an image without `/etc/passwd`.
fn find_user(name: &str) -> Result<(Uid, Gid), ProcessError> {
    let failed =
        |step| move |source| ProcessError::Privileges { user: name.to_owned(), step, source };
    if let Some(user) = User::from_name(name).map_err(failed("getpwnam"))? {
        return Ok((user.uid, user.gid));
    }
    // The highest number means "leave unchanged" to the system.
    let number: u32 = name
        .parse()
        .ok()
        .filter(|number| *number != u32::MAX)
        .ok_or_else(|| ProcessError::UnknownUser(name.to_owned()))?;
    let uid = Uid::from_raw(number);
    let user = User::from_uid(uid).map_err(failed("getpwuid"))?;
    Ok((uid, user.map_or(Gid::from_raw(number), |user| user.gid)))
}

#[cfg(test)]
mod tests;
