//! `tollgate generate`: the manual page and the completions that packages ship.

use std::ffi::OsString;
use std::io::Write;

use clap::CommandFactory as _;
use clap_complete::Shell;
use tollgate::config::sub_commands::{
    CHECK_LIMITS, CLUSTER, EXPLAIN, GENERATE, HEALTHCHECK, LIMITS, SNAPSHOT, TOKEN, TOP,
};
use tollgate::config::{self, ConfigError};

use super::{
    ApiLimitsRequest, CheckLimitsRequest, CliError, CliRequest, ExplainRequest, HealthcheckRequest,
    Parsed, SnapshotRequest, TokenRequest, TopRequest, doctor, help_or, parse_words,
};

/// Print the manual page, or the completions of a shell
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate generate", term_width = 100)]
pub struct GenerateRequest {
    /// man, bash, zsh or fish
    #[arg(value_name = "KIND")]
    kind: GenerateKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum GenerateKind {
    Man,
    Bash,
    Zsh,
    Fish,
}

/// Parses the words after `generate`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words(words) {
        Ok(request) => Ok(Parsed::Generate(request)),
        Err(error) => help_or(error, "write tollgate generate man|bash|zsh|fish"),
    }
}

/// The whole program: the server's flags and all sub-commands.
pub(crate) fn program() -> clap::Command {
    let sub_commands = [
        CheckLimitsRequest::command().name(CHECK_LIMITS),
        CliRequest::command().name(CLUSTER),
        doctor::command(),
        ExplainRequest::command().name(EXPLAIN),
        GenerateRequest::command().name(GENERATE),
        HealthcheckRequest::command().name(HEALTHCHECK),
        ApiLimitsRequest::command().name(LIMITS),
        SnapshotRequest::command().name(SNAPSHOT),
        TokenRequest::command().name(TOKEN),
        TopRequest::command().name(TOP),
    ];
    config::shown_flags()
        .name("tollgate")
        .about("A memcached-compatible counter and rate limit server")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .subcommands(sub_commands)
}

impl GenerateRequest {
    /// Prints the text on `out`.
    ///
    /// # Errors
    ///
    /// The output cannot be written.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let mut command = program();
        let shell = match self.kind {
            GenerateKind::Man => {
                manual(command, out)?;
                return Ok(());
            }
            GenerateKind::Bash => Shell::Bash,
            GenerateKind::Zsh => Shell::Zsh,
            GenerateKind::Fish => Shell::Fish,
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command, "tollgate", &mut text);
        out.write_all(&text)?;
        Ok(())
    }
}

/// Prints the manual page: the flags of the server, and one sentence on each sub-command, whose
/// own flags `--help` tells.
fn manual(command: clap::Command, out: &mut impl Write) -> std::io::Result<()> {
    let sentence = |sub: &clap::Command| {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        format!(".TP\n\\fBtollgate {}\\fR\n{}\n", sub.get_name(), about.replace('\\', "\\e"))
    };
    let commands: String = command.get_subcommands().map(sentence).collect();
    let page = clap_mangen::Man::new(command);
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    page.render_options_section(out)?;
    write!(
        out,
        ".SH COMMANDS\n{commands}.PP\n\\fBtollgate\\fR \\fICOMMAND\\fR --help tells more.\n"
    )
}
