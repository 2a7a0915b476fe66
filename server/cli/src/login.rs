//! The login of an operator at a server that requires a password.
//!
//! Here: the sources of user and password. Not here: the exchange with the server (`client`), the
//! server's users (`server`).

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use tollgate::config::{ConfigError, LINE_BYTES_MAX, PASSWORD_VARIABLE};

use super::CliError;

/// Maximum length of `user password`, the bound of a line in the server's auth file.
const BYTES_MAX: usize = LINE_BYTES_MAX;

#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[expect(clippy::doc_markdown, reason = "a terminal shows these lines, and would show backticks")]
pub(super) struct LoginFlags {
    /// Log in as this user if the server requires a password; the password is read from
    /// --password-file, TOLLGATE_PASSWORD or the terminal
    #[arg(long, global = true, value_name = "USER", value_parser = user)]
    pub(super) login: Option<String>,
    /// File that contains the password and nothing else
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) password_file: Option<PathBuf>,
}

/// A user and password.
#[derive(Clone)]
pub(super) struct Credentials(String);

impl Credentials {
    /// The data block of the `set` that logs in.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Passwords stay out of logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Credentials")
    }
}

fn user(text: &str) -> Result<String, String> {
    let odd = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    if text.is_empty() || text.contains(odd) {
        return Err("expected a user: one word without a colon".to_owned());
    }
    Ok(text.to_owned())
}

impl LoginFlags {
    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// `--password-file` without `--login`.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match (&self.login, &self.password_file) {
            (None, Some(_)) => {
                Err(ConfigError::Usage("--password-file needs --login USER".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Reads the password. `None` without `--login`.
    ///
    /// # Errors
    ///
    /// A password that cannot be read, or one that an auth file cannot contain.
    pub(super) fn credentials(&self) -> Result<Option<Credentials>, CliError> {
        let refused = |why: &str| CliError::Login(why.to_owned());
        let Some(user) = &self.login else { return Ok(None) };
        let password = match (&self.password_file, std::env::var_os(PASSWORD_VARIABLE)) {
            (Some(path), _) => read(path)
                .map_err(|error| CliError::Login(format!("{}: {error}", path.display())))?,
            (None, Some(text)) => {
                text.into_string().map_err(|_| refused("TOLLGATE_PASSWORD is not UTF-8"))?
            }
            (None, None) => {
                rpassword::prompt_password(format!("Password of {user}: ")).map_err(|error| {
                    let instead = "use --password-file or TOLLGATE_PASSWORD";
                    CliError::Login(format!("cannot ask for a password ({error}): {instead}"))
                })?
            }
        };
        if password.is_empty() || password.contains(['\0', '\r', '\n']) {
            return Err(refused("the password must be one line of at least one character"));
        }
        let both = format!("{user} {password}");
        if both.len() > BYTES_MAX {
            return Err(refused("user and password are longer than a server can know"));
        }
        Ok(Some(Credentials(both)))
    }
}

/// Reads a file, without the line end of its last line.
fn read(path: &PathBuf) -> io::Result<String> {
    let mut text = String::new();
    // One byte above the bound, and a CRLF.
    File::open(path)?.take(BYTES_MAX as u64 + 3).read_to_string(&mut text)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}
