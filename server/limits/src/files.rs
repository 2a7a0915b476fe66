//! Whole files that an operator names: reading them, and their versions.
//!
//! Here: refusing a file before reading it if it is not regular or is too large: a pipe would block
//! the server for ever, a device would exhaust its memory. Not here: the content of files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The version of a file: its device, inode, length in bytes, and the seconds and nanoseconds of
/// the last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMark {
    device: u64,
    inode: u64,
    /// The length, in bytes.
    pub(crate) bytes: u64,
    written: (i64, i64),
}

impl FileMark {
    /// Returns the version of the file at `path`; `None`: there is none.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let data = std::fs::metadata(path).ok()?;
        Some(Self {
            device: data.dev(),
            inode: data.ino(),
            bytes: data.size(),
            written: (data.mtime(), data.mtime_nsec()),
        })
    }
}

/// Reads the regular file at `path`, which must not have more than `bytes_max` bytes.
///
/// # Errors
///
/// The system's error, another kind of file, or a larger file.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    must_be_regular(path)?;
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Checks that `path` is a regular file, or a symbolic link to one.
///
/// # Errors
///
/// The system's error, or another kind of file.
pub fn must_be_regular(path: &Path) -> io::Result<()> {
    // Checked before opening, because opening a pipe waits for its other end.
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(())
}

/// Checks that a file may be written to `path`, or renamed to it: there is none, or a regular one.
///
/// # Errors
///
/// The system's error, or another kind of file.
pub fn must_be_replaceable(path: &Path) -> io::Result<()> {
    match must_be_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        checked => checked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bounded_regular_file_is_read() {
        let folder = tempfile::tempdir().expect("a directory for a few files");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "12345").expect("the directory is ours");
        std::os::unix::fs::symlink(at("file"), at("link")).expect("the directory is ours");
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("it is ours");
        let check = |path: &Path, bytes_max| read(path, bytes_max).map_err(|e| e.to_string());
        assert_eq!(check(&at("file"), 5), Ok(b"12345".to_vec()));
        assert_eq!(check(&at("link"), 9), Ok(b"12345".to_vec()));
        assert_eq!(check(&at("file"), 4), Err("it has more than 4 bytes".to_owned()));
        for path in [&at("pipe"), Path::new("/dev/zero")] {
            assert_eq!(check(path, 9), Err("it is not a regular file".to_owned()));
        }
        assert_eq!(check(folder.path(), 9), Err("is a directory".to_owned()));
        assert!(check(&at("none"), 9).is_err());
    }
}
