//! Kill -9 at random moments while limits change over the API: a change is whole or not there,
//! history is complete, and every acknowledged change survives.
//!
//! Here: a real server with `--limits-store`, several editors at once, many lives on one file.
//! `CRASH_CHANGES` selects the long form (`just limits-crash`). Not here: a cluster (`sim`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::api::{ApiReply, Operated};
use crate::live::Program;

/// Changes of the short form.
const CHANGES_FEW: u64 = 60;
/// Editors at work at the same time.
const EDITORS: u64 = 3;
/// Limits that they change.
const NAMES: u64 = 5;
/// Limits of an import, which are all put or none.
const IMPORTED: u64 = 8;
/// The changes that the history keeps (`limits::service`).
const CHANGES_KEPT: u64 = 1_024;
/// The longest life of a server from its first change on, in microseconds.
const LIFE_MAX_US: u64 = 80_000;

/// A change that the server acknowledged.
#[derive(Debug)]
struct Acknowledged {
    edit: u64,
    seq: u64,
    version: u64,
}

/// Requests and replies over all lives.
#[derive(Default)]
struct Work {
    /// The number of the next edit, which its note and its policy have too.
    edits: AtomicU64,
    acknowledged: Mutex<Vec<Acknowledged>>,
    /// Imports that the server acknowledged.
    imports: Mutex<Vec<u64>>,
    /// Edits without a reply, or with an error of the server.
    unknown: AtomicU64,
    /// Edits refused because another editor was first.
    lost: AtomicU64,
}

/// The next number of a fixed sequence.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn limit(name: &str, edit: u64) -> String {
    format!("[[limit]]\nname = \"{name}\"\nmatch = \"{name}:{{x}}\"\npolicy = \"fixed:{edit}/s\"\n")
}

/// The `If-Match` of a thing's present state.
fn version_of(present: &Value) -> String {
    present["version"].as_u64().map_or_else(|| "*".to_owned(), |version| format!("\"{version}\""))
}

impl Work {
    /// Edits until the server is gone.
    fn edit(&self, operated: &Operated, mut chance: u64) {
        while self.edit_one(operated, &mut chance).is_ok() {}
    }

    fn edit_one(&self, operated: &Operated, chance: &mut u64) -> std::io::Result<()> {
        let edit = self.edits.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("l{}", draw(chance) % NAMES);
        let path = format!("limits/{name}");
        let present = operated.api.try_ask("GET", &path, None, "")?.body;
        let version = version_of(&present);
        let kind = draw(chance) % 8;
        let ask = |method: &str, path: &str, version: &str, body: &str| {
            let reply = operated.api.try_ask(method, path, Some(version), body);
            if reply.as_ref().is_ok_and(|reply| reply.status < 500) {
                return reply;
            }
            self.unknown.fetch_add(1, Ordering::Relaxed);
            reply
        };
        if kind == 0 {
            let names = (0..IMPORTED).map(|number| format!("i{number}"));
            let text: String = names.map(|name| limit(&name, edit)).collect();
            let reply = ask("PUT", "limits.toml?mode=merge", "", &text)?;
            assert_eq!(reply.status, 200, "{reply:?}");
            self.imports.lock().expect("no editor panics").push(edit);
            return Ok(());
        }
        let reply = match kind {
            1 if version != "*" => ask("DELETE", &format!("{path}?note={edit}"), &version, "")?,
            2 | 3 if version != "*" => {
                let rows = format!("overrides?limit={name}");
                let rows = operated.api.try_ask("GET", &rows, None, "")?.body;
                let version = version_of(&rows["overrides"][0]);
                let path = format!("{path}/overrides/{name}:x");
                let body = json!({ "policy": format!("fixed:{edit}/s"), "note": edit.to_string() });
                match version.as_str() {
                    "*" => ask("PUT", &path, "*", &body.to_string())?,
                    version if kind == 3 => {
                        ask("DELETE", &format!("{path}?note={edit}"), version, "")?
                    }
                    version => ask("PUT", &path, version, &body.to_string())?,
                }
            }
            _ => {
                let body = json!({ "toml": limit(&name, edit), "note": edit.to_string() });
                ask("PUT", &path, &version, &body.to_string())?
            }
        };
        self.note(edit, &reply);
        Ok(())
    }

    fn note(&self, edit: u64, reply: &ApiReply) {
        match reply.status {
            200 | 201 => {
                let number = |name: &str| reply.body[name].as_u64().expect("a change has numbers");
                let acknowledged =
                    Acknowledged { edit, seq: number("seq"), version: number("version") };
                self.acknowledged.lock().expect("no editor panics").push(acknowledged);
            }
            // Another editor removed the limit, or changed it.
            404 | 409 | 412 => _ = self.lost.fetch_add(1, Ordering::Relaxed),
            _ => panic!("edit {edit}: {reply:?}"),
        }
    }
}

/// The history of all limits, by number.
fn history(operated: &Operated) -> BTreeMap<u64, Value> {
    let (mut rows, mut before) = (BTreeMap::new(), String::new());
    loop {
        let page = operated.api.get(&format!("audit?limit=1000{before}"));
        for row in page["changes"].as_array().expect("a list") {
            rows.insert(row["seq"].as_u64().expect("a number"), row.clone());
        }
        match page["next"].as_u64() {
            Some(next) => before = format!("&before={next}"),
            None => return rows,
        }
    }
}

/// Checks the whole state of a server that has started again. Returns the last change.
fn check(operated: &Operated, work: &Work) -> u64 {
    let history = history(operated);
    let last = history.last_key_value().map_or(0, |(seq, _)| *seq);
    let first = last - last.min(CHANGES_KEPT) + 1;
    let numbers: Vec<u64> = history.keys().copied().collect();
    assert_eq!(numbers, (first..=last).collect::<Vec<_>>(), "history has no gaps");

    let mut noted = BTreeSet::new();
    for (seq, row) in &history {
        if let Some(note) = row["note"].as_str() {
            assert!(
                noted.insert(note),
                "edit {note} is in history twice, the second time as {seq}"
            );
        }
    }
    for change in work.acknowledged.lock().expect("no editor panics").iter() {
        let Acknowledged { edit, seq, version } = change;
        assert!(*seq <= last, "{change:?} is lost: the last change is {last}");
        if let Some(row) = history.get(seq) {
            assert_eq!(row["note"], edit.to_string(), "{change:?}");
            assert_eq!(row["to"], *version, "{change:?}");
        }
    }

    let names = (0..NAMES).map(|number| format!("l{number}"));
    let names: Vec<String> =
        names.chain((0..IMPORTED).map(|number| format!("i{number}"))).collect();
    let mut imported = BTreeMap::<u64, BTreeSet<u64>>::new();
    for name in &names {
        check_limit(operated, &history, name, &mut imported);
    }
    // The oldest import may have left the history in part.
    let whole = imported.iter().filter(|(_, rows)| rows.first().is_some_and(|row| *row > first));
    for (edit, rows) in whole {
        assert_eq!(rows.len() as u64, IMPORTED, "import {edit} is half done: {rows:?}");
    }
    for edit in work.imports.lock().expect("no editor panics").iter() {
        let is_old = imported.first_key_value().is_some_and(|(oldest, _)| oldest > edit);
        assert!(imported.contains_key(edit) || first > 1 || is_old, "import {edit} is lost");
    }
    last
}

/// Checks that a limit and its overrides are what their last changes say.
fn check_limit(
    operated: &Operated,
    history: &BTreeMap<u64, Value>,
    name: &str,
    imported: &mut BTreeMap<u64, BTreeSet<u64>>,
) {
    let newest =
        |what: &str| history.values().rev().find(|row| row["what"] == what && row["name"] == name);
    let reply = operated.api.try_ask("GET", &format!("limits/{name}"), None, "");
    let limit = reply.expect("the server runs").body;
    if let Some(change) = newest("limit") {
        assert_eq!(change["to"], limit["version"].as_u64().unwrap_or(0), "{change} {limit}");
    }
    let own = operated.api.try_ask("GET", &format!("limits/{name}/history?limit=1000"), None, "");
    let own = own.expect("the server runs").body;
    let changes = own["changes"].as_array().cloned().unwrap_or_default();
    let changes = changes.iter().filter(|change| change["what"] == "limit");
    for (place, change) in changes.enumerate() {
        if place == 0 {
            assert_eq!(change["body"], limit["toml"], "{name}: text and history differ");
        }
        let edit = change["body"]
            .as_str()
            .and_then(|body| body.split_once("fixed:")?.1.split_once('/')?.0.parse().ok());
        if let Some(edit) = edit.filter(|_| name.starts_with('i')) {
            imported.entry(edit).or_default().extend(change["seq"].as_u64());
        }
    }
    let rows = operated.api.get(&format!("overrides?limit={name}"));
    if let Some(change) = newest("override") {
        let version = rows["overrides"][0]["version"].as_u64().unwrap_or(0);
        assert_eq!(change["to"], version, "{change} {rows}");
    }
}

#[test]
fn a_killed_server_keeps_each_change_whole() {
    if Program::under_test() == Program::Memcached {
        return;
    }
    let most = std::env::var("CRASH_CHANGES").ok();
    let most = most.map_or(CHANGES_FEW, |text| text.parse().expect("a number of changes"));
    let flags = ["--limits-store", "{folder}/limits.redb"];
    let (mut chance, mut last, mut kills, mut cut) = (0x9e37_79b9_7f4a_7c15_u64, 0, 0_u64, 0_u64);
    let work = Work::default();
    let mut folder = tempfile::tempdir().expect("a temporary folder can be made");
    while last < most {
        let operated = Operated::start_in(&flags, folder);
        let now = check(&operated, &work);
        assert!(now >= last, "changes are lost: {now} of {last}");
        let unknown = work.unknown.load(Ordering::Relaxed);
        thread::scope(|scope| {
            for _ in 0..EDITORS {
                let (work, operated, chance) = (&work, &operated, draw(&mut chance));
                scope.spawn(move || work.edit(operated, chance));
            }
            thread::sleep(Duration::from_micros(draw(&mut chance) % LIFE_MAX_US));
            operated.server.signal(Signal::SIGKILL);
        });
        cut += u64::from(work.unknown.load(Ordering::Relaxed) > unknown);
        kills += 1;
        folder = operated.server.ended_leaving().1;
        let operated = Operated::start_in(&flags, folder);
        last = check(&operated, &work);
        operated.server.signal(Signal::SIGKILL);
        folder = operated.server.ended_leaving().1;
    }
    let acknowledged = work.acknowledged.lock().expect("no editor panics").len();
    let imports = work.imports.lock().expect("no editor panics").len();
    let beaten = work.lost.load(Ordering::Relaxed);
    println!(
        "{last} changes in {kills} lives, {cut} of them ended within a change; {acknowledged} \
         changes and {imports} imports acknowledged, {beaten} refused for another's sake"
    );
    assert!(kills > 1, "one life made all changes");
    assert!(cut * 4 > kills, "few of {kills} kills met a change: {cut}");
}
