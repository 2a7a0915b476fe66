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

/// Most other nodes that are asked before a drain whether they want a login.
const LOGIN_ASKED_MAX: usize = 3;

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

/// The node that leaves.
struct LeavingNode {
    id: String,
    /// Whether this is the node that is asked.
    is_asked: bool,
    /// The client addresses of all other nodes.
    others: Vec<String>,
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
    let leaving = node_named(&nodes, node).ok_or_else(|| CliError::NoNode {
        server: server.name().to_owned(),
        node: node.to_owned(),
    })?;
    if pause.is_some() && leaving.is_asked {
        check_login(&server, &leaving.others)?;
    }
    let LeavingNode { id, mut others, .. } = leaving;
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

/// Refuses to wait without credentials if another node wants a login: the asked node leaves, and
/// [`poll`] goes on at the others. A node that is not in reach refuses nothing.
fn check_login(server: &ServerClient, others: &[String]) -> Result<(), CliError> {
    if server.has_credentials() {
        return Ok(());
    }
    // In the order of `poll`.
    for other in others.iter().rev().take(LOGIN_ASKED_MAX) {
        match server.another(other).and_then(|mut other| other.stats("cluster nodes")) {
            Err(CliError::Unauthenticated(_)) => {
                return Err(CliError::Login(format!(
                    "nothing was done: --wait asks other nodes when this one has left, and {other} \
                     asks for a password: add --login USER"
                )));
            }
            Err(CliError::Unreachable { .. }) => {}
            _ => break,
        }
    }
    Ok(())
}

/// Returns the node that `word` names. `None` if no node or more than one matches.
fn node_named(nodes: &StatPairs, word: &str) -> Option<LeavingNode> {
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
    let is_asked = row.get("self") == Some("yes");
    Some(LeavingNode { id: row.id.to_owned(), is_asked, others })
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    use super::*;

    /// Starts a scripted node: it accepts one client, expects these lines in order, writes the
    /// answer to each, then expects the end.
    fn node(script: Vec<(&'static str, String)>) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let serve = move || {
            let (stream, _) = listener.accept().expect("the client comes");
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            for (expected, answer) in script {
                line.clear();
                stream.read_line(&mut line).expect("the client asks");
                assert_eq!(line, format!("{expected}\r\n"));
                stream.get_mut().write_all(answer.as_bytes()).expect("the client listens");
            }
            line.clear();
            stream.read_line(&mut line).expect("the client hangs up");
            assert_eq!(line, "");
        };
        (address, thread::spawn(serve))
    }

    /// Returns `stats cluster nodes` of n1 at `other`, and of the asked node n3 if it is a member.
    fn nodes(other: &str, is_member: bool) -> String {
        let own = if is_member { "STAT n3:self yes\r\nSTAT n3:state active\r\n" } else { "" };
        format!("STAT n1:client {other}\r\nSTAT n1:self no\r\n{own}END\r\n")
    }

    fn drain_self(name: &str) -> Result<(), CliError> {
        let server = ServerClient::connect(name, None).expect("it listens");
        drain(server, "self", Some(Duration::ZERO), |_| Ok(()))
    }

    #[test]
    fn login_of_other_nodes_is_checked_before_the_drain() {
        let refusal = "CLIENT_ERROR unauthenticated\r\n".to_owned();
        let (other, other_script) = node(vec![("stats cluster nodes", refusal)]);
        let (name, script) = node(vec![("stats cluster nodes", nodes(&other, true))]);
        let error = drain_self(&name).expect_err("there is no login").to_string();
        assert!(error.starts_with("nothing was done") && error.contains("--login"), "{error}");
        script.join().expect("the drain was not sent");
        other_script.join().expect("the script was kept to");
    }

    #[test]
    fn node_out_of_reach_refuses_no_drain() {
        let closed = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let other = closed.local_addr().expect("it is bound").to_string();
        drop(closed);
        let (name, script) = node(vec![
            ("stats cluster nodes", nodes(&other, true)),
            ("cluster drain self", "OK\r\n".to_owned()),
            ("stats cluster nodes", nodes(&other, false)),
        ]);
        drain_self(&name).expect("it has left");
        script.join().expect("the script was kept to");
    }
}
