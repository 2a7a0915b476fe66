//! A stand-in for a container, a pod or a host with systemd: network, files, user and environment
//! of one server.
//!
//! Here: a process in its network namespace, with folders of its own for `/etc`, `/run` and
//! `/var/lib`, and commands that run beside it, as a health check does. Not here: the content of
//! the shipped files (`compose`, `unit`, `chart`).

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};

use crate::cluster::net::Net;
use crate::live::Program;

/// The time limit for a cluster in a debug build, on a machine that runs other tests as well.
pub(super) const LONG: Duration = Duration::from_mins(1);

/// The folder of the server on each machine, first in its path.
const BIN: &str = "/run/bin";

/// Files of the host that programs need, beside those of the test.
const FILES_OF_ETC: [&str; 4] =
    ["/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/ld.so.cache"];

/// The environment in which a server is started.
#[derive(Debug, Clone, Default)]
pub(super) struct Plan {
    /// Flags of the server.
    pub(super) args: Vec<String>,
    /// The whole environment, except `PATH`.
    pub(super) environment: BTreeMap<String, String>,
    /// User and group, by name or number.
    pub(super) user: String,
    /// Shell lines that run as root before the server: they create the folders and files of a
    /// container, pod or unit.
    pub(super) prepare: String,
    /// The working directory.
    pub(super) folder: String,
    /// Whether everything else is read-only.
    pub(super) is_read_only: bool,
}

/// A machine whose server runs.
#[derive(Debug)]
pub(super) struct Machine {
    /// Its address.
    pub(super) host: Ipv4Addr,
    plan: Plan,
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Machine {
    /// Starts a server at node `place` of the network; `names` are lines of `/etc/hosts`.
    pub(super) fn start(net: &Net, place: u8, names: &str, plan: Plan) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let etc = folder.path().join("etc");
        fs::create_dir(&etc).expect("the folder is ours");
        for file in FILES_OF_ETC {
            let name = file.rsplit('/').next().expect("a path has a last part");
            fs::copy(file, etc.join(name)).expect("every Linux has it");
        }
        let user = "tollgate:x:11211:11211::/var/lib/tollgate:/usr/sbin/nologin\n";
        let mut passwd = fs::read_to_string(etc.join("passwd")).expect("it was copied");
        passwd.push_str(user);
        fs::write(etc.join("passwd"), passwd).expect("the folder is ours");
        let mut group = fs::read_to_string(etc.join("group")).expect("it was copied");
        group.push_str("tollgate:x:11211:\n");
        fs::write(etc.join("group"), group).expect("the folder is ours");
        fs::write(etc.join("hosts"), format!("127.0.0.1 localhost\n{names}")).expect("ours");
        // This setting allows several addresses of one name.
        fs::write(etc.join("host.conf"), "multi on\n").expect("the folder is ours");
        let log = fs::File::create(folder.path().join("log")).expect("the folder is ours");

        let program = Program::Tollgate.path();
        let read_only = if plan.is_read_only { "mount -o remount,bind,ro /\n" } else { "" };
        let script = format!(
            "set -eu\n\
             mount --bind {etc} /etc\n\
             mount -t tmpfs none /run\n\
             mount -t tmpfs none /var/lib\n\
             mkdir {BIN}\n\
             touch {BIN}/tollgate\n\
             mount --bind {program} {BIN}/tollgate\n\
             {prepare}\n\
             {read_only}\
             cd {work}\n\
             exec \"$@\"\n",
            etc = etc.display(),
            program = program.display(),
            prepare = plan.prepare,
            work = plan.folder,
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &net.space(place), "sh", "-c", &script, "machine"]);
        command.args(plan.as_user()).arg("tollgate").args(&plan.args);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the machine starts");
        Self { host: net.host(place), plan, child: Some(child), folder }
    }

    /// The server's standard error.
    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Runs a command beside the server, as its user, with its environment and files.
    pub(super) fn run<W: AsRef<str>>(&self, words: &[W]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["60", "nsenter", "-m", "-n", "-t", &self.pid().to_string()]);
        command.args(self.plan.as_user()).args(words.iter().map(AsRef::as_ref));
        command.stdin(Stdio::null()).output().expect("nsenter is installed")
    }

    /// Runs a health check; returns its output if it fails.
    pub(super) fn check(&self, words: &[String]) -> Result<(), String> {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    }

    /// Fails if the server ended.
    pub(super) fn still_runs(&mut self) {
        let child = self.child.as_mut().expect("it runs");
        if let Some(status) = child.try_wait().expect("the child is ours") {
            panic!("the server ended with {status}: {}", self.log());
        }
    }

    /// Polls until `yes` returns true, while the server runs.
    pub(super) fn until(&mut self, what: &str, mut yes: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !yes(self) {
            self.still_runs();
            assert!(start.elapsed() < LONG, "waited too long until {what}: {}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the server replies to clients.
    pub(super) fn until_it_listens(&mut self) {
        self.until("it listens", |machine| {
            machine.ask("version\r\n").is_some_and(|answer| answer.starts_with("VERSION"))
        });
    }

    /// The client port's reply of one line.
    pub(super) fn ask(&self, request: &str) -> Option<String> {
        let address = SocketAddr::from((self.host, 11211));
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).expect("a pid fits"));
        signal::kill(pid, signal).expect("the server runs");
    }

    /// Waits until the server has ended by itself.
    pub(super) fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("the child is ours") {
                return status;
            }
            if start.elapsed() > LONG {
                let _ = child.kill();
                panic!("the server does not end: {}", self.log());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Plan {
    /// The command that changes to the user, with exactly the plan's environment.
    fn as_user(&self) -> Vec<String> {
        let (user, group) = self.user.split_once(':').unwrap_or((&self.user, &self.user));
        let path = format!("PATH={BIN}:/usr/local/bin:/usr/bin:/bin");
        let words =
            ["setpriv", "--reuid", user, "--regid", group, "--clear-groups", "env", "-i", &path];
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        words.extend(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        words
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Three machines, one after the other: the health check of the first fails until the others are
/// there, then a count goes through each, and stays when the first one leaves by `leave`.
pub(super) fn three_count_as_one(
    net: &Net,
    names: &str,
    plans: [Plan; 3],
    health: &[String],
    leave: impl FnOnce(&mut Machine),
) {
    let [first, second, third] = plans;
    let mut first = Machine::start(net, 0, names, first);
    first.until_it_listens();
    for _ in 0..3 {
        let said = first.check(health).expect_err("one of three is not ready");
        assert!(said.contains("not ready"), "{said}");
        thread::sleep(Duration::from_millis(100));
    }
    let second = Machine::start(net, 1, names, second);
    let third = Machine::start(net, 2, names, third);
    let mut machines = [first, second, third];
    for machine in &mut machines {
        machine.until("its health check passes", |machine| machine.check(health).is_ok());
    }
    assert_eq!(machines[0].ask("set hits 0 0 1\r\n0\r\n").as_deref(), Some("STORED"));
    for (machine, count) in machines.iter().zip(["1", "2", "3"]) {
        assert_eq!(machine.ask("incr hits 1\r\n").as_deref(), Some(count), "{}", machine.log());
    }
    let [first, second, _third] = &mut machines;
    leave(first);
    assert!(first.ended().success(), "{}", first.log());
    assert_eq!(second.ask("incr hits 1\r\n").as_deref(), Some("4"), "{}", second.log());
}
