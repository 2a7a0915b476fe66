//! `tollgate cluster drain NODE`, and waiting until the node has left.
//!
//! Here: who the node is, and when it is gone. Not here: giving copies away (`cluster`, `control`),
//! printing (`show`).
//!
//! The node that is asked may be the one that leaves, as in a pod's `preStop`: it ends when it is
//! done, and then another one is asked whether it is gone.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::CliError;
use super::client::{ServerClient, StatPairs};
use super::show::{StatRow, rows};

/// How a drain goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DrainReport {
    /// The cluster will see to it, and nobody waits.
    Begun,
    /// So many copies are left there.
    Left { node: String, primaries: u64, backups: u64 },
    /// It is not in the map any more.
    Gone { node: String },
}

/// Drains `node`; with `pause` between two looks, until it is gone.
pub(super) fn drain(
    mut server: ServerClient,
    node: &str,
    pause: Option<Duration>,
    mut tell: impl FnMut(&DrainReport) -> io::Result<()>,
) -> Result<(), CliError> {
    let nodes = server.stats("cluster nodes")?;
    let (id, mut others) = node_named(&nodes, node).ok_or_else(|| CliError::NoNode {
        server: server.name().to_owned(),
        node: node.to_owned(),
    })?;
    // In the operator's word, not by the id: a ring name may look like that.
    server.command(&format!("cluster drain {node}"))?;
    let Some(pause) = pause else { return Ok(tell(&DrainReport::Begun)?) };
    let (mut drains, mut last) = (false, None);
    loop {
        let nodes = poll(&mut server, &mut others)?;
        let rows = rows(&nodes);
        let Some(row) = rows.iter().find(|row| row.id == id) else {
            tell(&DrainReport::Gone { node: id })?;
            return Ok(());
        };
        match row.get("state") {
            Some("draining") => drains = true,
            Some("dead") => {
                let name = row.get("ring_name").unwrap_or_default();
                return Err(CliError::Undrained(format!(
                    "{id} ({name}) died before it had given everything away; if it will not come \
                     back, `tollgate cluster forget {id}` gives up what only it holds"
                )));
            }
            // The node that is asked may know the map of a moment ago.
            _ if !drains => {}
            _ => {
                let reason = format!("{id} was started anew while it drained, and is back");
                return Err(CliError::Undrained(reason));
            }
        }
        let count = |name| row.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let left = DrainReport::Left {
            node: id.clone(),
            primaries: count("primaries"),
            backups: count("backups"),
        };
        if last.as_ref() != Some(&left) {
            tell(&left)?;
            last = Some(left);
        }
        sleep(pause);
    }
}

/// The id of the node that a word names, and where else to ask.
fn node_named(nodes: &StatPairs, word: &str) -> Option<(String, Vec<String>)> {
    let rows = rows(nodes);
    let is_named = |row: &&StatRow<'_>| {
        let number = row.id.strip_prefix('n');
        let names = ["ring_name", "client", "peer"].map(|name| row.get(name));
        let is_self = word == "self" && row.get("self") == Some("yes");
        is_self || row.id == word || number == Some(word) || names.contains(&Some(word))
    };
    let mut named = rows.iter().filter(is_named);
    let (Some(row), None) = (named.next(), named.next()) else { return None };
    let others = rows.iter().filter(|other| other.id != row.id);
    let others = others.filter_map(|other| other.get("client")).map(str::to_owned).collect();
    Some((row.id.to_owned(), others))
}

/// What the node that is asked says of all nodes, or the first of the others that answers.
fn poll(server: &mut ServerClient, others: &mut Vec<String>) -> Result<StatPairs, CliError> {
    let mut failed = match server.stats("cluster nodes") {
        Err(error @ CliError::Unreachable { .. }) => error,
        answered => return answered,
    };
    while let Some(other) = others.pop() {
        match server
            .another(&other)
            .and_then(|mut other| Ok((other.stats("cluster nodes")?, other)))
        {
            Ok((stats, other)) => {
                *server = other;
                return Ok(stats);
            }
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
