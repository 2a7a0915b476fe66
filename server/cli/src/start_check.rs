//! The files, directories, sockets and the user that a server's settings name, checked as by its
//! start, with the same texts.
//!
//! Here: reading files; nothing is created, changed or locked. Not here: bounds of settings
//! (`config`), binding of addresses (`server`), findings that stop no start (`doctor::before`).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use control::StoreError;
use nix::errno::Errno;
use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, User, eaccess, geteuid};
use tollgate::admin::{self, AdminError};
use tollgate::config::{ClusterConfig, Config};
use tollgate::runtime::auth::{AuthError, AuthFile};
use tollgate::runtime::process::ProcessError;
use tollgate::runtime::snapshot::SnapshotError;
use tollgate::transport::SecurityError;
use tollgate_limits::map_text::LimitText;
use tollgate_limits::{Limits, LimitsError, files};

/// The reason why a server with these settings would not start.
#[derive(Debug, thiserror::Error)]
pub enum StartRefusal {
    /// No snapshot can be written (`-e`).
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The auth file cannot be used (`-Y`).
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// The tokens or the certificate cannot be used (`--tokens`, `--http-tls`).
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The pidfile or the user cannot be used (`-P`, `-u`).
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The data directory cannot be used (`--data-dir`).
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A socket, the limits store or the file of the ports cannot be created.
    #[error("{place}: {source}")]
    Place {
        /// The path, after the words of the start.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// The limits file or a file that it names cannot be used (`--limits`).
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The key or the certificates of peers cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// Checks the files that `config` names, in the order of the start. `is_running`: a server with
/// these settings runs, perhaps as another user, so rights to write are not checked.
///
/// # Errors
///
/// The first reason why the server would not start.
pub fn check_start(config: &Config, is_running: bool) -> Result<(), StartRefusal> {
    let places = StartPaths { is_running };
    if let Some(path) = &config.snapshot_file {
        let refuse = |source| SnapshotError::Unusable { path: path.clone(), source };
        places.replaceable(path).map_err(refuse)?;
        files::must_be_replaceable(&with_ending(path, ".part")).map_err(refuse)?;
    }
    config.auth_file.as_deref().map(AuthFile::load).transpose()?;
    if let (Some(path), None) = (&config.limits_store, &config.cluster) {
        let place = format!("--limits-store {}", path.display());
        places.writable(path).map_err(|source| StartRefusal::Place { place, source })?;
    }
    let socket = config.unix_socket.as_ref().map(|socket| &socket.path);
    for path in socket.into_iter().chain(&config.admin_socket) {
        let place = format!("cannot listen on {}", path.display());
        places.socket(path).map_err(|source| StartRefusal::Place { place, source })?;
    }
    config.http.as_ref().map(admin::load_files).transpose()?;
    if let Some(path) = &config.port_file {
        let place = path.display().to_string();
        places.creatable(path).map_err(|source| StartRefusal::Place { place, source })?;
    }
    check_user(config)?;
    if let Some(path) = &config.pidfile {
        let refuse = |source| ProcessError::Pidfile { path: path.clone(), source };
        places.replaceable(path).map_err(refuse)?;
    }
    if let Some(path) = config.cluster.as_ref().and_then(|cluster| cluster.data_dir.as_ref()) {
        let refuse = |source| StoreError::Directory { path: path.clone(), source };
        places.directory(path).map_err(refuse)?;
    }
    // Last: the doctor has remedies for these two.
    match (&config.limits_file, &config.cluster) {
        // In a cluster the limits file has additional bounds.
        (Some(path), Some(_)) => LimitText::load(path).map(drop)?,
        (Some(path), None) => Limits::load(path).map(drop)?,
        (None, _) => {}
    }
    config.cluster.as_ref().map(ClusterConfig::security).transpose()?;
    Ok(())
}

/// Returns the first file of passwords, tokens or keys that exists and that this user may not read.
pub(super) fn hidden_file(config: &Config) -> Option<&Path> {
    let http = config.http.as_ref();
    let tls = http.and_then(|http| http.tls.as_ref());
    let tokens = http.and_then(|http| http.tokens.as_ref());
    let mut files = [config.auth_file.as_ref(), tls.map(|tls| &tls.certificates)]
        .into_iter()
        .chain([tls.map(|tls| &tls.key), tokens])
        .flatten()
        .map(PathBuf::as_path);
    files.find(|path| eaccess(*path, AccessFlags::R_OK) == Err(Errno::EACCES))
}

/// Checks that the user of `-u` exists. As at the start, only root's `-u` matters, and a number
/// stands for itself.
fn check_user(config: &Config) -> Result<(), ProcessError> {
    let Some(name) = config.user.as_ref().filter(|_| geteuid().is_root()) else { return Ok(()) };
    let found = User::from_name(name).map_err(|source| ProcessError::Privileges {
        user: name.clone(),
        step: "getpwnam",
        source,
    })?;
    let is_number = name.parse::<u32>().is_ok_and(|number| number != u32::MAX);
    if found.is_some() || is_number {
        return Ok(());
    }
    Err(ProcessError::UnknownUser(name.clone()))
}

/// Checks of paths that the server creates.
struct StartPaths {
    is_running: bool,
}

impl StartPaths {
    /// Checks the right to write to `path`.
    fn access(&self, path: &Path, rights: AccessFlags) -> io::Result<()> {
        if self.is_running { Ok(()) } else { Ok(eaccess(path, rights)?) }
    }

    /// Checks that files can be created in a directory.
    fn open_directory(&self, directory: &Path) -> io::Result<()> {
        if !fs::metadata(directory)?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        // Nothing can be created in /proc, although root has the right to.
        if statfs(directory).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC) {
            return Err(Errno::ENOENT.into());
        }
        self.access(directory, AccessFlags::W_OK | AccessFlags::X_OK)
    }

    /// Checks that a file can be created at `path`.
    fn creatable(&self, path: &Path) -> io::Result<()> {
        self.open_directory(parent(path))
    }

    /// Checks that a file can be renamed to `path`.
    fn replaceable(&self, path: &Path) -> io::Result<()> {
        files::must_be_replaceable(path)?;
        self.creatable(path)
    }

    /// Checks that the file at `path` can be written in place, or created.
    fn writable(&self, path: &Path) -> io::Result<()> {
        files::must_be_replaceable(path)?;
        match fs::metadata(path) {
            Ok(_) => self.access(path, AccessFlags::R_OK | AccessFlags::W_OK),
            Err(_) => self.creatable(path),
        }
    }

    /// Checks that a socket can be created at `path`. An old one is replaced.
    fn socket(&self, path: &Path) -> io::Result<()> {
        SocketAddr::from_pathname(path)?;
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => Err(Errno::EADDRINUSE.into()),
            _ => self.creatable(path),
        }
    }

    /// Checks that `path` is a directory that can be used, or that it can be created with those
    /// above it.
    fn directory(&self, path: &Path) -> io::Result<()> {
        let mut nearest = path;
        while fs::metadata(nearest).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let above = parent(nearest);
            if above == nearest {
                break;
            }
            nearest = above;
        }
        if nearest == path && !fs::metadata(path)?.is_dir() {
            return Err(Errno::EEXIST.into());
        }
        self.open_directory(nearest)
    }
}

/// The directory of `path`.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => path,
    }
}

/// Appends `ending` to the file name of `path`.
fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
mod tests;
