//! What any client may do at any node, with every node up.

use std::thread;

use super::nodes::Cluster;

#[test]
fn any_node_answers_for_all_keys() {
    let cluster = Cluster::start(3, &[]);
    for number in 0..60 {
        let (first, second) = (number % 3, (number + 1) % 3);
        let key = format!("key{number}");
        let told = cluster.ask(first, &format!("set {key} 5 0 2\r\n10\r\n"));
        assert_eq!(told, "STORED");
        assert_eq!(cluster.ask(second, &format!("incr {key} 5\r\n")), "15");
        let told =
            cluster.line((number + 2) % 3).lines(&format!("get {key}\r\n")).expect("it answers");
        assert_eq!(told, [format!("VALUE {key} 5 2"), "15".to_owned()]);
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
    let mut next = || line.hear().expect("it answers").expect("it does not hang up");
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
        let told =
            line.ask(&format!("set {key} 0 0 {}\r\n{key}\r\n", key.len())).expect("it answers");
        assert_eq!(told.as_deref(), Some("STORED"));
    }
    for node in 0..3 {
        let told =
            cluster.line(node).lines(&format!("get {}\r\n", keys.join(" "))).expect("an answer");
        let values: Vec<&String> = told.iter().skip(1).step_by(2).collect();
        assert!(values.into_iter().eq(&keys), "in the order of the keys");
    }
    // Half the connection closed: what was asked is answered all the same.
    let mut line = cluster.line(2);
    line.send("incr nothing 1\r\nget m7\r\n").expect("it takes them");
    line.shut();
    assert_eq!(line.hear().expect("it answers").as_deref(), Some("NOT_FOUND"));
    assert_eq!(line.lines("").expect("it answers"), ["VALUE m7 0 2", "m7"]);
    assert_eq!(line.hear().expect("it hangs up"), None);
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
                            let told = line.hear().expect("it answers").expect("it is there");
                            answers.push(told.parse().unwrap_or_else(|_| panic!("{told}")));
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
fn who_has_another_key_is_no_peer() {
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
    assert_eq!(cluster.figure(0, "nodes").as_deref(), Some("2"));
    assert_eq!(cluster.figure(stranger, "place").as_deref(), Some("seeking"));
    let told = cluster.ask(stranger, "incr k 1\r\n");
    assert_eq!(told, "SERVER_ERROR not applied: the node is starting");
}
