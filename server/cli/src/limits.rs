//! `tollgate cluster limits ...`: shows and changes the limits of the whole cluster.
//!
//! Here: its command line and the requests sent for it. Not here: checking a limit against the
//! others, which the asked node does (`server`).

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::PathBuf;

use tollgate_limits::map_text::LimitText;
use tollgate_limits::{LimitsError, read};

use super::client::ServerClient;
use super::{CliError, show, word};

/// The forms of `tollgate cluster limits`.
pub(super) const USAGE: &str = "write tollgate cluster limits get, put FILE [--before NAME] or \
                                remove NAME; --help tells more";

#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub(super) enum LimitsAction {
    /// Print all limits as a limits file
    Get,
    /// Add each limit of a file behind the existing ones; one with the name of an existing limit
    /// replaces it
    Put {
        /// The limits file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Insert the limits right before this one
        #[arg(long, value_name = "NAME", value_parser = word)]
        before: Option<String>,
    },
    /// Remove a limit; keys counted under it keep their state until they expire or are deleted
    Remove {
        /// Name of the limit
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
            let bytes = read(file)?;
            let texts = LimitText::each(&file.display().to_string(), &bytes)?;
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

/// Sends each limit to the node. A limit may need another one of the file to exist first, in any
/// order, so refused limits are sent again as long as a pass puts at least one. New limits get the
/// order of the file: one that was refused goes before the next one that was put meanwhile.
fn put(
    server: &mut ServerClient,
    texts: Vec<LimitText>,
    before: Option<&str>,
) -> Result<(), CliError> {
    // Limits of a newer version may not be readable here. Then refused ones go behind the others.
    let present = LimitText::each("the cluster's limits", server.limits()?.as_bytes()).ok();
    let present: Option<HashSet<String>> =
        present.map(|limits| limits.into_iter().map(|limit| limit.name).collect());
    let mut added: BTreeMap<usize, String> = BTreeMap::new();
    let mut left: Vec<(usize, LimitText)> = texts.into_iter().enumerate().collect();
    while !left.is_empty() {
        let (count, mut refused, mut again) = (left.len(), None, Vec::new());
        for (place, text) in left {
            let LimitText { name, toml } = &text;
            let is_new = present.as_ref().is_some_and(|present| !present.contains(name));
            let next = added.range(place..).next().map(|(_, name)| name.as_str());
            let before = next.filter(|_| is_new).or(before);
            let before = before.map_or_else(String::new, |name| format!(" before={name}"));
            match server.command(&format!("cluster limit {name} {}{before}\r\n{toml}", toml.len()))
            {
                Ok(()) if is_new => drop(added.insert(place, name.clone())),
                Ok(()) => {}
                Err(error @ CliError::Refused { .. }) => {
                    refused.get_or_insert(error);
                    again.push((place, text));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(error) = refused.filter(|_| again.len() == count) {
            return Err(error);
        }
        left = again;
    }
    Ok(())
}
