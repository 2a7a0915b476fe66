//! Overrides in a file beside a real server: what each command of an operator says of them.
//!
//! Not here: the lines of such a file and its bounds (`server`), the cost of a million
//! (`at_scale`).

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Operated, limit_text, write_limits};
use crate::live::Program;

/// The lines of a long file.
const MANY: usize = 100_000;
/// Longest time until a file that changed is in force, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A server with a limits file, and a file of overrides beside it.
struct Desk {
    operated: Operated,
    limits: String,
    list: PathBuf,
}

impl Desk {
    fn start(limits: &str, list: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let limits = write_limits(folder.path(), limits);
        let path = folder.path().join("list.txt");
        fs::write(&path, list).expect("the folder is ours");
        let flags = ["--limits", &limits, "--limits-store", "{folder}/store"];
        Self { operated: Operated::start_in(&flags, folder), limits, list: path }
    }

    /// Replaces the file of overrides, and lets the server read it.
    fn write(&self, text: &str) {
        fs::write(&self.list, text).expect("the folder is ours");
        self.operated.server.signal(Signal::SIGHUP);
    }

    fn command(&self, words: &[&str], more: &[&str]) -> Output {
        let mut command = Command::new(Program::Tollgate.path());
        let output = command.args(words).args(more).env_clear().current_dir("/").output();
        assert!(self.limits.starts_with('/'), "a command runs in another folder");
        output.expect("the program is built")
    }

    /// The JSON of a command that succeeds.
    #[track_caller]
    fn json(&self, words: &[&str], more: &[&str]) -> Value {
        let output = self.command(words, more);
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// The output of the doctor beside the server, and its exit code.
    fn doctor(&self) -> (Option<i32>, String) {
        let address = self.operated.server.address().to_string();
        let output = self.command(&["doctor", "-l", &address], &["--limits", &self.limits]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.starts_with("The server runs."), "{said}");
        (output.status.code(), said)
    }

    /// The failure of `check-limits`.
    #[track_caller]
    fn refusal(&self) -> String {
        let output = self.command(&["check-limits", &self.limits], &[]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Waits until the server finds an override for the key in the file, or none.
    fn until_overridden(&self, key: &str, expected: bool) {
        let api = &self.operated.api;
        api.until(&format!("match?key={key}"), SOON, |found| {
            found["override_source"].as_str() == expected.then_some("file")
        });
    }

    /// Checks that the server and every command see the override of `key` by this line of the file.
    #[track_caller]
    fn all_see(&self, key: &str, line: &str, policy: &str) {
        let admin = format!("http://{}", self.operated.api.address);
        let admin = ["--admin", &admin, "--json"];
        let explained = self.json(&["explain", key, "2"], &admin);
        let matched = self.json(&["limits", "match", key], &admin);
        assert_eq!(explained["matched"], matched, "{key}");
        assert_eq!(explained["matched"], self.operated.api.get(&format!("match?key={key}")));
        assert_eq!(
            (&matched["override_key"], &matched["override_source"], &matched["policy"]),
            (&json!(line), &json!("file"), &json!(policy)),
            "{matched}"
        );
        assert_eq!(explained["standings"][0]["policy"], json!(policy), "{explained}");
        assert_eq!(explained["allowed"], json!(policy != "block"), "{explained}");
        let checked = self.json(&["check-limits", "--json"], &[&self.limits, key, "2"]);
        assert_eq!(checked["policy"], json!(policy), "{checked}");
        let over = &checked["override"];
        assert_eq!((&over["text"], &over["source"]), (&json!(line), &json!("file")), "{checked}");
        assert_eq!(self.doctor().0, Some(0), "{:?}", self.doctor());
    }
}

#[test]
fn every_command_sees_an_override_of_a_file() {
    let limit = limit_text("a", "a:{x}", "fixed:5/m", "overrides_file = \"list.txt\"\n");
    let mut desk = Desk::start(&limit, "a:one block\n");
    desk.all_see("a:one", "a:one", "block");
    let listed = desk.command(&["check-limits", &desk.limits], &[]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("  1 overrides in ") && listed.contains("list.txt\n"), "{listed}");

    // A long file, which the running server reads.
    let mut text = "a:10.0.0.0/8 fixed:3/m\na:vip-* allow\n".to_owned();
    for at in 2..MANY {
        let _ = writeln!(text, "a:key-{at:06} {}", ["allow", "block"][at % 2]);
    }
    desk.write(&text);
    desk.until_overridden("a:key-099999", true);
    desk.all_see("a:key-099999", "a:key-099999", "block");
    desk.all_see("a:10.9.8.7", "a:10.0.0.0/8", "fixed:3/m");
    desk.all_see("a:vip-7", "a:vip-*", "unlimited");
    let found = desk.operated.api.get("match?key=a:one");
    assert_eq!(found["override_key"], json!(null), "{found}");
    let rows = desk.operated.api.get("overrides?limit=a&q=key-09999");
    assert_eq!((&rows["total"], &rows["overrides"][9]["source"]), (&json!(10), &json!("file")));

    // A line that can never match: the server keeps the last good version, and all say so.
    desk.write(&format!("{text}b:1 block\n"));
    let line = format!("list.txt:{}: it cannot match: the limit counts no such key", MANY + 1);
    desk.operated.server.until("the file is refused", |server| server.log().contains(&line));
    desk.until_overridden("a:key-099999", true);
    let (code, said) = desk.doctor();
    assert!(code == Some(1) && said.contains(&format!("new limits were refused: {}", path(&desk))));
    assert!(said.contains("the limits file is refused: ") && said.contains(&line), "{said}");
    assert!(desk.refusal().contains(&line), "{}", desk.refusal());

    // A file that is gone: nothing changes in force, and a server would not start.
    fs::remove_file(&desk.list).expect("it is there");
    desk.operated.server.signal(Signal::SIGHUP);
    let (code, said) = desk.doctor();
    let gone = format!("the limits file is refused: cannot read {}: No such file", path(&desk));
    assert!(code == Some(1) && said.contains(&gone), "{said}");
    assert!(said.contains("write that file, or let the server read it"), "{said}");
    assert!(desk.refusal().contains("cannot read "), "{}", desk.refusal());
    let start = desk.command(&["-p", "0", "-U", "0", "--limits", &desk.limits], &[]);
    let said = String::from_utf8_lossy(&start.stderr).into_owned();
    assert!(!start.status.success() && said.contains("cannot read "), "{start:?}");
    desk.until_overridden("a:key-099999", true);

    // A good version again, without a signal.
    fs::write(&desk.list, "a:two fixed:9/m\n").expect("the folder is ours");
    desk.until_overridden("a:two", true);
    desk.all_see("a:two", "a:two", "fixed:9/m");
    desk.until_overridden("a:key-099999", false);
}

fn path(desk: &Desk) -> String {
    desk.list.display().to_string()
}

#[test]
fn overrides_of_all_origins_inherit_flags() {
    let flags = [
        ("fixed:5/m", "over = true\n", ",over"),
        ("fixed:5/m,over", "", ",over"),
        ("fixed:5/m", "shadow = true\n", ",shadow"),
        ("fixed:5/m,shadow", "", ",shadow"),
        ("fixed:5/m", "", ""),
    ];
    let limits = |is_flagged: bool| -> String {
        let limit = |(at, (policy, more, _)): (usize, &(&str, &str, &str))| {
            let (policy, more) = if is_flagged { (*policy, *more) } else { ("fixed:5/m", "") };
            let overrides = format!(
                "{more}overrides_file = \"list{at}.txt\"\noverrides = [\n\
                 {{ key = \"l{at}:key\", policy = \"fixed:9/m\" }},\n\
                 {{ where = {{ x = \"where\" }}, policy = \"fixed:9/m\" }},\n]\n"
            );
            limit_text(&format!("l{at}"), &format!("l{at}:{{x}}"), policy, &overrides)
        };
        flags.iter().enumerate().map(limit).collect()
    };
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    for at in 0..flags.len() {
        let list = folder.path().join(format!("list{at}.txt"));
        let text = format!("l{at}:file fixed:9/m\nl{at}:free allow\nl{at}:shut block\n");
        fs::write(list, text).expect("the folder is ours");
    }
    let path = write_limits(folder.path(), &limits(true));
    let flagged = ["--limits", &path, "--limits-store", "{folder}/store"];
    let Operated { server, api } = Operated::start_in(&flagged, folder);
    for at in 0..flags.len() {
        let path = format!("limits/l{at}/overrides/l{at}:api");
        let put = api.ask("PUT", &path, Some("*"), Some(&json!({ "policy": "fixed:9/m" })));
        assert_eq!(put.status, 201, "{put:?}");
    }
    let policy =
        |at: usize, key: &str| api.get(&format!("match?key=l{at}:{key}"))["policy"].clone();
    let mut client = server.connect();
    for (at, (_, _, flag)) in flags.iter().enumerate() {
        for key in ["key", "where", "file", "api"] {
            assert_eq!(policy(at, key), json!(format!("fixed:9/m{flag}")), "l{at}:{key}");
            let verdict = client.ask_until(format!("take l{at}:{key} 10 -\r\n"), "\r\n");
            let expected = if *flag == ",shadow" { "ALLOW 9 " } else { "DENY 9 " };
            assert!(verdict.starts_with(expected), "l{at}:{key}: {verdict}");
            // A refused request counts too under `over`.
            let left = client.ask_until(format!("take l{at}:{key} 1 - peek\r\n"), "\r\n");
            let is_refused = left.starts_with("DENY") || left.contains("shadow=1");
            assert_eq!(is_refused, *flag == ",over", "l{at}:{key}: {left}");
        }
        assert_eq!(policy(at, "free"), json!("unlimited"));
        let verdict = client.ask_until(format!("take l{at}:shut 1 -\r\n"), "\r\n");
        assert_eq!(verdict.contains(" shadow=1"), *flag == ",shadow", "{verdict}");
        assert_eq!(verdict.starts_with("ALLOW"), *flag == ",shadow", "{verdict}");
    }

    // Without the flags of their limits they have none, whatever their origin.
    fs::write(&path, limits(false)).expect("the folder is ours");
    server.signal(Signal::SIGHUP);
    api.until("match?key=l3:api", SOON, |found| found["policy"] == json!("fixed:9/m"));
    for at in 0..flags.len() {
        for key in ["key", "where", "file", "api"] {
            assert_eq!(policy(at, key), json!("fixed:9/m"), "l{at}:{key}");
        }
    }
}
