//! Checks of a server's settings and its machine, which need no running server.
//!
//! Not here: what only a running server knows (`beside`).

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::time::Duration;

use control::StartMode;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tollgate::config::{ClusterConfig, Config, PeerFiles, Seed};
use tollgate::net::{is_local, try_connect};
use tollgate_limits::map_text::LimitText;
use tollgate_limits::{Limits, LimitsError};

use super::Finding;
use super::beside::RunningState;

/// Timeout of a connection to a seed.
const SEED_PATIENCE: Duration = Duration::from_secs(1);
/// Most addresses of seeds that are tried.
const SEEDS_MAX: usize = 64;
/// The items may have this share of the machine's memory, in percent: connections, replies, the
/// cluster's log and the allocator need the rest.
const MEMORY_PERCENT: u64 = 90;

/// Returns all findings about `config`.
pub(super) fn look(config: &Config, state: &RunningState) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(limits(config));
    findings.extend(memory(config.memory_bytes, Path::new("/"), state.pid));
    // A running server has passed this check itself, perhaps with other rights.
    if !state.is_running {
        findings.extend(descriptors(config.connections_max));
    }
    if let Some(cluster) = &config.cluster {
        findings.extend(security(cluster));
        let own_port = own_peer_port(cluster);
        let places = places(&cluster.seeds, &mut findings);
        let is_own = |place: &SocketAddr| Some(place.port()) == own_port && is_local(place.ip());
        let others: Vec<SocketAddr> = places.into_iter().filter(|place| !is_own(place)).collect();
        findings.extend(others.iter().filter_map(unreachable));
        // This node counts once, whether the seeds name it or not.
        let nodes = others.len() + 1;
        if !state.is_in_cluster {
            findings.extend(expected(cluster.begin, nodes));
            findings.extend(copies(cluster, nodes));
        }
    }
    findings
}

/// The limits file as the server reads it: its first mistake, also a limit that no key reaches and
/// an override that never matches.
fn limits(config: &Config) -> Option<Finding> {
    let path = config.limits_file.as_deref()?;
    let warning = match config.cluster {
        Some(_) => LimitText::load(path).map(|_| None),
        None => Limits::load(path).map(|limits| limits.warning(path)),
    };
    match warning {
        Ok(None) => None,
        Ok(Some(warning)) => {
            Some(Finding::new(warning, "write a limit, or allow_empty = true at its top"))
        }
        Err(error) => Some(Finding::new(
            format!("the limits file is refused: {error}"),
            match error {
                LimitsError::Unreadable { .. } => "write that file, or let the server read it",
                _ => "correct the line; docs/reference/limits-file.md explains each message",
            },
        )),
    }
}

/// Returns the memory that a process may use: of the host, or of its control group if that is less.
/// `root`: the root of the file system.
fn memory_bytes(root: &Path, pid: Option<u32>) -> Option<u64> {
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let host = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let groups = fs::read_to_string(root.join(format!("proc/{process}/cgroup")));
    let groups = groups.unwrap_or_default();
    let mut least = host;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let (base, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            "memory" => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        // Each group above limits it too.
        let group = Path::new(group.trim_start_matches('/'));
        for group in group.ancestors() {
            let limit = number(&root.join(base).join(group).join(file));
            least = least.into_iter().chain(limit).min();
        }
    }
    least
}

fn memory(cap_bytes: u64, root: &Path, pid: Option<u32>) -> Option<Finding> {
    let has_bytes = memory_bytes(root, pid)?;
    let most_bytes = has_bytes / 100 * MEMORY_PERCENT;
    let mebibytes = |bytes: u64| bytes >> 20;
    (cap_bytes > most_bytes).then(|| {
        Finding::new(
            format!(
                "the memory cap of {} MiB is above {MEMORY_PERCENT} % of the {} MiB that the host \
                 or the control group has",
                mebibytes(cap_bytes),
                mebibytes(has_bytes)
            ),
            format!("lower -m to at most {}, or give it more memory", mebibytes(most_bytes)),
        )
    })
}

/// Tries to raise the limit of this process, as the server will.
fn descriptors(connections_max: usize) -> Option<Finding> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let wanted = connections_max as u64;
    let may_raise =
        || setrlimit(Resource::RLIMIT_NOFILE, wanted.max(soft), hard.max(wanted)).is_ok();
    if hard >= wanted || may_raise() {
        return None;
    }
    Some(Finding::new(
        format!("-c {wanted} needs as many open files, and a process may have {hard}"),
        format!("raise the limit (LimitNOFILE, ulimit -n), or lower -c to {hard}"),
    ))
}

/// Peers off loopback without a key or certificates.
fn security(cluster: &ClusterConfig) -> Option<Finding> {
    if cluster.peer_files != PeerFiles::None {
        let error = cluster.security().err()?;
        let remedy = "correct the files of the peer key or the certificates";
        return Some(Finding::new(format!("peers cannot be authenticated: {error}"), remedy));
    }
    let is_open = |host: &str| {
        host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let open = cluster.peer_listen.iter().find(|address| is_open(&address.host))?;
    Some(Finding::new(
        format!("any host that reaches {open} can join the cluster: peers have no key"),
        "give all nodes --peer-key-file, or --peer-cert, --peer-key and --peer-ca",
    ))
}

fn own_peer_port(cluster: &ClusterConfig) -> Option<u16> {
    let advertised = Some(cluster.advertise_peer.port).filter(|port| *port != 0);
    let bound = cluster.peer_listen.iter().map(|address| address.port).find(|port| *port != 0);
    advertised.or(bound)
}

/// Resolves the seeds. A name without an address is a finding.
fn places(seeds: &[Seed], findings: &mut Vec<Finding>) -> BTreeSet<SocketAddr> {
    let mut places = BTreeSet::new();
    for seed in seeds {
        let (Seed::Place(place) | Seed::Name(place)) = seed;
        match (place.host.as_str(), place.port).to_socket_addrs() {
            // One place has one node, even if its name has several addresses.
            Ok(mut found) if matches!(seed, Seed::Place(_)) => places.extend(found.next()),
            Ok(found) => places.extend(found),
            Err(error) => findings.push(Finding::new(
                format!("the seed {seed} has no address: {error}"),
                "correct the name in --seeds or --join, or its DNS record",
            )),
        }
    }
    while places.len() > SEEDS_MAX {
        places.pop_last();
    }
    places
}

fn unreachable(place: &SocketAddr) -> Option<Finding> {
    let error = try_connect(*place, SEED_PATIENCE).err()?;
    Some(Finding::new(
        format!("the seed {place} cannot be reached: {error}"),
        "start that node, or check its --peer-listen, the firewall and the address",
    ))
}

/// `--expect` beside the number of nodes that the seeds and this node are.
fn expected(begin: StartMode, nodes: usize) -> Option<Finding> {
    let StartMode::Expect(expect) = begin else { return None };
    if expect > nodes {
        return Some(Finding::new(
            format!(
                "--expect {expect} is above the {nodes} nodes that --seeds names: they may never \
                 found a cluster"
            ),
            format!("name all nodes in --seeds, or write --expect {nodes}"),
        ));
    }
    (nodes >= expect.saturating_mul(2)).then(|| {
        Finding::new(
            format!("--expect {expect} of {nodes} nodes: two halves could found two clusters"),
            format!("write --expect {}, or more", nodes / 2 + 1),
        )
    })
}

/// `--replicas` beside the number of nodes of a new cluster that hold keys.
fn copies(cluster: &ClusterConfig, nodes: usize) -> Option<Finding> {
    let all = match cluster.begin {
        StartMode::Expect(expect) => nodes.max(expect),
        // Others join a founder later. Its default is not what an operator asked for.
        StartMode::Found if cluster.replicas == ClusterConfig::REPLICAS => return None,
        StartMode::Found => 1,
        StartMode::Join => return None,
    };
    let holders = all - usize::from(cluster.is_witness()).min(all);
    let replicas = usize::from(cluster.replicas);
    (replicas > holders).then(|| {
        let are = if holders == 1 { "is" } else { "are" };
        let which = if cluster.is_witness() { " besides this witness" } else { "" };
        Finding::new(
            format!("--replicas {replicas} needs as many nodes, and there {are} {holders}{which}"),
            "add nodes, or lower --replicas",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use tollgate::config::Startup;

    use super::*;

    #[test]
    fn memory_of_the_least_group_counts() {
        let root = tempfile::tempdir().expect("a place for it");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("the folder is ours");
            fs::write(path, text).expect("the folder is ours");
        };
        assert_eq!(memory_bytes(root.path(), None), None);
        write("proc/meminfo", "MemFree: 1 kB\nMemTotal:    4194304 kB\n");
        assert_eq!(memory_bytes(root.path(), None), Some(4 << 30));
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/b/memory.max", "max\n");
        write("sys/fs/cgroup/a/memory.max", "1073741824\n");
        assert_eq!(memory_bytes(root.path(), None), Some(1 << 30));
        write("proc/7/cgroup", "9:cpu:/x\n5:memory:/c\n");
        write("sys/fs/cgroup/memory/c/memory.limit_in_bytes", "536870912\n");
        assert_eq!(memory_bytes(root.path(), Some(7)), Some(512 << 20));
        assert_eq!(
            memory(480 << 20, root.path(), Some(7)).map(|it| it.remedy),
            Some("lower -m to at most 460, or give it more memory".to_owned())
        );
        assert_eq!(memory(460 << 20, root.path(), Some(7)), None);
    }

    #[test]
    fn expected_nodes_are_all_and_more_than_half() {
        let is_wrong = |expect, nodes| expected(StartMode::Expect(expect), nodes).is_some();
        for (expect, nodes, wrong) in
            [(3, 3, false), (2, 3, false), (3, 5, false), (4, 3, true), (1, 2, true), (2, 4, true)]
        {
            assert_eq!(is_wrong(expect, nodes), wrong, "{expect} of {nodes}");
        }
        assert_eq!(expected(StartMode::Join, 9), None);
        assert_eq!(expected(StartMode::Found, 0), None);
    }

    #[test]
    fn copies_above_nodes_of_a_new_cluster_are_a_finding() {
        let finding = |flags: &[&str], nodes| {
            let args = ["tollgate", "--insecure", "--data-dir", "/d"];
            let args = args.iter().chain(flags).map(OsString::from);
            let Ok(Startup::Serve(config)) = Config::from_sources(args, []) else {
                panic!("{flags:?}");
            };
            copies(config.cluster.as_ref().expect("it has one"), nodes).map(|it| it.problem)
        };
        let alone = Some("--replicas 3 needs as many nodes, and there is 1".to_owned());
        assert_eq!(finding(&["--replicas", "3"], 1), alone);
        assert_eq!(finding(&["--expect", "1", "--replicas", "3"], 1), alone);
        assert_eq!(finding(&["--expect", "1"], 1), None);
        assert_eq!(finding(&["--replicas", "1"], 1), None);
        let three = ["--seeds", "10.0.0.1,10.0.0.2", "--expect", "3", "--replicas", "3"];
        assert_eq!(finding(&three, 3), None);
        let witness = [&three[..], &["--role", "witness"]].concat();
        let problem = "--replicas 3 needs as many nodes, and there are 2 besides this witness";
        assert_eq!(finding(&witness, 3).as_deref(), Some(problem));
        assert_eq!(finding(&["--join", "10.0.0.1"], 1), None);
    }

    #[test]
    fn descriptors_are_checked_as_at_the_start() {
        assert_eq!(descriptors(1024), None);
        assert!(descriptors(usize::MAX >> 1).is_some());
    }

    #[test]
    fn descriptors_of_a_running_server_are_not_checked() {
        let Ok(Startup::Serve(mut config)) = Config::from_sources(["tollgate".into()], []) else {
            panic!("no server");
        };
        config.connections_max = usize::MAX >> 1;
        for is_running in [false, true] {
            let state = RunningState { is_running, ..RunningState::default() };
            let findings = look(&config, &state);
            let has_it = findings.iter().any(|finding| finding.problem.starts_with("-c "));
            assert_eq!(has_it, !is_running, "{findings:?}");
        }
    }
}
