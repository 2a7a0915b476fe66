//! Checks of a running server and its cluster, over the client port or the admin socket.
//!
//! Not here: checks of settings and machine (`before`).

use super::super::CliError;
use super::super::client::{ServerClient, StatPairs};
use super::super::show::{StatRow, printed, rows};
use super::Finding;

/// A clock that is further from the common time is a finding, in milliseconds. The log warns of the
/// same difference.
const CLOCK_MS: u64 = 50;
/// Most nodes that are asked for their version.
const NODES_MAX: usize = 64;
/// The remedy for a memory cap that is too small.
const RAISE_CAP: &str =
    "raise -m; cache_memlimit raises it at once, and stats reset forgets the number";

/// Facts about a running server that other checks use.
#[derive(Debug, Default)]
pub(super) struct RunningState {
    pub(super) is_running: bool,
    /// The server is a member of a cluster, so that flags about the foundation do not matter.
    pub(super) is_in_cluster: bool,
    /// The server's process, if it runs on this machine.
    pub(super) pid: Option<u32>,
}

/// The result of looking at a running server.
#[derive(Debug)]
pub(super) struct Diagnosis {
    pub(super) findings: Vec<Finding>,
    pub(super) state: RunningState,
    /// A sentence, without its full stop, on facts that could not be found out.
    pub(super) unknown: Option<String>,
}

/// Asks the running server and the nodes of its cluster.
pub(super) fn look(server: &mut ServerClient) -> Result<Diagnosis, CliError> {
    let general = server.stats("")?;
    let mut state = RunningState {
        is_running: true,
        is_in_cluster: false,
        pid: printed(&general, "pid").parse().ok().filter(|pid| is_tollgate(*pid)),
    };
    let mut findings = Vec::new();
    findings.extend(evicted(&general));
    findings.extend(refused(&general));
    findings.extend(limits_fault(&server.stats("limits")?));
    let cluster = match server.stats("cluster") {
        Ok(cluster) => cluster,
        // A lone server, and a node that still starts, have nothing to say.
        Err(CliError::NoCluster(_) | CliError::Refused { .. }) => {
            return Ok(Diagnosis { findings, state, unknown: None });
        }
        Err(error) => return Err(error),
    };
    state.is_in_cluster = matches!(printed(&cluster, "place"), "joining" | "active" | "draining");
    let nodes = server.stats("cluster nodes")?;
    let nodes = rows(&nodes);
    findings.extend(copies(&cluster, &nodes));
    findings.extend(nodes.iter().filter_map(clock));
    let (mixed, unknown) = versions(server, &cluster, &nodes);
    findings.extend(mixed);
    Ok(Diagnosis { findings, state, unknown })
}

/// Whether the process of this machine with that id is a Tollgate: a remote server's id means
/// nothing here.
fn is_tollgate(pid: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.is_ok_and(|name| name.trim() == "tollgate")
}

fn count(stats: &StatPairs, name: &str) -> u64 {
    printed(stats, name).parse().unwrap_or(0)
}

fn evicted(general: &StatPairs) -> Option<Finding> {
    let evicted = count(general, "evictions");
    let megabytes = count(general, "limit_maxbytes") >> 20;
    (evicted > 0).then(|| {
        Finding::new(
            format!(
                "{evicted} items and limit states were removed before they expired: the cap of \
                 {megabytes} MiB is too small for the load"
            ),
            RAISE_CAP,
        )
    })
}

/// Stores that found no memory: with `-M` nothing is evicted for them.
fn refused(general: &StatPairs) -> Option<Finding> {
    let refused = count(general, "store_no_memory");
    let megabytes = count(general, "limit_maxbytes") >> 20;
    (refused > 0).then(|| {
        Finding::new(
            format!(
                "{refused} stores were refused because memory was full: the cap of {megabytes} \
                 MiB is too small for the load"
            ),
            RAISE_CAP,
        )
    })
}

fn limits_fault(limits: &StatPairs) -> Option<Finding> {
    let fault = printed(limits, "limits_fault");
    (fault != "-").then(|| {
        Finding::new(format!("new limits were refused: {fault}"), "correct the limits file")
    })
}

/// The setting `replicas` beside the nodes of the cluster that hold keys.
fn copies(cluster: &StatPairs, nodes: &[StatRow<'_>]) -> Option<Finding> {
    let living = count(cluster, "nodes_active") + count(cluster, "nodes_joining");
    let is_witness = |row: &&StatRow<'_>| {
        row.get("weight") == Some("0") && matches!(row.get("state"), Some("active" | "joining"))
    };
    let witnesses = nodes.iter().filter(is_witness).count() as u64;
    let (holders, replicas) = (living.saturating_sub(witnesses), count(cluster, "replicas"));
    (living > 0 && replicas > holders).then(|| {
        let which = if witnesses > 0 { "living nodes that hold keys" } else { "living nodes" };
        Finding::new(
            format!("the setting replicas is {replicas}, above the number of {which}, {holders}"),
            "add nodes, start the dead ones, or lower it by tollgate cluster set replicas",
        )
    })
}

fn clock(row: &StatRow<'_>) -> Option<Finding> {
    let offset_ms: i64 = row.get("clock_offset_ms")?.parse().ok()?;
    (offset_ms.unsigned_abs() > CLOCK_MS).then(|| {
        let side = if offset_ms > 0 { "ahead of" } else { "behind" };
        let away = offset_ms.unsigned_abs();
        Finding::new(
            format!("the clock of {} is {away} ms {side} that of most nodes", row.id),
            "check time synchronization (chrony, ntpd) on that node's machine",
        )
    })
}

/// Nodes of other versions than the asked one, and which nodes did not tell theirs. A node that is
/// not alive is left out: others report it.
fn versions(
    server: &ServerClient,
    cluster: &StatPairs,
    nodes: &[StatRow<'_>],
) -> (Option<Finding>, Option<String>) {
    let own = printed(cluster, VERSION);
    let is_alive =
        |row: &&StatRow<'_>| row.get("self") != Some("yes") && row.get("state") != Some("dead");
    let (mut different, mut silent) = (Vec::new(), Vec::new());
    for row in nodes.iter().filter(is_alive).take(NODES_MAX) {
        let Some(address) = row.get("client") else { continue };
        let asked = server.another(address).and_then(|mut node| node.stats("cluster"));
        match asked.as_ref().map(|stats| printed(stats, VERSION)) {
            Ok(version) if version == own => {}
            Ok("-") => different.push(format!("{} an older one", row.id)),
            Ok(version) => different.push(format!("{} {version}", row.id)),
            Err(error) => silent.push(format!("{} ({error})", row.id)),
        }
    }
    let mixed = (!different.is_empty()).then(|| {
        Finding::new(
            format!("versions are mixed: the asked node has {own}, {}", different.join(", ")),
            "finish the update of all nodes; what only the new version knows is off until then",
        )
    });
    let unknown = (!silent.is_empty())
        .then(|| format!("The versions of these nodes could not be asked: {}", silent.join(", ")));
    (mixed, unknown)
}

/// The stat with a node's version.
const VERSION: &str = "tollgate_version";

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(text: &str) -> StatPairs {
        let pair = |line: &str| {
            let (name, value) = line.trim().split_once(' ').expect("a name and a value");
            (name.to_owned(), value.to_owned())
        };
        text.lines().map(pair).collect()
    }

    #[test]
    fn evictions_are_a_finding() {
        assert_eq!(evicted(&stats("evictions 0\nlimit_maxbytes 67108864")), None);
        let finding = evicted(&stats("evictions 5\nlimit_maxbytes 67108864")).expect("it is one");
        assert!(finding.problem.starts_with("5 items"), "{finding:?}");
        assert!(finding.problem.contains("64 MiB"), "{finding:?}");
    }

    #[test]
    fn refused_stores_are_a_finding() {
        assert_eq!(refused(&stats("store_no_memory 0\nlimit_maxbytes 67108864")), None);
        let general = stats("evictions 0\nstore_no_memory 7\nlimit_maxbytes 67108864");
        assert_eq!(evicted(&general), None);
        let finding = refused(&general).expect("it is one");
        assert!(finding.problem.starts_with("7 stores"), "{finding:?}");
        assert!(finding.problem.contains("64 MiB"), "{finding:?}");
    }

    #[test]
    fn copies_above_nodes_are_a_finding() {
        let with = |text: &str| copies(&stats(text), &[]).is_some();
        assert!(with("nodes_active 1\nnodes_joining 0\nreplicas 2"));
        assert!(!with("nodes_active 1\nnodes_joining 1\nreplicas 2"));
        assert!(!with("nodes_active 0\nreplicas 2"), "it has no map yet");
    }

    #[test]
    fn witnesses_hold_no_copies() {
        let cluster = stats("nodes_active 3\nnodes_joining 0\nreplicas 3");
        let with = |text: &str| copies(&cluster, &rows(&stats(text))).map(|it| it.problem);
        let nodes = |weight: &str, state: &str| {
            format!(
                "n1:weight 1\nn1:state active\nn2:weight 2\nn2:state active\nn3:weight {weight}\n\
                 n3:state {state}"
            )
        };
        let problem =
            "the setting replicas is 3, above the number of living nodes that hold keys, 2";
        assert_eq!(with(&nodes("0", "active")).as_deref(), Some(problem));
        assert_eq!(with(&nodes("1", "active")), None);
        assert_eq!(with(&nodes("0", "dead")), None, "it is not among the three");
    }

    #[test]
    fn clock_far_from_others_is_a_finding() {
        let stats = stats("n1:clock_offset_ms 50\nn2:clock_offset_ms -51\nn3:clock_offset_ms -");
        let findings: Vec<_> = rows(&stats).iter().filter_map(clock).collect();
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].problem, "the clock of n2 is 51 ms behind that of most nodes");
    }
}
