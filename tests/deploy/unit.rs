//! `deploy/tollgate.service` with `deploy/tollgate.default`, started.
//!
//! Here: systemd's handling of the settings that matter to the server: user, environment, folders,
//! signals. Not here: the sandbox of the unit, which only systemd can create.

use std::{collections::BTreeMap, net::Ipv4Addr};

use nix::sys::signal::Signal;

use super::machine::{Machine, Plan, three_count_as_one};
use super::{read, seconds};
use crate::cluster::net::Net;

/// Settings without effect in this test: the time of the start, and the sandbox.
const OTHERS: [&str; 31] = [
    "Type",
    "Restart",
    "RestartSec",
    "RestartPreventExitStatus",
    "LimitNOFILE",
    "LimitMEMLOCK",
    "NoNewPrivileges",
    "CapabilityBoundingSet",
    "AmbientCapabilities",
    "ProtectSystem",
    "ProtectHome",
    "ProtectProc",
    "ProtectClock",
    "ProtectHostname",
    "ProtectControlGroups",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "PrivateTmp",
    "PrivateDevices",
    "RemoveIPC",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "SystemCallArchitectures",
    "SystemCallFilter",
    "UMask",
    "KillMode",
];

/// The `[Service]` section of the unit.
fn service() -> BTreeMap<String, String> {
    let file = read("tollgate.service");
    let (_, section) = file.split_once("[Service]\n").expect("it has a service");
    let section = section.split("\n[").next().expect("it ends");
    let lines = section.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once('=').expect("NAME=VALUE"));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The variables of an environment file.
fn variables(text: &str) -> BTreeMap<String, String> {
    let lines =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let pairs = lines.map(|line| line.split_once('=').expect("NAME=VALUE"));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The plan that systemd would run with these lines in the environment file.
fn plan(defaults: &str) -> Plan {
    let mut service = service();
    for other in OTHERS {
        service.remove(other).unwrap_or_else(|| panic!("the unit has no {other} any more"));
    }
    let mut take = |name: &str| service.remove(name).unwrap_or_else(|| panic!("no {name}"));
    let (user, group) = (take("User"), take("Group"));
    let folders =
        [("/var/lib", "StateDirectory"), ("/run", "RuntimeDirectory")].map(|(at, name)| {
            let (folder, mode) = (take(name), take(&format!("{name}Mode")));
            format!("install -d -m {mode} -o {user} -g {group} {at}/{folder}\n")
        });
    let (name, value) = take("Environment")
        .split_once('=')
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .expect("one");
    let mut environment = BTreeMap::from([(name, value)]);
    // The file takes precedence over the unit.
    assert_eq!(take("EnvironmentFile"), "-/etc/default/tollgate");
    environment.extend(variables(defaults));
    let start = take("ExecStart");
    let mut words = start.split(' ');
    // The unit's header installs the server there.
    let program = words.next().expect("a program");
    assert!(read("tollgate.service").contains(&format!("target/release/tollgate {program}\n")));
    assert_eq!(take("ExecReload"), "/bin/kill -HUP $MAINPID");
    assert_eq!(take("KillSignal"), "SIGTERM");
    let drain = environment.get("TOLLGATE_DRAIN_TIMEOUT").map_or(90, |text| seconds(text));
    assert!(seconds(&take("TimeoutStopSec")) > drain, "a drain may end");
    let folder = take("WorkingDirectory");
    let args = words.map(str::to_owned).collect();
    assert!(service.is_empty(), "the test does not know {service:?}");
    let prepare = folders.concat();
    Plan { args, environment, user: format!("{user}:{group}"), prepare, folder, is_read_only: true }
}

/// The command of the unit's line with this prefix.
fn command_of(line: &str) -> Vec<String> {
    let unit = read("tollgate.service");
    let found = unit.lines().find_map(|other| other.strip_prefix(line)).expect("it has the line");
    found.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_unit_starts_a_server_that_counts() {
    let Some(mut net) = Net::or_say_why("the_unit_starts_a_server_that_counts") else { return };
    net.add().expect("a place");
    let mut machine = Machine::start(&net, 0, "", plan(&read("tollgate.default")));
    let count = "exec 3<>/dev/tcp/127.0.0.1/11211 && printf 'set hits 0 0 1\\r\\n4\\r\\nincr hits 1\\r\\n' \
                 >&3 && read -r -u 3 first && read -r -u 3 second && echo $first $second";
    let said = |machine: &Machine| {
        let output = machine.run(&["bash", "-c", count]);
        String::from_utf8_lossy(&output.stdout).replace('\r', "")
    };
    machine.until("it counts", |machine| said(machine) == "STORED 5\n");
    // ExecReload, and then the stop signal.
    machine.signal(Signal::SIGHUP);
    assert_eq!(said(&machine), "STORED 5\n");
    assert_eq!(machine.ask("version\r\n"), None, "only this machine reaches it");
    machine.signal(Signal::SIGTERM);
    assert!(machine.ended().success(), "{}", machine.log());
}

#[test]
fn units_start_three_nodes_that_count_as_one() {
    let Some(mut net) = Net::or_say_why("units_start_three_nodes_that_count_as_one") else {
        return;
    };
    // Every setting is active, with the addresses of this network.
    let defaults = read("tollgate.default").replace("\n#TOLLGATE_", "\nTOLLGATE_");
    let limits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/limits.toml");
    let plans: Vec<Plan> = (0..3)
        .map(|number| {
            net.add().expect("a place more");
            let own = Ipv4Addr::new(10, 0, 0, 1);
            let mut defaults = defaults.clone();
            for name in ["TOLLGATE_ADVERTISE", "TOLLGATE_PEER_LISTEN"] {
                let host = net.host(number);
                defaults = defaults.replace(&format!("{name}={own}:"), &format!("{name}={host}:"));
            }
            for seed in 0..3_u8 {
                let written = format!("10.0.0.{}:21211", seed + 1);
                defaults = defaults.replace(&written, &format!("{}:21211", net.host(seed)));
            }
            assert!(!defaults.contains("=10.0.0."), "{defaults}");
            let mut plan = plan(&defaults);
            // The unit's comment puts the key into a file that only the server can read.
            plan.prepare += "install -d -m 0755 /etc/tollgate\n\
                             printf 0123456789abcdef0123456789abcdef > /etc/tollgate/peer.key\n\
                             chown tollgate /etc/tollgate/peer.key\n\
                             chmod 0400 /etc/tollgate/peer.key\n";
            plan.prepare += &["install -m 0644 ", limits, " /etc/tollgate/limits.toml\n"].concat();
            plan
        })
        .collect();
    let plans = plans.try_into().expect("there are three");
    let health = command_of("# Ready, by exit code: ");
    three_count_as_one(&net, "", plans, &health, |first| first.signal(Signal::SIGTERM));
}
