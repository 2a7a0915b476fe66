//! The commands that any client may send to any node, with every node up.

use std::thread;

use super::nodes::Cluster;

#[test]
fn any_node_answers_for_all_keys() {
    let cluster = Cluster::start(3, &[]);
    for number in 0..60 {
        let (first, second) = (number % 3, (number + 1) % 3);
        let key = format!("key{number}");
        let reply = cluster.ask(first, &format!("set {key} 5 0 2\r\n10\r\n"));
        assert_eq!(reply, "STORED");
        assert_eq!(cluster.ask(second, &format!("incr {key} 5\r\n")), "15");
        let reply =
            cluster.line((number + 2) % 3).lines(&format!("get {key}\r\n")).expect("it answers");
        assert_eq!(reply, [format!("VALUE {key} 5 2"), "15".to_owned()]);
    }
}

#[test]
fn answers_come_in_the_order_of_requests() {
    let cluster = Cluster::start(3, &[]);
    let mut line = cluster.line(1);
    let mut asked = String::new();
    for number in 0..500 {
        asked = asked
            + &format!("set k{number} 0 0 3\r\nabc\r\nincr k{number} 1\r\n")
            + &format!("get k{number} none{number}\r\n")
            + &format!("set n{number} 0 0 1 noreply\r\n{}\r\n", number % 9)
            + &format!("incr n{number} 1\r\nmn\r\n");
    }
    line.send(&asked).expect("it takes them");
    let mut next = || line.receive().expect("it answers").expect("it does not hang up");
    for number in 0..500 {
        assert_eq!(next(), "STORED");
        assert_eq!(next(), "CLIENT_ERROR cannot increment or decrement non-numeric value");
        assert_eq!(next(), format!("VALUE k{number} 0 3"));
        assert_eq!(next(), "abc");
        assert_eq!(next(), "END");
        assert_eq!(next(), (number % 9 + 1).to_string());
        assert_eq!(next(), "MN");
    }
}

#[test]
fn many_keys_of_many_owners_are_had_at_once() {
    let cluster = Cluster::start(3, &[]);
    let mut line = cluster.line(0);
    let keys: Vec<String> = (0..300).map(|number| format!("m{number}")).collect();
    for key in &keys {
        let reply =
            line.ask(&format!("set {key} 0 0 {}\r\n{key}\r\n", key.len())).expect("it answers");
        assert_eq!(reply.as_deref(), Some("STORED"));
    }
    for node in 0..3 {
        let reply =
            cluster.line(node).lines(&format!("get {}\r\n", keys.join(" "))).expect("an answer");
        let values: Vec<&String> = reply.iter().skip(1).step_by(2).collect();
        assert!(values.into_iter().eq(&keys), "in the order of the keys");
    }
    // Half of the connection is closed: earlier requests are still answered.
    let mut line = cluster.line(2);
    line.send("incr nothing 1\r\nget m7\r\n").expect("it takes them");
    line.shut();
    assert_eq!(line.receive().expect("it answers").as_deref(), Some("NOT_FOUND"));
    assert_eq!(line.lines("").expect("it answers"), ["VALUE m7 0 2", "m7"]);
    assert_eq!(line.receive().expect("it hangs up"), None);
}

#[test]
fn everything_goes_at_once() {
    let cluster = Cluster::start(3, &[]);
    for number in 0..200_u8 {
        assert_eq!(cluster.ask(number % 3, &format!("set f{number} 0 0 1\r\n1\r\n")), "STORED");
    }
    assert_eq!(cluster.ask(1, "flush_all\r\n"), "OK");
    for number in 0..200_u8 {
        assert_eq!(cluster.ask(number % 3, &format!("get f{number}\r\n")), "END");
    }
    assert_eq!(cluster.ask(1, "set f1 0 0 1\r\n1\r\n"), "STORED");
}

#[test]
fn one_key_is_counted_once_by_all() {
    let cluster = Cluster::start(3, &[]);
    assert_eq!(cluster.ask(0, "set hot 0 0 1\r\n0\r\n"), "STORED");
    let mut answers: Vec<u64> = thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let mut line = cluster.line(number % 3);
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    for _ in 0..20 {
                        line.send(&"incr hot 1\r\n".repeat(50)).expect("it takes them");
                        for _ in 0..50 {
                            let reply = line.receive().expect("it answers").expect("it is there");
                            answers.push(reply.parse().unwrap_or_else(|_| panic!("{reply}")));
                        }
                    }
                    assert!(answers.is_sorted(), "a client's own answers grow");
                    answers
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().expect("it counts")).collect()
    });
    answers.sort_unstable();
    assert!(answers.into_iter().eq(1..=6000), "every answer once");
}

#[test]
fn requests_that_go_as_one_are_answered_one_by_one() {
    let cluster = Cluster::start(3, &[]);
    for node in 0..3 {
        let (a, b, words) = (format!("a{node}"), format!("b{node}"), format!("w{node}"));
        let set = format!("set {a} 0 0 1\r\n5\r\nset {b} 0 0 1\r\n0\r\nset {words} 0 0 1\r\nx\r\n");
        let asked = format!(
            "{set}incr {a} 1\r\nincr {a} 10\r\nget {a}\r\nincr {b} 7\r\nincr {a} 1 noreply\r\ndecr {a} 2\r\n\
             incr none{node} 1\r\nincr none{node} 1\r\nincr {words} 1\r\nincr {words} 2\r\ndecr {b} 9\r\nincr {b} 1\r\n\
             incr {a} 18446744073709551615\r\nincr {a} 1\r\ndelete {a}\r\nincr {a} 1\r\nincr {a} 1\r\n\
             take t{node} 3 fixed:5/h\r\ntake t{node} 2 fixed:5/h\r\ntake t{node} 1 fixed:5/h\r\n\
             take t{node} 0 fixed:5/h\r\nmn\r\n"
        );
        let mut line = cluster.line(node);
        line.send(&asked).expect("it takes them");
        let word = |answer: String| match answer.split_once(' ') {
            // The times of a verdict vary and are ignored.
            Some((verdict @ ("ALLOW" | "DENY"), rest)) => {
                let left = rest.split(' ').nth(1).unwrap_or_default();
                format!("{verdict} {left}")
            }
            _ => answer,
        };
        let no_number = "CLIENT_ERROR cannot increment or decrement non-numeric value";
        let value = format!("VALUE {a} 0 2");
        let expected = [
            "STORED",
            "STORED",
            "STORED",
            "6",
            "16",
            &value,
            "16",
            "END",
            "7",
            "15",
            "NOT_FOUND",
            "NOT_FOUND",
            no_number,
            no_number,
            "0",
            "1",
            "14",
            "15",
            "DELETED",
            "NOT_FOUND",
            "NOT_FOUND",
            "ALLOW 2",
            "ALLOW 0",
            "DENY 0",
            "ALLOW 0",
            "MN",
        ];
        for expected in expected {
            assert_eq!(word(line.receive().expect("it answers").expect("it is there")), expected);
        }
    }
}

#[test]
fn a_limit_that_many_ask_at_once_admits_no_more() {
    let cluster = Cluster::start(3, &[]);
    let allowed: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|number| {
                let mut line = cluster.line(number % 3);
                scope.spawn(move || {
                    let mut allowed = 0;
                    for _ in 0..10 {
                        line.send(&"take hot 1 fixed:1000/h\r\n".repeat(50))
                            .expect("it takes them");
                        for _ in 0..50 {
                            let reply = line.receive().expect("it answers").expect("it is there");
                            allowed += usize::from(reply.starts_with("ALLOW "));
                        }
                    }
                    allowed
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("it asks")).sum()
    });
    assert_eq!(allowed, 1000, "of 3000");
}

#[test]
fn a_node_with_another_key_is_no_peer() {
    let keys = tempfile::tempdir().expect("a temporary folder can be made");
    let file = |name: &str, key: &str| {
        let path = keys.path().join(name);
        std::fs::write(&path, key).expect("the folder is ours");
        path.to_str().expect("a plain path").to_owned()
    };
    let (ours, theirs) = (file("ours", "0123456789abcdef\n"), file("theirs", "fedcba9876543210\n"));
    let mut cluster = Cluster::start(2, &["--peer-key-file", &ours]);
    assert_eq!(cluster.ask(0, "set k 0 0 1\r\n1\r\n"), "STORED");
    assert_eq!(cluster.ask(1, "incr k 1\r\n"), "2");
    let stranger = cluster.join_with(&["--peer-key-file", &theirs]);
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(cluster.stat(0, "nodes").as_deref(), Some("2"));
    assert_eq!(cluster.stat(stranger, "place").as_deref(), Some("seeking"));
    let reply = cluster.ask(stranger, "incr k 1\r\n");
    assert!(
        reply.starts_with("SERVER_ERROR not applied: no place in a cluster: wrong key"),
        "{reply}"
    );
}
