//! Kill -9 at random moments while limits change: no change is half done, and none is lost that was
//! answered.
//!
//! The test starts its own program again as the process that is killed.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::thread::sleep;

use super::*;

/// The folder of the store, for the process that is killed.
const FOLDER: &str = "TOLLGATE_CRASH_FOLDER";
/// The number of changes after which the test ends; few unless it is set.
const CHANGES: &str = "TOLLGATE_CRASH_CHANGES";
const CHANGES_FEW: u64 = 60;
/// Limits and overrides that the process changes in turn.
const NAMES: u64 = 5;

/// The next number of a fixed sequence.
fn draw(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Makes the change with number `seq`. The numbers of limit, override and text follow from it.
async fn change(world: &World, seq: u64) -> ChangedLimit {
    let name = format!("l{}", seq % NAMES);
    let version = world.store.limit(&name).map_or(0, |limit| limit.version);
    let row = world.store.overrides(Some(&name), None).pop();
    let done = match seq % 4 {
        0 if version > 0 && row.is_none() => {
            let actor = actor(false);
            let (version, note) = (Some(version), Some(format!("{seq}")));
            world.change(LimitsRequest::Remove { name, version, note, actor }).await
        }
        1 if version > 0 => {
            let policy = row.is_none().then(|| format!("fixed:{seq}/s"));
            let version = row.map_or(0, |row| row.version);
            world.set(&name, &format!("{name}:x"), policy.as_deref(), version).await
        }
        _ => world.put(&name, &limit(&name, &format!("fixed:{seq}/s"), ""), version).await,
    };
    done.unwrap_or_else(|error| panic!("change {seq}: {error}"))
}

/// Checks that the history has every change up to the last, and that the last change of each thing
/// is what the store has. Returns the last number.
fn check(store: &LimitsStore) -> u64 {
    let history = store.history(None);
    let last = history.first().map_or(0, |change| change.seq);
    let kept = last.min(book::CHANGES_KEPT);
    let expected: Vec<u64> = (last - kept + 1..=last).rev().collect();
    assert_eq!(history.iter().map(|change| change.seq).collect::<Vec<_>>(), expected);
    for number in 0..NAMES {
        let name = format!("l{number}");
        let limit = store.limit(&name);
        let change = history.iter().find(|row| row.name == name && row.what == "limit");
        let found = change.and_then(|change| change.body.clone());
        assert_eq!(found, limit.as_ref().map(|limit| limit.toml.clone()), "{name}");
        assert_eq!(change.map_or(0, |row| row.to), limit.map_or(0, |limit| limit.version));
        let row = store.overrides(Some(&name), None).pop();
        let change = history.iter().find(|row| row.name == name && row.what == "override");
        let found = change.and_then(|change| change.body.clone());
        assert_eq!(found, row.map(|row| row.policy), "{name}");
    }
    last
}

/// The process that is killed: it prints the number of each change that is answered.
#[tokio::test]
async fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = PathBuf::from(folder);
    let world = World::open(&folder).await;
    let mut seq = check(&world.store);
    loop {
        seq += 1;
        let done = change(&world, seq).await;
        assert_eq!(done.seq, seq);
        // Not `println`, which the test harness keeps.
        let line = format!("seq {seq}\n");
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).expect("it is read");
    }
}

#[tokio::test]
async fn a_killed_server_has_each_change_whole() {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let most = std::env::var(CHANGES).ok().and_then(|text| text.parse().ok());
    let most: u64 = most.unwrap_or(CHANGES_FEW);
    let (mut state, mut last, mut kills) = (0x9e37_79b9_7f4a_7c15, 0, 0);
    while last < most {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["limits::service::tests::crash::child", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs again");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut numbers = lines.map_while(Result::ok).filter_map(|line| {
            line.rsplit_once("seq ").and_then(|(_, number)| number.parse::<u64>().ok())
        });
        let first = numbers.next().expect("the process makes changes");
        assert_eq!(first, last + 1);
        sleep(Duration::from_micros(draw(&mut state) % 40_000));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        let answered = numbers.last().unwrap_or(first);
        last = check(&World::open(folder.path()).await.store);
        assert!((answered..=answered + 1).contains(&last), "{answered} were answered, {last} made");
        kills += 1;
    }
    assert!(kills > 1, "one life made all changes");
}
