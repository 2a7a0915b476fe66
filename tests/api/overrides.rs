//! Many overrides through the API: a thousand, or as many as `OVERRIDES` in the environment says.
//! `just overrides` puts ten thousand, the most that a server keeps.
//!
//! Here: putting them, the keys that they apply to, and a server by itself. Not here: a cluster
//! (`cluster::overridden`), overrides of a file (`at_scale`).

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Operated, TestedApi, limit_text};

/// The most overrides that a server keeps.
const OVERRIDES_MAX: usize = 10_000;
/// Requests at the same time.
const THREADS: usize = 3;
/// The longest time of all requests, on a busy machine.
const ALL_PUT_MAX: Duration = Duration::from_mins(15);
/// The longest time from the last reply until all overrides are in force.
const IN_FORCE_MAX: Duration = Duration::from_secs(20);

/// The number of overrides. The last one has the first policy.
fn overrides() -> usize {
    let wanted =
        env::var("OVERRIDES").ok().map(|text| text.parse().expect("OVERRIDES is a number"));
    wanted.unwrap_or(1_000)
}

/// The policy of an override.
fn policy_of(at: usize) -> &'static str {
    ["fixed:2/d", "block", "fixed:9/d"][at % 3]
}

/// Puts a limit and its overrides, in turn through all nodes, and waits until all are in force at
/// all nodes.
pub(crate) fn put_all(apis: &[TestedApi]) {
    apis[0].put("many", &limit_text("many", "many:{user}", "fixed:5/d", ""), "*");
    for api in apis {
        // Another node knows the limit a moment later.
        api.until("limits", IN_FORCE_MAX, |list| list.to_string().contains("\"many\""));
    }
    let (start, count) = (Instant::now(), overrides());
    let put_some = |thread: usize| {
        let api = &apis[thread % apis.len()];
        for at in (thread..count).step_by(THREADS) {
            let path = format!("limits/many/overrides/many:{at}");
            let body = json!({ "policy": policy_of(at) });
            let mut may_be_there = false;
            loop {
                let reply = api.ask("PUT", &path, Some("*"), Some(&body));
                match reply.status {
                    201 => break,
                    412 if may_be_there => break,
                    // A change that meets too many others is refused; one without an answer may
                    // have been made.
                    503 if start.elapsed() < ALL_PUT_MAX => may_be_there = true,
                    _ => panic!("many:{at}: {reply:?}"),
                }
            }
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || put_some(thread));
        }
    });
    println!("{count} overrides through {} nodes: {:?}", apis.len(), start.elapsed());
    assert!(start.elapsed() < ALL_PUT_MAX);
    for api in apis {
        api.until("overrides?limit=many", IN_FORCE_MAX, |list| list["total"] == json!(count));
        // The overrides in force at this node, which may follow later.
        api.until("limits/many", IN_FORCE_MAX, |limit| limit["overrides"] == json!(count));
    }
    if count == OVERRIDES_MAX {
        let one_more = json!({ "policy": "block" });
        let path = "limits/many/overrides/many:x";
        let refused = apis[0].ask("PUT", path, Some("*"), Some(&one_more));
        assert!(refused.detail().contains("there are 10000 overrides, the most"), "{refused:?}");
    }
}

/// Checks that overrides of all policies bind `take` and plain `incr`, and that other keys have the
/// limit's own policy. `ask` asks the server, or one of the nodes in turn.
pub(crate) fn check(mut ask: impl FnMut(&str) -> String) {
    let count = overrides();
    for at in (0..count).step_by(count / 20).chain(count - 3..count) {
        let reply = ask(&format!("take many:{at} 1 - peek\r\n"));
        let words: Vec<&str> = reply.split(' ').take(2).collect();
        let expected = [["ALLOW", "2"], ["DENY", "0"], ["ALLOW", "9"]][at % 3];
        assert_eq!(words, expected, "many:{at}: {reply}");
        // A refusal is above the limit of 5: a plain client compares with that.
        let counts = [["1", "2", "6"], ["6", "6", "6"], ["1", "2", "3"]][at % 3];
        let replies = counts.map(|_| ask(&format!("incr many:{at} 1\r\n")));
        assert_eq!(replies.each_ref().map(String::as_str), counts, "many:{at}");
    }
    let reply = ask("take many:other 1 - peek\r\n");
    assert!(reply.starts_with("ALLOW 5 "), "{reply}");
    let replies = [(); 7].map(|()| ask("incr many:other 1\r\n"));
    assert_eq!(replies, ["1", "2", "3", "4", "5", "6", "6"]);
}

#[test]
fn many_overrides_bind_on_one_node() {
    let Operated { server, api } = Operated::start(&["--limits-store", "{folder}/store"]);
    put_all(std::slice::from_ref(&api));
    let mut client = server.connect();
    check(|request| client.ask_until(request, "\r\n").trim_end().to_owned());
}
