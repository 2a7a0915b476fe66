//! `tollgate cluster limits ...`: shows and changes the limits of the whole cluster.
//!
//! Here: its command line and the requests sent for it. Not here: checking a limit against the
//! others, which the asked node does (`server`).

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

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
            names_differ(file, &String::from_utf8_lossy(&bytes))?;
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

/// Refuses two limits of one name, as the checks of a whole file do: the second would replace the
/// first.
fn names_differ(file: &Path, text: &str) -> Result<(), CliError> {
    let Ok(table) = DeTable::parse(text) else { return Ok(()) };
    let limits = table.get_ref().get("limit").and_then(|limits| limits.get_ref().as_array());
    let mut lines = HashMap::new();
    for limit in limits.into_iter().flatten() {
        let DeValue::Table(limit) = limit.get_ref() else { continue };
        let Some(value) = limit.get("name") else { continue };
        let Some(name) = value.get_ref().as_str() else { continue };
        let line = text[..value.span().start].matches('\n').count() + 1;
        if let Some(first) = lines.insert(name, line) {
            let file = file.display();
            let reason = format!("{file}:{line}: the name `{name}` is taken by line {first}");
            return Err(CliError::Input(reason));
        }
    }
    Ok(())
}

/// Sends each limit to the node. A limit may need another one of the file to exist first, in any
/// order, so refused limits are sent again as long as a pass puts at least one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_limit_of_one_name_is_refused() {
        let limit = |name: &str| {
            format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"block\"\n")
        };
        let checked = |text: String| {
            names_differ(Path::new("dd.toml"), &text).map_err(|error| error.to_string())
        };
        assert_eq!(checked(limit("dd") + &limit("ee")), Ok(()));
        let refused = Err("dd.toml:6: the name `dd` is taken by line 2".to_owned());
        assert_eq!(checked(limit("dd") + &limit("dd")), refused);
        assert_eq!(checked("exempt = []\n".to_owned()), Ok(()));
    }
}
