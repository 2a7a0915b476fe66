//! Many clients at one key: each reply occurs once, one client wins, no count is lost.

use std::{sync::Barrier, thread};

use crate::live::{Client, Server};

#[test]
fn increments_of_many_are_all_counted() {
    const THREADS: u64 = 8;
    const EACH: u64 = 20_000;
    let server = Server::start(&["-t", "4"]);
    let mut first = server.connect();
    first.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    let mut answers: Vec<u64> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let mut client = server.connect();
                scope.spawn(move || {
                    let mut answers = Vec::new();
                    for _ in 0..EACH / 100 {
                        client.send("incr n 1\r\n".repeat(100));
                        let mut said = String::new();
                        while said.matches('\n').count() < 100 {
                            said += &client.ask_until("", "\n");
                        }
                        answers.extend(said.lines().map(|line| line.parse::<u64>().expect(line)));
                    }
                    assert!(answers.is_sorted(), "a client's own answers grow");
                    answers
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it counts")).collect()
    });
    answers.sort_unstable();
    assert!(answers.into_iter().eq(1..=THREADS * EACH), "every answer once");
    first.ask("get n\r\n", "VALUE n 0 6\r\n160000\r\nEND\r\n");
}

/// Batches meet on a few keys in all orders, some with requests that need every shard: no client
/// waits for ever, and every count is there.
#[test]
fn batches_that_meet_are_counted_and_end() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 400;
    const KEYS: usize = 12;
    const EACH: usize = 3 * KEYS;
    let server = Server::start(&["-t", "4"]);
    let mut first = server.connect();
    for key in 0..KEYS {
        first.ask(format!("set n{key} 0 0 1\r\n0\r\n"), "STORED\r\n");
    }
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let mut client = server.connect();
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut batch: Vec<String> = Vec::new();
                    for place in 0..EACH {
                        // Each client steps through the keys by its own stride, coprime with their
                        // number.
                        let key = (round + place * [1, 5, 7, 11][number % 4]) % KEYS;
                        batch.push(format!("incr n{key} 1\r\n"));
                        match place % 10 {
                            3 => batch.push(format!("get n{key}\r\n")),
                            5 => batch.push(format!("touch n{key} 0\r\n")),
                            7 => batch.push(format!("take t{key} 1 fixed:1000000/d\r\n")),
                            9 if round % 16 == 0 => batch.push("stats\r\n".to_owned()),
                            _ => {}
                        }
                    }
                    client.ask_until(batch.concat() + "mn\r\n", "MN\r\n");
                }
            });
        }
    });
    let mut taken = 0;
    for key in 0..KEYS {
        first.ask(format!("incr n{key} 0\r\n"), &format!("{}\r\n", 3 * CLIENTS * ROUNDS));
        let answer = first.ask_until(format!("get t{key}\r\n"), "END\r\n");
        let count: usize = answer.lines().nth(1).map_or(0, |line| line.parse().expect(line));
        taken += count;
    }
    // These are at the indices 7, 17 and 27 of each batch.
    assert_eq!(taken, 3 * CLIENTS * ROUNDS);
}

/// All clients send `request` at once, in each round; then `check` gets the replies. `request` gets
/// the index of the round and of the client.
fn race(
    server: &Server,
    clients: usize,
    rounds: usize,
    request: impl Fn(usize, usize) -> String + Sync,
    mut prepare: impl FnMut(usize, &mut Client),
    check: impl Fn(usize, &[String]),
) {
    let mut first = server.connect();
    let (begin, end) = (Barrier::new(clients + 1), Barrier::new(clients + 1));
    let answers = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for number in 0..clients {
            let mut client = server.connect();
            let (begin, end, request, answers) = (&begin, &end, &request, &answers);
            scope.spawn(move || {
                for round in 0..rounds {
                    begin.wait();
                    let answer = client.ask_until(request(round, number), "\r\n");
                    answers.lock().expect("nobody panics with it").push(answer);
                    end.wait();
                }
            });
        }
        for round in 0..rounds {
            prepare(round, &mut first);
            begin.wait();
            end.wait();
            check(round, &std::mem::take(&mut *answers.lock().expect("nobody panics with it")));
        }
    });
}

#[test]
fn of_many_who_add_one_wins() {
    let server = Server::start(&["-t", "4"]);
    race(
        &server,
        64,
        200,
        |round, number| format!("add key{round} 0 0 2\r\n{:02}\r\n", number % 100),
        |_, _| {},
        |round, answers| {
            let winners = answers.iter().filter(|answer| *answer == "STORED\r\n").count();
            let losers = answers.iter().filter(|answer| *answer == "NOT_STORED\r\n").count();
            assert_eq!((winners, losers), (1, 63), "round {round}");
        },
    );
}

#[test]
fn of_many_who_compare_and_set_one_wins() {
    let server = Server::start(&["-t", "4"]);
    let unique = std::sync::atomic::AtomicU64::new(0);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    race(
        &server,
        16,
        200,
        |_, number| format!("cas k 0 0 2 {}\r\n{number:02}\r\n", unique.load(relaxed)),
        |_, first| {
            let answer = first.ask_until("set k 0 0 1\r\n0\r\ngets k\r\n", "END\r\n");
            let line = answer.lines().find(|line| line.starts_with("VALUE")).expect("it is there");
            let last = line.rsplit(' ').next().expect("a word").parse().expect("a number");
            unique.store(last, relaxed);
        },
        |round, answers| {
            let winners = answers.iter().filter(|answer| *answer == "STORED\r\n").count();
            let losers = answers.iter().filter(|answer| *answer == "EXISTS\r\n").count();
            assert_eq!((winners, losers), (1, 15), "round {round}");
        },
    );
}

#[test]
fn of_many_who_delete_one_finds_it() {
    let server = Server::start(&["-t", "4"]);
    race(
        &server,
        16,
        100,
        |_, _| "delete k\r\n".to_owned(),
        |_, first| first.ask("set k 0 0 1\r\n0\r\n", "STORED\r\n"),
        |round, answers| {
            let winners = answers.iter().filter(|answer| *answer == "DELETED\r\n").count();
            assert_eq!(winners, 1, "round {round}");
        },
    );
}

#[test]
fn counters_are_exact_while_others_come_and_go() {
    let server = Server::start(&["-t", "4", "-m", "16"]);
    let mut first = server.connect();
    first.ask("set n 0 0 1\r\n0\r\n", "STORED\r\n");
    thread::scope(|scope| {
        for number in 0..3 {
            let mut client = server.connect();
            scope.spawn(move || {
                for round in 0..200 {
                    // Neighbours in every size class, deleted in another order than stored.
                    let keys = || (0..50).map(|key| (key * 17 + round) % 50);
                    let stores: String = keys()
                        .map(|key| {
                            let value = "v".repeat(key * 7);
                            format!("set {number}-{key} 0 0 {} noreply\r\n{value}\r\n", value.len())
                        })
                        .collect::<Vec<_>>()
                        .concat();
                    client.send(stores);
                    let deletes: String = (0..50)
                        .map(|key| format!("delete {number}-{key} noreply\r\n"))
                        .collect::<Vec<_>>()
                        .concat();
                    client.ask(format!("{deletes}mn\r\n"), "MN\r\n");
                }
            });
        }
        let mut client = server.connect();
        scope.spawn(move || {
            for count in 1..=5_000 {
                client.ask("incr n 1\r\n", &format!("{count}\r\n"));
            }
        });
    });
    first.ask("get n\r\n", "VALUE n 0 4\r\n5000\r\nEND\r\n");
    assert_eq!(first.stat("curr_items"), 1);
}
