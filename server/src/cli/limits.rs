//! `tollgate cluster limits ...`: the limits of the whole cluster, shown and changed.
//!
//! Here: its words, and which lines are sent for them. Not here: whether a limit is good with the
//! others, which the node that is asked knows (`node::limits`).

use std::io::Write;
use std::path::PathBuf;

use super::client::ServerClient;
use super::{CliError, show, word};
use crate::limits::map_text::LimitText;
use crate::limits::{LimitsError, read};

#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub(super) enum LimitsAction {
    /// Print them as a limits file
    Get,
    /// Put each limit of a file where one of its name is, or behind all others
    Put {
        /// The limits file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Put them right before this limit
        #[arg(long, value_name = "NAME", value_parser = word)]
        before: Option<String>,
    },
    /// Remove a limit; keys that counted under it remember until they expire or are deleted
    Remove {
        /// Its name
        #[arg(value_name = "NAME", value_parser = word)]
        name: String,
    },
}

pub(super) fn run(
    server: &mut ServerClient,
    what: &LimitsAction,
    json: bool,
    out: &mut impl Write,
) -> Result<(), CliError> {
    match what {
        LimitsAction::Get => {
            let text = server.limits()?;
            out.write_all(show::limits(&text, json).as_bytes())?;
            return Ok(());
        }
        LimitsAction::Put { file, before } => {
            let texts = LimitText::each(&file.display().to_string(), &read(file)?)?;
            if texts.is_empty() {
                return Err(LimitsError::Empty { path: file.clone() }.into());
            }
            put(server, texts, before.as_deref())?;
        }
        LimitsAction::Remove { name } => server.command(&format!("cluster unlimit {name}"))?,
    }
    out.write_all(show::done(json).as_bytes())?;
    Ok(())
}

/// Puts all of them. A limit that wants another one beside it is put after that one, wherever both stand
/// in the file.
fn put(
    server: &mut ServerClient,
    mut texts: Vec<LimitText>,
    before: Option<&str>,
) -> Result<(), CliError> {
    let before = before.map_or_else(String::new, |name| format!(" before={name}"));
    while !texts.is_empty() {
        let (count, mut refused, mut left) = (texts.len(), None, Vec::new());
        for text in texts {
            let LimitText { name, toml } = &text;
            match server.command(&format!("cluster limit {name} {}{before}\r\n{toml}", toml.len()))
            {
                Ok(()) => {}
                Err(error @ CliError::Refused { .. }) => {
                    refused.get_or_insert(error);
                    left.push(text);
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = refused.filter(|_| left.len() == count) {
            return Err(error);
        }
        texts = left;
    }
    Ok(())
}
