//! `tollgate token`: makes a token for the admin listener.
//!
//! Here: its command line, and the random bytes. Not here: the tokens file (`tollgate-http`).

use std::ffi::OsString;
use std::io::Write;

use tollgate::config::ConfigError;
use tollgate::net::random;
use tollgate_http::{TokenRole, new_token};

use super::{CliError, Parsed, help_or, parse_words};

/// Print a new token for the admin listener, and its line for the file of --tokens
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate token", term_width = 100)]
pub struct TokenRequest {
    /// Name that logs show for the token
    #[arg(value_name = "NAME", value_parser = super::word)]
    name: String,
    /// Role of the token: metrics, check, viewer, support, editor or admin
    #[arg(value_name = "ROLE", value_parser = role)]
    role: TokenRole,
}

fn role(text: &str) -> Result<TokenRole, String> {
    TokenRole::of(text)
        .ok_or_else(|| "expected metrics, check, viewer, support, editor or admin".to_owned())
}

/// Parses the words after `token`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words(words) {
        Ok(request) => Ok(Parsed::Token(request)),
        Err(error) => help_or(error, "write tollgate token NAME ROLE"),
    }
}

impl TokenRequest {
    /// Prints a new token and its line on `out`.
    ///
    /// # Errors
    ///
    /// The system has no random bytes, or the output cannot be written.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let mut bytes = [0; 32];
        random::fill(&mut bytes)?;
        let (token, digest) = new_token(bytes);
        writeln!(out, "{token}")?;
        writeln!(out, "{} {} {digest}", self.name, self.role)?;
        Ok(())
    }
}
