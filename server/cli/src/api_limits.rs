//! `tollgate limits ...`: limits, overrides and keys over the HTTP API.
//!
//! Here: the command line. Not here: the requests sent for it (`limits_api`), the same over the
//! client port (`limits`).

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use tollgate::config::ConfigError;

use super::admin_client::{AdminClient, AdminFlags};
use super::limits_api::LimitsApi;
use super::{CliError, Parsed, help_or, parse_words, word};

/// The longest time for an override, in milliseconds: ten years, as of the server.
const LIFE_MS_MAX: u64 = 10 * 366 * 86_400_000;

/// Show and change limits, through the admin listener of a server
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate limits", disable_help_subcommand = true, term_width = 100)]
pub struct ApiLimitsRequest {
    #[command(subcommand)]
    verb: LimitsVerb,
    #[command(flatten)]
    admin: AdminFlags,
}

/// The flags of every change of one limit.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct ChangeFlags {
    /// Reason, for history
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
    /// Change it only if it has this version; 0: only if there is none [default: any version]
    #[arg(long, value_name = "VERSION")]
    pub(super) if_version: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub(super) enum LimitsVerb {
    /// List the limits in their order
    List {
        /// Only limits with this text in their name, pattern or owner
        #[arg(value_name = "TEXT")]
        text: Option<String>,
        /// Only limits of this source: file, api or rls
        #[arg(long, value_name = "SOURCE", value_parser = ["file", "api", "rls"])]
        source: Option<String>,
        /// Only limits of this owner
        #[arg(long, value_name = "OWNER")]
        owner: Option<String>,
    },
    /// Print a limit as TOML
    Get {
        /// Name of the limit
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
    },
    /// Create or replace the limit of a file
    Put {
        /// File with one limit; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Insert the limit right before this one
        #[arg(long, value_name = "NAME", value_parser = word)]
        before: Option<String>,
        /// Only check the limit
        #[arg(long)]
        dry_run: bool,
        /// Take the limit over from the file that manages it; for admins
        #[arg(long)]
        adopt: bool,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// Remove a limit
    Remove {
        /// Name of the limit
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
        #[command(flatten)]
        change: ChangeFlags,
    },
    /// List the changes of a limit, newest first
    History {
        /// Name of the limit
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
    },
    /// Give a limit the text that it had after a change
    Revert {
        /// Name of the limit
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
        /// Number of the change, as history shows it
        #[arg(value_name = "SEQ")]
        seq: u64,
        /// Change it only if it has this version; 0: only if there is none [default: any version]
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Show the decisions of a limit and its busiest keys
    Report {
        /// Name of the limit
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
        /// Minutes that the report covers, at most 2880
        #[arg(long, value_name = "NUM", default_value_t = 60)]
        minutes: u64,
    },
    /// Show what the limit of a file would have done to the recorded traffic
    Try {
        /// File with one limit; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Minutes of traffic, at most 60
        #[arg(long, value_name = "NUM", default_value_t = 60)]
        minutes: u64,
        /// Ask all nodes of the cluster
        #[arg(long)]
        cluster: bool,
    },
    /// Print all limits as a limits file
    Export,
    /// Put the limits of a limits file
    Import {
        /// The limits file; - reads standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Also remove limits of the API that the file lacks
        #[arg(long)]
        replace: bool,
        /// Only check the file and print the changes
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a key pass, whatever it has used
    Allow(KeyFlags),
    /// Refuse a key
    Block(KeyFlags),
    /// Give a key another policy, or take its override away
    Override {
        #[command(flatten)]
        key: KeyFlags,
        /// The policy, allow or block
        #[arg(value_name = "POLICY", required_unless_present = "remove")]
        policy: Option<String>,
        /// Remove the override
        #[arg(long, conflicts_with_all = ["policy", "life_ms"])]
        remove: bool,
    },
    /// Show the limit of a key
    Match {
        /// The key
        #[arg(value_name = "KEY")]
        key: String,
    },
}

/// The key of an override.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct KeyFlags {
    /// Name of the limit
    #[arg(value_name = "NAME", value_parser = word)]
    pub(super) name: String,
    /// The counted key, a prefix with *, or a literal with a network
    #[arg(value_name = "KEY")]
    pub(super) key: String,
    /// Time until the override ends, such as 30s, 15m, 2h or 7d [default: it stays]
    #[arg(long = "for", value_name = "TIME", value_parser = life_ms)]
    pub(super) life_ms: Option<u64>,
    /// Reason, for history
    #[arg(long, value_name = "TEXT")]
    pub(super) note: Option<String>,
}

/// Parses a time span into milliseconds.
fn life_ms(text: &str) -> Result<u64, String> {
    let units = [
        ("ms", 1),
        ("s", 1000),
        ("m", 60_000),
        ("h", 3_600_000),
        ("d", 86_400_000),
        ("w", 604_800_000),
    ];
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = units.iter().find(|(word, _)| *word == unit).map(|(_, ms)| *ms);
    let ms = digits.parse::<u64>().ok().zip(unit).and_then(|(count, ms)| count.checked_mul(ms));
    ms.filter(|ms| (1..=LIFE_MS_MAX).contains(ms))
        .ok_or_else(|| "expected a time such as 30s, 15m, 2h or 7d, at most ten years".to_owned())
}

/// The forms of `tollgate limits`.
const USAGE: &str = "write tollgate limits list, get NAME, put FILE, remove NAME, history NAME, \
                     revert NAME SEQ, report NAME, try FILE, export, import FILE, allow NAME KEY, \
                     block NAME KEY, override NAME KEY POLICY or match KEY; --help tells more";

/// Parses the words after `limits`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<ApiLimitsRequest>(words) {
        Ok(request) => {
            request.admin.check()?;
            Ok(Parsed::Limits(request))
        }
        Err(error) => help_or(error, USAGE),
    }
}

impl ApiLimitsRequest {
    /// Runs the command and prints its result on `out`.
    ///
    /// # Errors
    ///
    /// The server does not answer or refuses, or a file cannot be used.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let api = LimitsApi { client: AdminClient::new(&self.admin)?, json: self.admin.json };
        api.run(&self.verb, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<LimitsVerb, String> {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        match parse(&words) {
            Ok(Parsed::Limits(request)) => Ok(request.verb),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn command_lines_are_read() {
        let key = |life_ms| KeyFlags {
            name: "login".to_owned(),
            key: "login:a".to_owned(),
            life_ms,
            note: None,
        };
        assert_eq!(
            parsed("block login login:a --for 2h"),
            Ok(LimitsVerb::Block(key(Some(7_200_000))))
        );
        let removed = LimitsVerb::Override { key: key(None), policy: None, remove: true };
        assert_eq!(parsed("override login login:a --remove"), Ok(removed));
        let policy = Some("fixed:5/m".to_owned());
        let put = LimitsVerb::Override { key: key(None), policy, remove: false };
        assert_eq!(parsed("override login login:a fixed:5/m"), Ok(put));
        for wrong in [
            "",
            "x",
            "get",
            "get a b",
            "block login",
            "override login login:a",
            "block login a --for x",
            "put f --if-version x",
            "--admin x list",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        for (text, ms) in
            [("1ms", 1), ("30s", 30_000), ("15m", 900_000), ("2h", 7_200_000), ("1w", 604_800_000)]
        {
            assert_eq!(life_ms(text), Ok(ms));
        }
        for text in ["", "2", "h", "0s", "-1s", "2 h", "2hours", "99999999999999999999d", "600w"] {
            assert!(life_ms(text).is_err(), "{text}");
        }
    }
}
