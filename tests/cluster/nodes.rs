//! Nodes as processes: starting, killing, stopping them, and querying the state of the cluster.
//!
//! Not here: the clients' load meanwhile (`work`).

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::atomic::{AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use cluster::placement::{Placement, Scheme};

use super::net::Net;
use crate::api::write_limits;
use crate::faketime::{self, WallClock};
use crate::live::{PATIENCE, Program};

/// The time limit for actions of a cluster, which takes longer than a single server.
pub(super) const LONG: Duration = Duration::from_mins(1);

/// One node: its number, and its process while it runs.
#[derive(Debug)]
pub(super) struct Node {
    number: u8,
    child: Option<Child>,
}

/// Some nodes and their folder.
#[derive(Debug)]
pub(super) struct Cluster {
    folder: tempfile::TempDir,
    /// The second and third part of the nodes' addresses.
    net: (u8, u8),
    /// The cluster's network namespaces, if it does not use the loopback.
    own_net: Option<Net>,
    /// Each node has a wall clock of its own, by libfaketime.
    has_clocks: bool,
    flags: Vec<String>,
    disks: Disks,
    /// Nodes log at the default level.
    is_quiet: bool,
    /// The program of nodes that start from now on.
    program: PathBuf,
    nodes: Vec<Node>,
}

/// The disks under the data directories of a cluster.
#[derive(Debug, Default)]
pub(super) enum Disks {
    /// The folder of the test.
    #[default]
    Plain,
    /// The folder of the test, with this library preloaded: it fails writes on command.
    Troubled(PathBuf),
    /// A separate file system for each node, mounted in memory.
    Small,
}

/// A client's connection to a node, which may end at any time.
#[derive(Debug)]
pub(super) struct Line {
    reader: BufReader<TcpStream>,
}

/// The reply to one request line.
pub(super) fn ask(line: &mut Line, text: &str) -> String {
    line.ask(text).expect("it answers").expect("it does not hang up")
}

/// Starts three nodes with `limits`, in a file in `folder`, and two copies.
pub(super) fn start_limited(folder: &Path, limits: &str) -> Cluster {
    Cluster::start(3, &["--replicas", "2", "--limits", &write_limits(folder, limits)])
}

impl Line {
    pub(super) fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    pub(super) fn send(&mut self, text: &str) -> std::io::Result<()> {
        self.reader.get_mut().write_all(text.as_bytes())
    }

    /// The next line, without its end; `None` when the node closed the connection.
    pub(super) fn receive(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 || !line.ends_with('\n') {
            return Ok(None);
        }
        line.truncate(line.trim_end().len());
        Ok(Some(line))
    }

    /// Closes the sending direction.
    pub(super) fn shut(&mut self) {
        self.reader.get_ref().shutdown(std::net::Shutdown::Write).expect("it is open");
    }

    pub(super) fn ask(&mut self, text: &str) -> std::io::Result<Option<String>> {
        self.send(text)?;
        self.receive()
    }

    /// Sends a request and returns all lines up to `END`.
    pub(super) fn lines(&mut self, text: &str) -> std::io::Result<Vec<String>> {
        self.send(text)?;
        let mut lines = Vec::new();
        while let Some(line) = self.receive()? {
            if line == "END" {
                return Ok(lines);
            }
            lines.push(line);
        }
        Err(std::io::ErrorKind::UnexpectedEof.into())
    }
}

impl Cluster {
    /// Starts `count` nodes that found a cluster of few partitions; `flags` go to each.
    pub(super) fn start(count: u8, flags: &[&str]) -> Self {
        Self::start_in(None, count, &[&["--partition-bits", "8"], flags].concat())
    }

    /// Like [`start`](Self::start), in a network of its own or not, with the number of partitions
    /// in `flags`.
    pub(super) fn start_in(own_net: Option<Net>, count: u8, flags: &[&str]) -> Self {
        Self::found(own_net, Disks::Plain, false, count, flags)
    }

    /// Like [`start`](Self::start), on other disks.
    pub(super) fn start_on(disks: Disks, count: u8, flags: &[&str]) -> Self {
        Self::found(None, disks, false, count, &[&["--partition-bits", "8"], flags].concat())
    }

    /// Like [`start`](Self::start), with nodes that log at the default level.
    pub(super) fn start_quietly(count: u8) -> Self {
        Self::found(None, Disks::Plain, true, count, &["--partition-bits", "8"])
    }

    /// Like [`start`](Self::start); `each` returns more flags of a node by its number and host.
    pub(super) fn start_each(
        count: u8,
        flags: &[&str],
        each: impl Fn(u8, Ipv4Addr) -> Vec<String>,
    ) -> Self {
        let flags = [&["--partition-bits", "8"], flags].concat();
        let mut cluster = Self::found(None, Disks::Plain, false, 0, &flags);
        for _ in 0..count {
            cluster.add();
        }
        let expect = ["--expect".to_owned(), count.to_string()];
        for number in 0..count {
            let more = [each(number, cluster.host(number)), expect.to_vec()].concat();
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            cluster.spawn(number, &more);
        }
        cluster.until_at_rest(usize::from(count));
        cluster
    }

    /// Like [`start`](Self::start), with nodes of another program.
    pub(super) fn start_by(program: PathBuf, count: u8, flags: &[&str]) -> Self {
        let flags = [&["--partition-bits", "8"], flags].concat();
        let mut cluster = Self::found(None, Disks::Plain, false, 0, &flags);
        cluster.use_program(program);
        cluster.begin(count);
        cluster
    }

    /// Nodes that start from now on run this program.
    pub(super) fn use_program(&mut self, program: PathBuf) {
        self.program = program;
    }

    fn found(
        own_net: Option<Net>,
        disks: Disks,
        is_quiet: bool,
        count: u8,
        flags: &[&str],
    ) -> Self {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let net = ((std::process::id() % 250 + 2) as u8, NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (nodes, program) = (Vec::new(), Program::Tollgate.path());
        let mut cluster = Self {
            folder,
            net,
            own_net,
            has_clocks: false,
            flags,
            disks,
            is_quiet,
            program,
            nodes,
        };
        cluster.begin(count);
        cluster
    }

    /// Like [`start`](Self::start), with a wall clock for each node, ahead by the seconds in
    /// `ahead`.
    pub(super) fn start_with_clocks(ahead: &[i64], flags: &[&str]) -> Self {
        let flags = [&["--partition-bits", "6"], flags].concat();
        Self::start_with_clocks_in(None, Disks::Plain, ahead, &flags)
    }

    /// Like [`start_with_clocks`](Self::start_with_clocks), in a network of its own or not, on
    /// other disks or not, with the number of partitions in `flags`.
    pub(super) fn start_with_clocks_in(
        own_net: Option<Net>,
        disks: Disks,
        ahead: &[i64],
        flags: &[&str],
    ) -> Self {
        let mut cluster = Self::found(own_net, disks, false, 0, flags);
        cluster.has_clocks = true;
        for (number, seconds) in (0..).zip(ahead) {
            cluster.set_clock(number, *seconds);
        }
        cluster.begin(ahead.len() as u8);
        cluster
    }

    fn begin(&mut self, count: u8) {
        for _ in 0..count {
            self.add();
        }
        for number in 0..count {
            self.spawn(number, &["--expect", &count.to_string()]);
        }
        self.until_at_rest(usize::from(count));
    }

    /// Sets the wall clock of a node `seconds` ahead, also while the node runs.
    pub(super) fn set_clock(&self, number: u8, seconds: i64) {
        self.clock(number).set(seconds);
    }

    fn clock(&self, number: u8) -> WallClock {
        WallClock::new(self.folder.path().join(format!("clock{number}")))
    }

    /// Adds a node without a process.
    fn add(&mut self) -> u8 {
        let number = self.nodes.len() as u8;
        if let Some(net) = &mut self.own_net {
            assert_eq!(net.add(), Ok(number));
        }
        self.nodes.push(Node { number, child: None });
        if matches!(self.disks, Disks::Small) {
            fs::create_dir(self.data(number)).expect("the folder is ours");
            mount(&self.data(number)).expect("it was tried before");
        }
        number
    }

    /// The network of this cluster.
    pub(super) fn net(&self) -> &Net {
        self.own_net.as_ref().expect("it was started in one")
    }

    pub(super) fn host(&self, number: u8) -> Ipv4Addr {
        if let Some(net) = &self.own_net {
            return net.host(number);
        }
        Ipv4Addr::new(127, self.net.0, self.net.1, number + 1)
    }

    pub(super) fn address(&self, number: u8) -> SocketAddr {
        (self.host(number), 11211).into()
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| self.address(node.number)).collect()
    }

    /// Starts another node, which joins.
    pub(super) fn join(&mut self) -> u8 {
        self.join_with(&[])
    }

    /// Like [`join`](Self::join), with further flags: the last one of a kind counts.
    pub(super) fn join_with(&mut self, flags: &[&str]) -> u8 {
        let number = self.add();
        self.spawn(number, flags);
        number
    }

    /// Starts a node that has ended, with the data directory that it left.
    pub(super) fn restart(&mut self, number: u8) {
        self.spawn(number, &[]);
    }

    /// Like [`restart`](Self::restart), with further flags.
    pub(super) fn restart_with(&mut self, number: u8, flags: &[&str]) {
        self.spawn(number, flags);
    }

    /// Starts a node that has ended, with an empty data directory: as a new node at the same
    /// address.
    pub(super) fn replace(&mut self, number: u8) {
        fs::remove_dir_all(self.data(number)).expect("it had a data directory");
        self.spawn(number, &[]);
    }

    pub(super) fn data(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("data{number}"))
    }

    fn spawn(&mut self, number: u8, more: &[&str]) {
        let host = self.host(number).to_string();
        let seeds: Vec<String> =
            (0..self.nodes.len() as u8).map(|seed| format!("{}:21211", self.host(seed))).collect();
        let log = File::options()
            .append(true)
            .create(true)
            .open(self.folder.path().join(format!("log{number}")))
            .expect("the folder is ours");
        let mut command = match &self.own_net {
            None => {
                let mut command = Command::new(&self.program);
                command.arg("--admin-loopback");
                command
            }
            Some(net) => {
                let mut command = Command::new("ip");
                // `ip` executes the program, so its process becomes the node's.
                command.args(["netns", "exec", &net.space(number)]).arg(&self.program);
                // Clients come from another network namespace, and are operators too.
                command.args(["--insecure", "-A"]);
                command
            }
        };
        let mut preloaded = Vec::new();
        if let Disks::Troubled(library) = &self.disks {
            preloaded.push(library.display().to_string());
            command.env("DISK_TROUBLE", self.trouble(number));
        }
        if self.has_clocks {
            self.clock(number).give_to(&mut command);
            preloaded.push(faketime::LIBRARY.to_owned());
        }
        if !preloaded.is_empty() {
            command.env("LD_PRELOAD", preloaded.join(":"));
        }
        if !self.is_quiet {
            command.arg("-v");
        }
        command
            .args(["-p", "11211", "-U", "0", "-t", "2", "-l", &host])
            .args(["--seeds", &seeds.join(","), "--data-dir"])
            .arg(self.data(number))
            .args(&self.flags)
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().expect("the node starts");
        self.nodes[usize::from(number)].child = Some(child);
    }

    /// The process id of a node.
    pub(super) fn process(&self, number: u8) -> i32 {
        self.pid(number).as_raw()
    }

    fn pid(&self, number: u8) -> Pid {
        let child = self.nodes[usize::from(number)].child.as_ref().expect("the node runs");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid fits"))
    }

    pub(super) fn signal(&self, number: u8, signal: Signal) {
        signal::kill(self.pid(number), signal).expect("the node runs");
    }

    /// Kills a node.
    pub(super) fn kill(&mut self, number: u8) {
        let mut child = self.nodes[usize::from(number)].child.take().expect("the node runs");
        child.kill().expect("the node runs");
        child.wait().expect("the child is ours");
    }

    /// Kills several nodes at the same moment.
    pub(super) fn kill_all(&mut self, numbers: &[u8]) {
        for number in numbers {
            self.signal(*number, Signal::SIGKILL);
        }
        for number in numbers {
            self.kill(*number);
        }
    }

    fn trouble(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("trouble{number}"))
    }

    /// Starts a fault of a node's disk, or ends it.
    pub(super) fn set_trouble(&self, number: u8, kind: Option<&str>) {
        let flag = self.trouble(number);
        match kind {
            Some(kind) => fs::write(flag, kind).expect("the folder is ours"),
            None => fs::remove_file(flag).expect("it has trouble"),
        }
    }

    /// Lets a node drain and end.
    pub(super) fn end(&mut self, number: u8) -> ExitStatus {
        self.signal(number, Signal::SIGTERM);
        self.until_ended(number)
    }

    /// Waits for the end of a node.
    pub(super) fn until_ended(&mut self, number: u8) -> ExitStatus {
        let mut child = self.nodes[usize::from(number)].child.take().expect("the node runs");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                return status;
            }
            if start.elapsed() > LONG {
                let _ = child.kill();
                panic!("node {number} does not end: {}", self.log(number));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The reply of each running node about `key` and its partition, of 256, and its log: printed
    /// when the key is missing.
    pub(super) fn accounts_of(&self, key: &str) -> String {
        let placement = Placement::new(Scheme::Ketama, 8).expect("few bits");
        let name = format!("STAT p{} ", placement.partition(key.as_bytes()).0);
        let account = |number| {
            let mut line = self.line(number);
            let answer = line.lines(&format!("get {key}\r\n"));
            let partitions = line.lines("stats cluster partitions all\r\n").unwrap_or_default();
            let partition = partitions.iter().find(|line| line.starts_with(&name));
            format!("node {number}: {answer:?} {partition:?}\n{}\n", self.log(number))
        };
        self.running().map(account).collect()
    }

    pub(super) fn log(&self, number: u8) -> String {
        fs::read_to_string(self.folder.path().join(format!("log{number}"))).unwrap_or_default()
    }

    fn running(&self) -> impl Iterator<Item = u8> + '_ {
        self.nodes.iter().filter(|node| node.child.is_some()).map(|node| node.number)
    }

    /// A value of `stats cluster`; `None` while the node does not reply.
    pub(super) fn stat(&self, number: u8, name: &str) -> Option<String> {
        let mut line = Line::connect(self.address(number)).ok()?;
        let stats = line.lines("stats cluster\r\n").ok()?;
        let wanted = format!("STAT {name} ");
        Some(stats.iter().find_map(|stat| stat.strip_prefix(&wanted))?.to_owned())
    }

    /// Waits until the cluster has `count` active nodes that know it, every partition has its
    /// copies, nothing moves, and the number of voters is right. A node that has just restarted
    /// reads the map of before from its disk, and its place is not active.
    pub(super) fn until_at_rest(&mut self, count: usize) {
        let start = Instant::now();
        loop {
            let is_at_rest = self.running().collect::<Vec<_>>().into_iter().all(|number| {
                self.stat(number, "nodes_active").as_deref() == Some(&count.to_string())
                    && self.stat(number, "place").as_deref() == Some("active")
                    && [
                        "partitions_moving",
                        "partitions_learners",
                        "partitions_under_replicated",
                        "partitions_without_primary",
                    ]
                    .iter()
                    .all(|name| self.stat(number, name).as_deref() == Some("0"))
                    && self.has_its_voters(number)
                    && self.has_its_links(number)
            });
            if is_at_rest {
                return;
            }
            for number in self.running().collect::<Vec<_>>() {
                let child = self.nodes[usize::from(number)].child.as_mut().expect("it runs");
                if let Some(status) = child.try_wait().expect("the child is ours") {
                    panic!("node {number} ended with {status}: {}", self.log(number));
                }
            }
            assert!(start.elapsed() < LONG, "not at rest: {}", self.logs());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether a node counts as many voters as its cluster should have. With fewer, the cluster
    /// cannot lose one of them. While a node is dead, any number is right: it may be a voter.
    fn has_its_voters(&self, number: u8) -> bool {
        let stat = |name| self.stat(number, name);
        let (Some(nodes), Some(voters)) = (stat("nodes"), stat("voters")) else { return false };
        let wanted = match nodes.parse::<usize>() {
            Ok(0..3) => 1,
            Ok(3..5) => 3,
            _ => 5,
        };
        stat("nodes_dead").as_deref() != Some("0") || voters.split(',').count() == wanted
    }

    /// Whether a node reaches all others over its own links. While a node is dead, it does not.
    fn has_its_links(&self, number: u8) -> bool {
        let is_zero = |name| self.stat(number, name).as_deref() == Some("0");
        !is_zero("nodes_dead") || is_zero("links_broken")
    }

    /// Waits until no node has a debt from its own admissions.
    pub(super) fn until_settled(&self) {
        let start = Instant::now();
        let owes = |number| self.stat(number, "debt_pending").as_deref() != Some("0");
        while self.running().any(owes) {
            assert!(start.elapsed() < Duration::from_secs(20), "not settled: {}", self.logs());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The remaining units of a key's limit according to a node; 0 if more are used.
    pub(super) fn left(&self, number: u8, key: &str, policy: &str) -> u64 {
        let look = self.ask(number, &format!("take {key} 1 {policy} peek\r\n"));
        let left: i64 = look.split(' ').nth(2).and_then(|word| word.parse().ok()).expect("a count");
        left.max(0).unsigned_abs()
    }

    /// The last lines of every log.
    pub(super) fn logs(&self) -> String {
        let mut all = String::new();
        for node in &self.nodes {
            let log = self.log(node.number);
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(15)..].join("\n");
            all = format!("{all}\nnode {}:\n{end}", node.number);
        }
        all
    }

    /// A connection to a running node.
    #[track_caller]
    pub(super) fn line(&self, number: u8) -> Line {
        let start = Instant::now();
        loop {
            match Line::connect(self.address(number)) {
                Ok(line) => return line,
                Err(error) => assert!(start.elapsed() < PATIENCE, "{error}: {}", self.logs()),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a request and returns its one line of reply.
    #[track_caller]
    pub(super) fn ask(&self, number: u8, text: &str) -> String {
        self.line(number).ask(text).expect("it answers").expect("it does not hang up")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut child) = node.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
            if matches!(self.disks, Disks::Small) {
                let data = self.folder.path().join(format!("data{}", node.number));
                let _ = Command::new("umount").arg(data).status();
            }
        }
    }
}

/// Mounts a file system of a few megabytes.
///
/// # Errors
///
/// The reason that this machine cannot mount one.
pub(super) fn mount(place: &std::path::Path) -> Result<(), String> {
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
        .arg(place)
        .output()
        .map_err(|error| format!("mount: {error}"))?;
    if mounted.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned())
}
