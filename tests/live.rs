//! Server processes: Tollgate as built beside this test, and real memcached as the control.
//!
//! Here: starting one on a free port, and ending it on drop. Not here: the requests. Both report
//! their port the way memcached does, `-p -1` and a file named by `MEMCACHED_PORT_FILENAME`, so no
//! port is fixed and none is guessed.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

/// The time limit on a busy machine for actions that should complete at once. A node whose request
/// to join stays unanswered at first has its copies after 13 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The program of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Tollgate,
    Memcached,
}

impl Program {
    /// Tollgate, or with `CONTROL=memcached` the original, to check the tests themselves.
    pub(crate) fn under_test() -> Self {
        match std::env::var("CONTROL").as_deref() {
            Ok("memcached") => Self::Memcached,
            _ => Self::Tollgate,
        }
    }

    /// Its path. `PROGRAM` names another build of Tollgate, such as a release build.
    pub(crate) fn path(self) -> PathBuf {
        if let (Self::Tollgate, Some(program)) = (self, std::env::var_os("PROGRAM")) {
            return program.into();
        }
        let path = match self {
            Self::Memcached => PathBuf::from("/usr/bin/memcached"),
            // The test executable is target/<profile>/deps/tests-<hash>.
            Self::Tollgate => std::env::current_exe()
                .expect("a test knows its executable")
                .ancestors()
                .nth(2)
                .expect("cargo keeps tests two folders deep")
                .join("tollgate"),
        };
        let remedy = match self {
            Self::Memcached => "tests/setup.sh",
            Self::Tollgate => "cargo build",
        };
        assert!(path.exists(), "{} is missing: run `{remedy}`", path.display());
        path
    }

    /// Whether this is a memcached older than 1.6.40, the release with the new tokenizer.
    pub(crate) fn is_before_1_6_40(self) -> bool {
        static VERSION: OnceLock<String> = OnceLock::new();
        if self == Self::Tollgate {
            return false;
        }
        let version = VERSION.get_or_init(|| {
            let output = Command::new(self.path()).arg("-V").output().expect("memcached -V runs");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        });
        let patch = version.rsplit('.').next().and_then(|patch| patch.parse::<u32>().ok());
        assert!(version.starts_with("memcached 1.6."), "unknown oracle: {version}");
        patch.is_some_and(|patch| patch < 40)
    }
}

/// A running server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    addresses: Vec<SocketAddr>,
    folder: tempfile::TempDir,
    exited: Option<ExitStatus>,
}

impl Server {
    /// Starts the program under test on a free port of 127.0.0.1.
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_as(Program::under_test(), flags)
    }

    /// Starts `program`. `{folder}` in a flag is the server's own folder, `{auth}` a file in it
    /// with `user:pass`. Flags with `-s` start a server without TCP.
    pub(crate) fn start_as(program: Program, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        Self::start_in(program, flags, folder)
    }

    /// Starts in the folder of an earlier server, to find the files that it left.
    pub(crate) fn start_in(program: Program, flags: &[&str], folder: tempfile::TempDir) -> Self {
        Self::start_with(program, flags, folder, |_| {})
    }

    /// The same, after `prepare`, which may set variables of the environment.
    pub(crate) fn start_with(
        program: Program,
        flags: &[&str],
        folder: tempfile::TempDir,
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let ports = folder.path().join("ports");
        let auth = folder.path().join("auth");
        let _ = fs::remove_file(&ports);
        fs::write(&auth, "user:pass\n").expect("the folder is ours");
        let log = fs::File::create(folder.path().join("log")).expect("the folder is ours");
        let mut command = Command::new(program.path());
        command
            .args(["-p", "-1", "-U", "0"])
            .env("MEMCACHED_PORT_FILENAME", &ports)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        if !flags.contains(&"-l") {
            command.args(["-l", "127.0.0.1"]);
        }
        if program == Program::Memcached {
            command.args(["-u", "root"]).arg0("memcached");
        }
        for flag in flags {
            let flag = flag.replace("{auth}", &auth.to_string_lossy());
            command.arg(flag.replace("{folder}", &folder.path().to_string_lossy()));
        }
        prepare(&mut command);
        let child = command.spawn().expect("the server starts");
        let mut server = Self { child, addresses: Vec::new(), folder, exited: None };
        if !flags.contains(&"-s") {
            server.until("the server names its port", |server| {
                server.addresses = read_ports(&ports);
                server.addresses.iter().any(|address| TcpStream::connect(address).is_ok())
            });
        }
        server
    }

    /// The first address it listens on.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The folder that `{folder}` in a flag stands for.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `client` and `others` more are connected.
    #[track_caller]
    pub(crate) fn until_connected(&mut self, client: &mut Client, others: u64) {
        self.until(&format!("{others} others are connected"), |_| {
            client.stat("curr_connections") == others + 1
        });
    }

    /// The server's standard error.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Resident memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).map(str::parse::<u64>);
        kib.expect("VmRSS is given in kB").expect("VmRSS is a number") * 1024
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid fits"));
        signal::kill(pid, signal).expect("the server runs");
    }

    /// The exit status, if it ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("the child is ours");
        }
        self.exited
    }

    /// Waits for the server to end by itself.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            assert!(start.elapsed() < 3 * PATIENCE, "the server does not end: {}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the server to end by itself; returns its folder too.
    pub(crate) fn ended_leaving(mut self) -> (ExitStatus, tempfile::TempDir) {
        let status = self.ended();
        let empty = tempfile::tempdir().expect("a temporary folder can be made");
        (status, std::mem::replace(&mut self.folder, empty))
    }

    /// Polls until `yes` returns true, while the server runs.
    pub(crate) fn until(&mut self, what: &str, mut yes: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !yes(self) {
            if let Some(status) = self.exited() {
                panic!("{what}: the server ended with {status}: {}", self.log());
            }
            assert!(start.elapsed() < PATIENCE, "waited too long until {what}: {}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.exited.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads `TCP INET: 11211` and `TCP INET6: 11211` lines; the file appears whole.
fn read_ports(file: &Path) -> Vec<SocketAddr> {
    let lines = fs::read_to_string(file).unwrap_or_default();
    let address = |line: &str| {
        let (family, port) = line.split_once(": ")?;
        let host = match family {
            "TCP INET" => "127.0.0.1",
            "TCP INET6" => "::1",
            _ => return None,
        };
        Some(SocketAddr::new(host.parse().ok()?, port.parse().ok()?))
    };
    lines.lines().filter_map(address).collect()
}

/// A plain connection, for tests with a few requests.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a socket takes options");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket takes options");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket takes options");
        Self { stream }
    }

    /// Sends, and fails if the server is gone.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server takes what is sent");
    }

    /// Reads exactly the expected bytes, or fails with the received ones.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str) {
        let mut bytes = vec![0; expected.len()];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) => panic!(
                    "{error} after {:?}, expected {expected:?}",
                    String::from_utf8_lossy(&bytes[..filled])
                ),
            }
        }
        assert_eq!(String::from_utf8_lossy(&bytes[..filled]), expected);
    }

    /// Sends one request and expects one reply.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: impl AsRef<[u8]>, expected: &str) {
        self.send(request);
        self.expect(expected);
    }

    /// Sends one request and returns its reply, which ends with `end`.
    #[track_caller]
    pub(crate) fn ask_until(&mut self, request: impl AsRef<[u8]>, end: &str) -> String {
        self.send(request);
        let mut reply = Vec::new();
        let mut buffer = vec![0; 65_536];
        while !reply.ends_with(end.as_bytes()) {
            let more = self.stream.read(&mut buffer).expect("a reply comes");
            assert!(more > 0, "closed after {:?}", String::from_utf8_lossy(&reply));
            reply.extend_from_slice(&buffer[..more]);
        }
        String::from_utf8(reply).expect("the reply is text")
    }

    /// Reads until the server closes, and returns the bytes. A reset counts as closing.
    #[track_caller]
    pub(crate) fn closed(&mut self) -> String {
        let mut all = Vec::new();
        if let Err(error) = self.stream.read_to_end(&mut all) {
            let said = String::from_utf8_lossy(&all);
            let kind = error.kind();
            assert!(kind == std::io::ErrorKind::ConnectionReset, "{error} after {said:?}");
        }
        String::from_utf8_lossy(&all).into_owned()
    }

    /// One number of `stats`.
    #[track_caller]
    pub(crate) fn stat(&mut self, name: &str) -> u64 {
        let stats = self.ask_until("stats\r\n", "END\r\n");
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        let value = line.unwrap_or_else(|| panic!("no {name} in {stats}"));
        value.parse().unwrap_or_else(|error| panic!("{name} {value}: {error}"))
    }
}

/// A client that increments continuously, one request at a time, and notices disturbances.
#[derive(Debug)]
pub(crate) struct Neighbour {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Duration>,
}

impl Neighbour {
    /// Starts to count.
    pub(crate) fn of(server: &Server) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let mut client = server.connect();
        client.ask("set neighbour 0 0 1\r\n0\r\n", "STORED\r\n");
        let thread = thread::spawn(move || {
            let mut slowest = Duration::ZERO;
            let mut count = 0;
            // One more request after the stop, so that the end of the disturbance is covered.
            let mut more = true;
            while more {
                more = !stopped.load(Ordering::Relaxed);
                count += 1;
                let asked = Instant::now();
                client.ask("incr neighbour 1\r\n", &format!("{count}\r\n"));
                slowest = slowest.max(asked.elapsed());
            }
            slowest
        });
        Self { stop, thread }
    }

    /// Stops, and returns the longest time of a request. Every reply was right.
    pub(crate) fn slowest(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("nothing disturbs a neighbour")
    }
}
