//! The auth file (`-Y`): the users that may log in over the text protocol.
//!
//! Here: parsing `user:pass` lines, reading the file again, checking a login. Not here: the
//! exchange (`set` with `user pass` as its value), and the restrictions of an unauthenticated
//! client (`connection`). Source: memcached 1.6, `authfile.c`; stricter rules are marked as such.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tollgate_limits::files;

use crate::config::LINE_BYTES_MAX;

/// Maximum number of users in a file. memcached reads 8 and silently ignores the others; here a
/// file with more users is refused.
pub const USERS_MAX: usize = 64;
/// Maximum size of a file: lines of maximum length with `\r\n`.
const FILE_BYTES_MAX: usize = USERS_MAX * (LINE_BYTES_MAX + 2);

/// The users of an auth file.
pub struct AuthFile {
    path: PathBuf,
    /// Never empty: a file without users is refused.
    users: Vec<Secret>,
}

/// The reason why an auth file was refused. No variant repeats the content of the file.
#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    /// The file cannot be opened or read.
    #[error("cannot read auth file {}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A line is not `user:pass`.
    #[error("{}:{line}: {reason}", path.display())]
    Malformed {
        /// The path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The defect of the line.
        reason: &'static str,
    },
    /// More than [`USERS_MAX`] users, or more bytes than that number of users can need.
    #[error("{}: more than {USERS_MAX} users", path.display())]
    TooMany {
        /// The path of the file.
        path: PathBuf,
    },
    /// No user, so that no client could log in.
    #[error("{}: no user:pass line", path.display())]
    Empty {
        /// The path of the file.
        path: PathBuf,
    },
}

impl AuthFile {
    /// Reads the file. Empty lines are skipped; if a user has several passwords, each is valid.
    ///
    /// # Errors
    ///
    /// The file cannot be read, has a line that is not `user:pass`, or has no users or too many.
    pub fn load(path: &Path) -> Result<Self, AuthError> {
        Ok(Self { path: path.to_owned(), users: read(path)? })
    }

    /// Reads the file again. After an error the users stay as they were.
    ///
    /// # Errors
    ///
    /// The errors of [`AuthFile::load`].
    pub fn reload(&mut self) -> Result<(), AuthError> {
        self.users = read(&self.path)?;
        Ok(())
    }

    /// Whether `attempt`, the value of the client's `set` without its `\r\n`, is `user pass` of a
    /// user.
    ///
    /// Takes constant time: `attempt` is compared with all users, each to the last byte, so that
    /// its duration reveals nothing.
    #[must_use]
    pub fn check(&self, attempt: &[u8]) -> bool {
        let fits = attempt.len() <= LINE_BYTES_MAX;
        let attempt = Secret::new(if fits { attempt } else { &[] });
        let matches = self.users.iter().fold(0_u32, |matches, user| {
            matches | u32::from(black_box(user.difference(&attempt)) == 0)
        });
        // The sender knows the length of its attempt, so the short-circuit reveals nothing.
        fits && matches != 0
    }
}

/// Passwords stay out of logs.
impl fmt::Debug for AuthFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.users.len();
        out.debug_struct("AuthFile").field("path", &self.path).field("users", &users).finish()
    }
}

/// `user pass`, padded so that a comparison takes constant time.
///
/// One string suffices for the pair: a user contains no blank, so the first blank ends it.
struct Secret {
    bytes: [u8; LINE_BYTES_MAX],
    len: usize,
}

impl Secret {
    /// `text` has at most [`LINE_BYTES_MAX`] bytes.
    fn new(text: &[u8]) -> Self {
        let mut bytes = [0; LINE_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Self { bytes, len: text.len() }
    }

    /// Zero if both are equal. Runs in constant time.
    fn difference(&self, other: &Self) -> usize {
        let pairs = self.bytes.iter().zip(&other.bytes);
        pairs.fold(self.len ^ other.len, |seen, (a, b)| black_box(seen | usize::from(a ^ b)))
    }
}

fn read(path: &Path) -> Result<Vec<Secret>, AuthError> {
    let mut text = Vec::new();
    files::must_be_regular(path)
        .and_then(|()| File::open(path))
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut text))
        .map_err(|source| AuthError::Unreadable { path: path.to_owned(), source })?;
    if text.len() > FILE_BYTES_MAX {
        return Err(AuthError::TooMany { path: path.to_owned() });
    }
    let mut users = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        if users.len() == USERS_MAX {
            return Err(AuthError::TooMany { path: path.to_owned() });
        }
        users.push(parse(line).map_err(|reason| AuthError::Malformed {
            path: path.to_owned(),
            line: index + 1,
            reason,
        })?);
    }
    if users.is_empty() { Err(AuthError::Empty { path: path.to_owned() }) } else { Ok(users) }
}

/// Parses `user:pass`. Stricter than memcached, which accepts an empty user, an empty password, and
/// a user with a blank, which can never log in.
fn parse(line: &[u8]) -> Result<Secret, &'static str> {
    if line.len() > LINE_BYTES_MAX {
        return Err("the line is longer than 254 bytes");
    }
    if line.iter().any(|byte| matches!(byte, 0 | b'\r')) {
        return Err("the line holds a control byte");
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or("expected user:pass")?;
    match (&line[..colon], &line[colon + 1..]) {
        ([], _) => Err("the user is empty"),
        (_, []) => Err("the password is empty"),
        (user, _) if user.contains(&b' ') => Err("the user holds a blank"),
        (user, password) => Ok(Secret::new(&[user, password].join(&b' '))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads a file with this text. The returned directory must outlive the users.
    fn load(text: impl AsRef<[u8]>) -> (tempfile::TempDir, Result<AuthFile, AuthError>) {
        let dir = tempfile::tempdir().expect("a directory for one file");
        let path = dir.path().join("users");
        std::fs::write(&path, text).expect("the directory is ours");
        let loaded = AuthFile::load(&path);
        (dir, loaded)
    }

    fn check(text: impl AsRef<[u8]>, attempt: impl AsRef<[u8]>) -> bool {
        load(text).1.expect("a good file").check(attempt.as_ref())
    }

    #[test]
    fn user_and_password_must_both_be_right() {
        assert!(check("foo:bar\nbaz:qux\n", "foo bar"));
        assert!(check("foo:bar\nbaz:qux\n", "baz qux"));
        for wrong in
            ["foo qux", "foo ba", "foo barr", "fo obar", "foo:bar", "foo", "", " ", "foo bar "]
        {
            assert!(!check("foo:bar\nbaz:qux\n", wrong), "{wrong:?}");
        }
    }

    #[test]
    fn padding_is_not_part_of_a_password() {
        assert!(!check("foo:bar\n", b"foo bar\0"));
        assert!(!check("foo:bar\n", [b'x'; LINE_BYTES_MAX + 1]));
        assert!(!check("foo:bar\n", vec![0; 4096]));
    }

    #[test]
    fn line_ends_and_odd_passwords_are_kept_to_the_byte() {
        assert!(check("foo:bar", "foo bar"));
        assert!(check("foo:bar\r\n\r\nbaz:qux\r\n", "baz qux"));
        assert!(check("foo:a:b c \n", "foo a:b c "));
        assert!(check(b"foo:\xff\xfe\n", b"foo \xff\xfe"));
    }

    #[test]
    fn two_passwords_of_one_user_both_count() {
        assert!(check("foo:old\nfoo:new\n", "foo old"));
        assert!(check("foo:old\nfoo:new\n", "foo new"));
    }

    #[test]
    fn a_bad_file_is_refused_without_its_content() {
        let long = format!("u:{}", "p".repeat(LINE_BYTES_MAX - 1));
        for (text, reason) in [
            ("", "no user:pass line"),
            ("\n\n", "no user:pass line"),
            ("a:b\nsecret\n", ":2: expected user:pass"),
            (":secret\n", ":1: the user is empty"),
            ("a:\n", ":1: the password is empty"),
            ("a b:secret\n", ":1: the user holds a blank"),
            ("a:b\0c\n", ":1: the line holds a control byte"),
            (&long, ":1: the line is longer than 254 bytes"),
        ] {
            let error = load(text).1.expect_err(text).to_string();
            assert!(error.ends_with(reason), "{text:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn bounds_hold_and_one_past_them_is_refused() {
        let full = |users: usize| {
            let password = "p".repeat(LINE_BYTES_MAX - 4);
            (0..users).fold(String::new(), |text, n| text + &format!("u{n:02}:{password}\r\n"))
        };
        let last = format!("u{:02} {}", USERS_MAX - 1, "p".repeat(LINE_BYTES_MAX - 4));
        assert!(check(full(USERS_MAX), last));
        assert!(matches!(load(full(USERS_MAX + 1)).1, Err(AuthError::TooMany { .. })));
        assert!(matches!(load("u:p\n".repeat(USERS_MAX + 1)).1, Err(AuthError::TooMany { .. })));
    }

    #[test]
    fn a_reload_of_a_bad_file_keeps_the_old_users() {
        let (dir, loaded) = load("foo:bar\n");
        let mut users = loaded.expect("a good file");
        let path = dir.path().join("users");
        std::fs::write(&path, "foo:new\n").expect("the directory is ours");
        users.reload().expect("a good file");
        assert!(users.check(b"foo new") && !users.check(b"foo bar"));

        std::fs::write(&path, "").expect("the directory is ours");
        users.reload().expect_err("an empty file");
        assert!(users.check(b"foo new"));

        std::fs::remove_file(&path).expect("the directory is ours");
        assert!(matches!(users.reload(), Err(AuthError::Unreadable { .. })));
        assert!(users.check(b"foo new"));
    }

    #[test]
    fn debug_shows_no_password() {
        let shown = format!("{:?}", load("foo:secret\n").1);
        assert!(shown.contains("users: 1") && !shown.contains("secret"), "{shown}");
    }
}
