//! What is done to the process itself, before the runtime starts.
//!
//! Here: background, process id file, limits on descriptors and core files, locked memory, another
//! user; all through the safe calls of `nix`. Not here: when each is due (`main` knows: the first
//! four before binding, the user after it), binding, signals.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::kill;
use nix::unistd::{Gid, Pid, Uid, User, daemon, geteuid, getpid, setgid, setgroups, setuid};

use crate::config::{Config, LogLevel};
use crate::files;

/// Descriptors beside those of clients: listeners, epoll, log, snapshot, files being read.
const SPARE_DESCRIPTORS: u64 = 64;

/// Why the process cannot be what the configuration asks for. The process exits with 1.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// `-d` failed.
    #[error("cannot run in the background: {0}")]
    Daemon(Errno),
    /// The process id cannot be written.
    #[error("cannot write pidfile {}: {source}", path.display())]
    Pidfile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The hard limit leaves too few descriptors for `-c`, and may not be raised.
    #[error(
        "-c {wanted} needs as many open files and the limit is {allowed}: \
         start as root, raise the limit, or lower -c"
    )]
    Descriptors {
        /// What `-c` asks for.
        wanted: u64,
        /// The hard limit.
        allowed: u64,
    },
    /// A limit cannot be read or set.
    #[error("cannot change the limit on {what}: {source}")]
    Limit {
        /// Which one.
        what: &'static str,
        /// What the system said.
        source: Errno,
    },
    /// `-u` names nobody.
    #[error("can't find the user {0} to switch to")]
    UnknownUser(String),
    /// The system does not let us become the user of `-u`.
    #[error("cannot become the user {user}: {step}: {source}")]
    Privileges {
        /// As `-u` names it.
        user: String,
        /// The call that failed.
        step: &'static str,
        /// What the system said.
        source: Errno,
    },
}

/// From now on memory that is free for some ten seconds goes back to the system, even where nothing is
/// allocated any more: threads of the allocator see to it.
///
/// Call it after [`daemonize`]: they do not survive a fork.
pub fn configure_allocator() {
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        tracing::warn!("memory that is free is kept: {error}");
    }
}

/// Goes to the background: fork, new session, standard streams to `/dev/null`.
///
/// Call it while the process has one thread: others do not survive the fork. As in memcached, `-v`
/// keeps the streams, and `-r` keeps the working directory, where the core file goes; otherwise it
/// becomes `/`.
///
/// # Errors
///
/// When the system cannot fork or open `/dev/null`.
pub fn daemonize(config: &Config) -> Result<(), ProcessError> {
    let keep_streams = config.log_level > LogLevel::Warn;
    daemon(config.coredumps, keep_streams).map_err(ProcessError::Daemon)
}

/// A file with our process id, removed on drop.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    pid: Pid,
}

impl Pidfile {
    /// Writes the file beside its place and moves it there, so that no reader finds it half done.
    ///
    /// Call it after [`daemonize`], which changes the process id, and after [`drop_privileges`], so
    /// that whoever wrote the file may also remove it.
    ///
    /// # Errors
    ///
    /// When the directory is missing or may not be written.
    pub fn create(path: &Path) -> Result<Self, ProcessError> {
        let pid = getpid();
        // Neither is a pipe read nor a device replaced.
        files::must_be_replaceable(path)
            .map_err(|source| ProcessError::Pidfile { path: path.to_owned(), source })?;
        if let Some(other) = read_pid(path)
            && other != pid
            && kill(other, None).is_ok()
        {
            tracing::warn!(path = %path.display(), pid = %other, "pidfile names a running process");
        }
        let write = || {
            let mut name = path.as_os_str().to_owned();
            name.push(".tmp");
            let beside = Path::new(&name);
            // What a crash left behind goes; then `create_new` follows nobody's link.
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

/// Removes the file while it is still ours: a successor may have written its own by now.
impl Drop for Pidfile {
    fn drop(&mut self) {
        if read_pid(&self.path) == Some(self.pid)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove pidfile");
        }
    }
}

/// The process id in a file, if there is a file with one. Zero and less address whole groups.
fn read_pid(path: &Path) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (pid > 0).then(|| Pid::from_raw(pid))
}

/// Raises `RLIMIT_NOFILE` for `connections_max` clients and what the server opens beside them.
/// Returns the limit that holds now. A higher one is left alone.
///
/// # Errors
///
/// When the hard limit is below `connections_max` and may not be raised: clients within `-c` would
/// be turned away. The few descriptors beside them are wished for, not insisted on.
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

/// Raises the limit on core files as far as it goes (`-r`).
///
/// # Errors
///
/// When no core file may be written at all.
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

/// Locks the memory of the process (`-k`): what it has and, where the limit on locked memory is
/// lifted, what it will have. A refusal is only warned of, as in memcached. Returns whether all of
/// it is locked.
///
/// Pages are locked as they come into use: the allocator sets aside far more addresses than it uses, and
/// all of them would become memory at once.
///
/// Call it after [`daemonize`]: a fork inherits no lock.
pub fn lock_memory() -> bool {
    // Only root may raise it; what came of it is asked next.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let unlimited =
        matches!(getrlimit(Resource::RLIMIT_MEMLOCK), Ok((soft, _)) if soft == RLIM_INFINITY);
    // Under a limit, root is still let through; but once it is another user, every allocation
    // beyond the limit would fail, and the process with it.
    let flags = if unlimited {
        MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE
    } else {
        MlockAllFlags::MCL_CURRENT
    };
    // nix has no name for it.
    let flags = flags | MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT);
    match mlockall(flags) {
        Ok(()) if unlimited => true,
        Ok(()) => {
            tracing::warn!("-k locks no later memory: the limit on locked memory is not unlimited");
            false
        }
        Err(error) => {
            tracing::warn!(%error, "-k has no effect: memory cannot be locked");
            false
        }
    }
}

/// What became of `-u`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// The process is the user of `-u` now.
    Dropped,
    /// The process was not root, so `-u` says nothing, as in memcached.
    NotRoot,
    /// The process stays root: no `-u`, or `-u root`.
    Root,
}

/// Becomes `config.user` for good, if the process is root. Call it once everything is bound.
///
/// # Errors
///
/// When the process is root and the user is unknown or cannot be assumed.
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
    // In this order: without the user's rights the groups could not be left any more.
    setgroups(&[]).map_err(failed("setgroups"))?;
    setgid(gid).map_err(failed("setgid"))?;
    setuid(uid).map_err(failed("setuid"))?;
    if config.coredumps {
        // The kernel writes no core file of a process that changed its user, unless told to.
        prctl::set_dumpable(true).map_err(failed("set_dumpable"))?;
    }
    Ok(Privileges::Dropped)
}

/// User and group of `name`. A number that no user has stands for itself, so that `-u 11211` works
/// in an image without `/etc/passwd`.
fn find_user(name: &str) -> Result<(Uid, Gid), ProcessError> {
    let failed =
        |step| move |source| ProcessError::Privileges { user: name.to_owned(), step, source };
    if let Some(user) = User::from_name(name).map_err(failed("getpwnam"))? {
        return Ok((user.uid, user.gid));
    }
    // The highest number is what the system calls "leave it is".
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
