//! Files that an operator names, read whole.
//!
//! Here: a file that is no regular one, or is too large, is refused before it is read: a pipe would
//! keep the server waiting for ever, a device would fill its memory. Not here: what is in them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// The bytes of the regular file at `path`, which are at most `bytes_max`.
///
/// # Errors
///
/// What the system says; another kind of file; more bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    must_be_regular(path)?;
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Refuses what `path` names unless it is a regular file, or a link to one.
///
/// # Errors
///
/// What the system says, or that it is another kind of file.
pub(crate) fn must_be_regular(path: &Path) -> io::Result<()> {
    // Opening a pipe would wait for its other end, so it is looked at first.
    let kind = std::fs::metadata(path)?;
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(())
}

/// Refuses a place where a file is to be written, or renamed to, if anything but a regular file is there.
///
/// # Errors
///
/// What the system says, or that it is another kind of file.
pub(crate) fn must_be_replaceable(path: &Path) -> io::Result<()> {
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
