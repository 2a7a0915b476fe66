//! Ids in a cluster: a request repeated after its owner's death is answered, and not counted again.

use std::time::Instant;

use super::nodes::{Cluster, LONG};

/// The number of keys: enough that every node owns some.
const KEYS: usize = 60;

/// The requests of a key: one that passes, one that is refused, one that holds, a count.
fn requests(round: usize, key: usize) -> [String; 4] {
    let id = format!("id=r{round}\r\n");
    [
        format!("take some{key} 1 fixed:1000/600s {id}"),
        format!("take some{key} 1001 fixed:1000/600s id=big{round}\r\n"),
        format!("take held{key} 3 bucket:1000/600s hold=300s {id}"),
        format!("incrx count{key} 5 600 {id}"),
    ]
}

/// The reply of a node, repeating the request while its partition moves.
#[track_caller]
fn answer(cluster: &Cluster, node: u8, request: &str) -> String {
    let (start, mut line) = (Instant::now(), cluster.line(node));
    loop {
        let answer = line.ask(request).expect("it answers").expect("it does not hang up");
        if !answer.starts_with("SERVER_ERROR") && !answer.contains("degraded=1") {
            return answer;
        }
        assert!(start.elapsed() < LONG, "{answer}: {}", cluster.logs());
    }
}

/// Sends all requests of every key to one node.
fn ask_all(cluster: &Cluster, node: u8, round: usize) -> Vec<String> {
    let all = (0..KEYS).flat_map(|key| requests(round, key));
    all.map(|request| answer(cluster, node, &request)).collect()
}

/// Repeats all requests of a round: the replies are the same, and the counts equal the number of
/// rounds.
#[track_caller]
fn repeat_all(cluster: &Cluster, node: u8, round: usize, answers: &[String]) {
    let again = ask_all(cluster, node, round);
    assert_eq!(again, answers, "round {round}: {}", cluster.logs());
    for key in 0..KEYS {
        let left = |key: &str, policy: &str| {
            let peek = answer(cluster, node, &format!("take {key} 0 {policy} peek\r\n"));
            peek.split(' ').nth(2).map(str::to_owned)
        };
        let rounds = round + 1;
        assert_eq!(
            left(&format!("some{key}"), "fixed:1000/600s"),
            Some((1000 - rounds).to_string())
        );
        let value = answer(cluster, node, &format!("incrx count{key} 0 600\r\n"));
        assert!(value.starts_with(&format!("{} ", 5 * rounds)), "{value}");
    }
}

#[test]
fn an_id_is_answered_after_its_owner_was_killed() {
    let mut cluster = Cluster::start(3, &[]);
    let answers = ask_all(&cluster, 0, 0);
    // The owner of some keys is dead, and the backups answer.
    cluster.kill(1);
    cluster.until_at_rest(2);
    repeat_all(&cluster, 0, 0, &answers);

    // A new copy includes the ids, and answers when the replica that it was copied from is killed.
    let answers = ask_all(&cluster, 2, 1);
    cluster.restart(1);
    cluster.until_at_rest(3);
    cluster.kill(0);
    cluster.until_at_rest(2);
    repeat_all(&cluster, 1, 1, &answers);

    // A drained node hands over its ids.
    cluster.restart(0);
    cluster.until_at_rest(3);
    let answers = ask_all(&cluster, 1, 2);
    assert!(cluster.end(2).success(), "{}", cluster.log(2));
    cluster.until_at_rest(2);
    repeat_all(&cluster, 0, 2, &answers);
}
