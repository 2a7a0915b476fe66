//! The nodes of a shape: real processes on this machine, from their start to their end.
//!
//! Here: flags, ports, certificates, waiting until a cluster is at rest, which node owns which key.
//! Not here: measured requests (`cluster`).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cluster::placement::ketama::{Circle, hash, ring_name};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::shapes::{FLOOR, Kind, Route, Shape};
use crate::cpu::{Cores, CpuReading};
use crate::error::LoadError;
use crate::keys::{Space, key};
use crate::limits_file::LimitsFile;

const PROGRAM: &str = "target/release/tollgate";
/// The memory of a node in megabytes: enough that no key of the run is evicted.
const MEMORY_MB: &str = "4096";
/// The time limit for a cluster to come to rest.
const PATIENCE: Duration = Duration::from_mins(1);

/// The nodes of a shape. Dropping this value ends them.
pub(super) struct Nodes {
    children: Vec<Child>,
    /// The addresses of the nodes that receive requests.
    pub(super) addresses: Vec<SocketAddr>,
    folder: PathBuf,
    /// Kept while the nodes may read the file.
    _limits: Option<LimitsFile>,
}

impl Nodes {
    /// Starts the nodes and waits until they are at rest. `has_limits` passes a limits file that
    /// has the limit of [`Space::Bound`]. `cores` pins all nodes to one core.
    pub(super) fn start(
        shape: &Shape,
        has_limits: bool,
        cores: Option<&Cores>,
    ) -> Result<Self, LoadError> {
        let failed = |what: String| LoadError::Server { server: shape.name.to_owned(), what };
        let folder = std::env::temp_dir().join(format!("load-cluster-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        // All ports are bound at once, so that none is assigned twice.
        let free = |_| TcpListener::bind(("127.0.0.1", 0));
        let listeners: Vec<TcpListener> =
            (0..2 * shape.nodes).map(free).collect::<io::Result<_>>()?;
        let places: Vec<SocketAddr> =
            listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        drop(listeners);
        let clients = &places[..shape.nodes];
        let addresses = if shape.kind.is_redis() {
            // The replicas receive no requests.
            clients[..1].to_vec()
        } else {
            clients.to_vec()
        };
        let limits = has_limits.then(|| LimitsFile::write(1)).transpose()?;
        if matches!(shape.kind, Kind::Secured(_)) {
            certify(&folder, shape.nodes).map_err(|error| failed(error.to_string()))?;
        }
        let path = limits.as_ref().map(LimitsFile::path);
        let commands: Vec<Command> =
            (0..shape.nodes).map(|number| command(shape, number, &places, &folder, path)).collect();
        let mut nodes = Self { children: Vec::new(), addresses, folder, _limits: limits };
        for mut command in commands {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let spawned = match cores {
                Some(cores) => cores.start_pinned(|| command.spawn())?,
                None => command.spawn(),
            };
            nodes.children.push(spawned.map_err(|error| failed(error.to_string()))?);
        }
        let start = Instant::now();
        while !nodes.are_at_rest(shape, has_limits) {
            if start.elapsed() > PATIENCE {
                return Err(failed("it does not come to rest".to_owned()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(nodes)
    }

    fn are_at_rest(&self, shape: &Shape, has_limits: bool) -> bool {
        match shape.kind {
            Kind::Lone | Kind::Floor(_) => {
                self.addresses.iter().all(|address| ask(*address, "stats cluster\r\n").is_ok())
            }
            Kind::Redis(..) => {
                // A replica is online once it has all data.
                let stats = ask(self.addresses[0], "INFO replication\r\nQUIT\r\n");
                let online = |line: &&String| line.contains("state=online");
                stats.is_ok_and(|lines| lines.iter().filter(online).count() == shape.nodes - 1)
            }
            Kind::Cluster(_) | Kind::Secured(_) => {
                self.is_cluster_at_rest(shape.nodes) && (!has_limits || self.have_limits())
            }
        }
    }

    fn is_cluster_at_rest(&self, count: usize) -> bool {
        let active = format!("STAT nodes_active {count}");
        self.addresses.iter().all(|address| {
            let Ok(stats) = ask(*address, "stats cluster\r\n") else { return false };
            let has = |wanted: &str| stats.iter().any(|line| line == wanted);
            has(&active)
                && has("STAT partitions_moving 0")
                && has("STAT partitions_learners 0")
                && has("STAT partitions_under_replicated 0")
                && has("STAT partitions_without_primary 0")
                && stats.iter().any(|line| line.starts_with("STAT setting:founded"))
        })
    }

    /// Whether every node has the limit in force.
    fn have_limits(&self) -> bool {
        self.addresses.iter().all(|address| {
            ask(*address, "stats limits\r\n")
                .is_ok_and(|lines| lines.iter().any(|line| line.contains("bound")))
        })
    }

    /// Whether the nodes of the floor hold `increments` in all, and each copy the counters of its
    /// owner. Other nodes are not asked.
    pub(super) fn have_all(&self, shape: &Shape, increments: u64) -> io::Result<bool> {
        let Kind::Floor(copies) = shape.kind else { return Ok(true) };
        let sums = |address: &SocketAddr| {
            let stats = ask(*address, "stats cluster\r\n")?;
            let find = |name: &str| {
                let line = stats.iter().find_map(|line| line.strip_prefix(name));
                line.and_then(|rest| rest.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData)
            };
            let sums = |of: &str| -> io::Result<(u64, u64)> {
                let [counts, digest] = ["counts", "digest"].map(|sum| format!("STAT {of}_{sum} "));
                Ok((find(&counts)?, find(&digest)?))
            };
            Ok((sums("owned")?, sums("copied")?))
        };
        let both: Vec<_> = self.addresses.iter().map(sums).collect::<io::Result<_>>()?;
        let owned: u64 = both.iter().map(|((counts, _), _)| counts).sum();
        let are_copied = copies == 1 || (both[0].0 == both[1].1 && both[1].0 == both[0].1);
        Ok(owned == increments && are_copied)
    }

    /// The keys of `0..keys` that the thread of node `number` requests.
    pub(super) fn keys(&self, number: usize, route: Route, space: Space, keys: u32) -> Arc<[u32]> {
        let names: Vec<String> = (self.addresses.iter())
            .map(|address| ring_name(&address.ip().to_string(), address.port()))
            .collect();
        let circle = Circle::new(names.iter().map(|name| (name.as_str(), 1)));
        let is_owned = |index: &u32| {
            let owner = circle.owner(hash(&key(space, *index)));
            (owner.map(usize::from) == Some(number)) == (route == Route::Owner)
        };
        (0..keys).filter(is_owned).collect()
    }

    pub(super) fn readings(&self) -> io::Result<Vec<CpuReading>> {
        self.children.iter().map(|child| CpuReading::take(child.id(), "")).collect()
    }

    /// The process ids of the nodes.
    pub(super) fn processes(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Killed, because no node may hand over to another that ends as well.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The command of node `number`. The first half of `places` is for clients, the second for peers.
fn command(
    shape: &Shape,
    number: usize,
    places: &[SocketAddr],
    folder: &Path,
    limits: Option<&Path>,
) -> Command {
    let (clients, peers) = places.split_at(shape.nodes);
    if let Kind::Redis(program, _) = shape.kind {
        return redis(program, clients[number], clients[0], folder);
    }
    if let Kind::Floor(copies) = shape.kind {
        return floor(copies, number, clients, peers[0]);
    }
    let mut command = Command::new(PROGRAM);
    command.args([
        "-m",
        MEMORY_MB,
        "-U",
        "0",
        "-l",
        "127.0.0.1",
        "-t",
        &shape.workers.to_string(),
        "-p",
    ]);
    command.arg(clients[number].port().to_string());
    if let Some(path) = limits {
        command.arg("--limits").arg(path);
    }
    let (Kind::Cluster(flags) | Kind::Secured(flags)) = shape.kind else { return command };
    let seeds: Vec<String> = peers.iter().map(SocketAddr::to_string).collect();
    command
        .args(["--seeds", &seeds.join(","), "--expect", &shape.nodes.to_string()])
        .args(["--peer-listen", &peers[number].to_string(), "--data-dir"])
        .arg(folder.join(number.to_string()))
        .args(flags.split_whitespace());
    if matches!(shape.kind, Kind::Secured(_)) {
        let [authority, certificate, key] = certificate_paths(folder, number);
        command.arg("--peer-ca").arg(authority);
        command.arg("--peer-cert").arg(certificate).arg("--peer-key").arg(key);
    }
    command
}

/// A node of the floor.
fn floor(copies: u8, number: usize, clients: &[SocketAddr], link: SocketAddr) -> Command {
    let clients: Vec<String> = clients.iter().map(SocketAddr::to_string).collect();
    let mut command = Command::new(FLOOR);
    command.args(["--node", &number.to_string(), "--clients", &clients.join(",")]).args([
        "--link",
        &link.to_string(),
        "--copies",
        &copies.to_string(),
    ]);
    command
}

/// A server of the Redis family without persistence. A primary that sends its data to a replica may
/// write them into `folder` first.
fn redis(program: &str, at: SocketAddr, primary: SocketAddr, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["--port", &at.port().to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command
        .args(["--appendonly", "no", "--repl-diskless-sync-delay", "0"])
        .arg("--dir")
        .arg(folder);
    if at != primary {
        command.args(["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    }
    command
}

/// The paths of the authority's certificate, and of the certificate and the key of node `number`.
fn certificate_paths(folder: &Path, number: usize) -> [PathBuf; 3] {
    ["ca.pem".to_owned(), format!("certificate-{number}.pem"), format!("key-{number}.pem")]
        .map(|name| folder.join(name))
}

/// Writes an authority's certificate, and a certificate for each node.
fn certify(folder: &Path, nodes: usize) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    for number in 0..nodes {
        let [ca, certificate, key] = certificate_paths(folder, number);
        let pair = KeyPair::generate()?;
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        fs::write(ca, authority.pem())?;
        fs::write(certificate, params.signed_by(&pair, &authority)?.pem())?;
        fs::write(key, pair.serialize_pem())?;
    }
    Ok(())
}

/// The lines of a reply before its last one: `END`, `RESET`, `+OK` or an error.
fn ask(address: SocketAddr, request: &str) -> io::Result<Vec<String>> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(request.as_bytes())?;
    let mut lines = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "END" || line == "RESET" || line == "+OK" || line.contains("ERROR") {
            return Ok(lines);
        }
        lines.push(line);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
