//! `tollgate cluster drain NODE`, and waiting until the node has left.
//!
//! Here: identifying the node and detecting that it has left. Not here: moving copies (`cluster`,
//! `control`), printing (`show`).
//!
//! The asked node may be the one that leaves, as in a pod's `preStop` hook. Its process ends when
//! the drain is complete, so the other nodes are polled from then on.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use super::CliError;
use super::client::{ServerClient, StatPairs};
use super::show::{StatRow, rows};

/// Progress of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DrainReport {
    /// The cluster has accepted the drain, and the command does not wait.
    Begun,
    /// The node still holds this many copies.
    Left { node: String, primaries: u64, backups: u64 },
    /// The node is no longer in the map.
    Gone { node: String },
}

/// Drains `node`. With `pause`, polls at this interval until the node has left, and passes each
/// change of its copies to `tell`.
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
    // Send the operator's word rather than the id: another node's ring name may look like that id.
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
            // The asked node may still have a map from before the drain.
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

/// Returns the id of the node that `word` names, and the client addresses of all other nodes.
/// `None` if no node or more than one matches.
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

/// Returns `stats cluster nodes` of `server`; if it is unreachable, of the first of `others` that
/// replies, which then becomes `server`.
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
