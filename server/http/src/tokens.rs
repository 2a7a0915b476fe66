//! The tokens file: the users of the admin listener, and their rights.
//!
//! A line is `<name> <role> <sha256 of the token, in hex> [names=<prefix>] [keys=<prefix>]`. Empty
//! lines and lines that begin with `#` are skipped. Tokens are random, so their hash needs no salt
//! and no slow function.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The first letters of a token, by which scanners for leaked secrets find it.
const TOKEN_PREFIX: &str = "tg_";

/// The rights of a token. From `Viewer` on, each role has the rights of all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenRole {
    /// Reads metrics.
    Metrics,
    /// Uses the gateway.
    Check,
    /// Reads everything but the audit log.
    Viewer,
    /// Reads, and changes overrides and single keys.
    Support,
    /// Reads, and changes limits too.
    Editor,
    /// Everything.
    Admin,
}

impl TokenRole {
    /// All roles with their words.
    const WORDS: [(&'static str, Self); 6] = [
        ("metrics", Self::Metrics),
        ("check", Self::Check),
        ("viewer", Self::Viewer),
        ("support", Self::Support),
        ("editor", Self::Editor),
        ("admin", Self::Admin),
    ];

    /// Returns the role of a word.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, role)| *role)
    }

    /// Returns whether the role may read metrics.
    #[must_use]
    pub fn reads_metrics(self) -> bool {
        self != Self::Check
    }
}

impl fmt::Display for TokenRole {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, role)| role == self).map_or("", |(name, _)| name);
        out.write_str(word)
    }
}

/// A line of the tokens file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLine {
    /// The name that logs show.
    pub name: String,
    /// The role.
    pub role: TokenRole,
    /// The SHA-256 of the token.
    pub(crate) digest: [u8; 32],
    /// Only limits whose names begin so.
    pub names: String,
    /// Only keys that begin so.
    pub keys: String,
}

/// All tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    lines: Vec<TokenLine>,
}

/// The reason why a tokens file is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The mistake.
        reason: String,
    },
    /// The file has no token: it would refuse every user.
    #[error("{}: no token; add a line that `tollgate token NAME ROLE` prints", .0.display())]
    Empty(PathBuf),
}

impl Tokens {
    /// Parses the text of the tokens file at `path`, which errors name.
    ///
    /// # Errors
    ///
    /// The first mistake of the file.
    pub fn parse(path: &Path, text: &str) -> Result<Self, TokensError> {
        let tokens = Self::parse_lines(text).map_err(|(line, reason)| TokensError::Line {
            path: path.to_owned(),
            line,
            reason,
        })?;
        if tokens.lines.is_empty() {
            return Err(TokensError::Empty(path.to_owned()));
        }
        Ok(tokens)
    }

    /// Parses the text of a tokens file. An error is the number of a line and its mistake.
    fn parse_lines(text: &str) -> Result<Self, (usize, String)> {
        let mut tokens = Self::default();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let token = TokenLine::parse(text).map_err(|reason| (line, reason))?;
            if tokens.lines.iter().any(|other| other.name == token.name) {
                return Err((line, format!("the name {} occurs twice", token.name)));
            }
            if let Some(other) = tokens.lines.iter().find(|other| other.digest == token.digest) {
                return Err((line, format!("{} has the token of {}", token.name, other.name)));
            }
            tokens.lines.push(token);
        }
        Ok(tokens)
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Returns the line of a token. Takes the same time for every token.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<&TokenLine> {
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for line in &self.lines {
            if bool::from(line.digest.ct_eq(&digest)) {
                found = Some(line);
            }
        }
        found
    }

    /// Returns the line of the token with this SHA-256, which the caller must have from here.
    pub(crate) fn find_digest(&self, digest: &[u8; 32]) -> Option<&TokenLine> {
        self.lines.iter().find(|line| line.digest == *digest)
    }

    /// Returns whether reading metrics requires a token: some line has the role `metrics`.
    #[must_use]
    pub fn guards_metrics(&self) -> bool {
        self.lines.iter().any(|line| line.role == TokenRole::Metrics)
    }
}

impl TokenLine {
    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let (Some(name), Some(role), Some(digest)) = (words.next(), words.next(), words.next())
        else {
            return Err("expected a name, a role and a SHA-256 in hex".to_owned());
        };
        let role = TokenRole::of(role).ok_or_else(|| {
            format!("no role {role}; expected metrics, check, viewer, support, editor or admin")
        })?;
        let digest = digest_of_hex(digest)
            .ok_or("the third word is no SHA-256: expected 64 hexadecimal digits")?;
        let mut token =
            Self { name: name.to_owned(), role, digest, names: String::new(), keys: String::new() };
        for word in words {
            let (prefix, field) = match word.split_once('=') {
                Some(("names", prefix)) => (prefix, &mut token.names),
                Some(("keys", prefix)) => (prefix, &mut token.keys),
                _ => return Err(format!("expected names=PREFIX or keys=PREFIX, not {word}")),
            };
            if prefix.is_empty() || !field.is_empty() {
                return Err(format!("{word}: each prefix is given once, and not empty"));
            }
            prefix.clone_into(field);
        }
        Ok(token)
    }
}

fn digest_of_hex(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        let digit = |letter: &u8| {
            char::from(*letter).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
        };
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(digest)
}

/// Returns the token of 32 random bytes, and its SHA-256 in hexadecimal for the tokens file.
#[must_use]
pub fn new_token(random: [u8; 32]) -> (String, String) {
    let token = format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(random));
    let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    let mut hex = String::with_capacity(2 * digest.len());
    for byte in digest {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    (token, hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_token_is_found_by_its_line() {
        let (token, hex) = new_token([7; 32]);
        assert!(token.starts_with("tg_") && token.len() == 46, "{token}");
        let file = format!("# ours\n\nalice editor {hex} names=team-a/ keys=team-a:\n");
        let tokens = Tokens::parse_lines(&file).expect("it is well formed");
        let line = tokens.find(&token).expect("it is there");
        assert_eq!((line.name.as_str(), line.role), ("alice", TokenRole::Editor));
        assert_eq!((line.names.as_str(), line.keys.as_str()), ("team-a/", "team-a:"));
        assert_eq!(tokens.find("tg_"), None);
        assert!(!tokens.guards_metrics());
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        let hex = new_token([1; 32]).1;
        for (file, line, reason) in [
            ("alice".to_owned(), 1, "expected a name"),
            (format!("\nalice boss {hex}"), 2, "no role boss"),
            (format!("alice admin {}", &hex[1..]), 1, "no SHA-256"),
            (format!("alice admin {}g", &hex[1..]), 1, "no SHA-256"),
            (format!("alice admin {hex} limits=x"), 1, "not limits=x"),
            (format!("alice admin {hex} names= keys=a:"), 1, "names=: each prefix"),
            (format!("alice admin {hex} keys="), 1, "not empty"),
            (format!("alice admin {hex} keys=a: names=x keys=b:"), 1, "keys=b:: each prefix"),
            (format!("a admin {hex}\na viewer {hex}"), 2, "occurs twice"),
            (format!("a admin {hex}\nb viewer {hex}"), 2, "b has the token of a"),
        ] {
            let (at, text) = Tokens::parse_lines(&file).expect_err(&file);
            assert!(at == line && text.contains(reason), "{file}: {at}: {text}");
        }
    }
}
