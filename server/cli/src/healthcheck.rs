//! `tollgate healthcheck`: asks a server through its client port whether it is alive and ready, for
//! images without a shell.

use std::ffi::OsString;
use std::io::Write;

use tollgate::config::ConfigError;

use super::client::ServerClient;
use super::{CliError, Parsed, help_of, is_ready, login, parse_words, server_address};

/// Exit with 0 if the server answers and, in a cluster, is ready; else print the reason and exit
/// with 1
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate healthcheck", term_width = 100)]
pub struct HealthcheckRequest {
    /// Check only that the server answers
    #[arg(long)]
    live: bool,
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = super::server,
        help = "Address of the server: host, host:port, or the path of its socket, which contains \
                a slash [default: TOLLGATE_ADMIN_SOCKET, or 127.0.0.1:11211]"
    )]
    server: Option<String>,
    #[command(flatten)]
    login: login::LoginFlags,
}

/// Parses the words after `healthcheck`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<HealthcheckRequest>(words) {
        Ok(request) => {
            request.login.check()?;
            Ok(Parsed::Healthcheck(request))
        }
        Err(error) => help_of(error),
    }
}

impl HealthcheckRequest {
    /// Asks the server and prints `ok` on `out`.
    ///
    /// # Errors
    ///
    /// The server does not answer, refuses the login, or is not ready.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let credentials = self.login.credentials()?;
        let mut server = ServerClient::connect(&server_address(self.server.as_ref()), credentials)?;
        server.answers()?;
        if !self.live {
            match server.stats("cluster") {
                Ok(stats) => is_ready(&stats)?,
                // A lone server is ready when it answers.
                Err(CliError::NoCluster(_)) => {}
                Err(error) => return Err(error),
            }
        }
        writeln!(out, "ok")?;
        Ok(())
    }
}
