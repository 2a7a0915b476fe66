//! A million ids on a live server: no request is refused, and each id is remembered.
//!
//! Not here: ids that outlive their owner (`cluster/ids`), the table by itself (`engine`).

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::live::{PATIENCE, Server};

/// Takes with an id, from one client.
const TAKES: usize = 500_000;
/// An id is remembered for a minute; a slower run cannot repeat any.
const REPEATED_WITHIN: Duration = Duration::from_secs(50);

/// Sends the line of each number without waiting for replies, some 16 KiB at a time with a pause
/// between, and passes every reply to `each`.
pub(crate) fn pipeline(
    address: SocketAddr,
    (count, pause): (usize, Duration),
    line: impl Fn(usize) -> String + Send,
    mut each: impl FnMut(usize, &str),
) {
    let stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
    let mut writer = stream.try_clone().expect("it is a socket");
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut text = String::new();
            for number in 0..count {
                text.push_str(&line(number));
                if text.len() > 16 << 10 || number + 1 == count {
                    writer.write_all(text.as_bytes()).expect("the server reads");
                    text.clear();
                    thread::sleep(pause);
                }
            }
        });
        let (mut reader, mut answer) = (BufReader::new(&stream), String::new());
        for number in 0..count {
            answer.clear();
            reader.read_line(&mut answer).expect("the server answers");
            each(number, &answer);
        }
    });
}

#[test]
fn a_million_ids_at_64_megabytes_are_all_answered() {
    let server = Server::start(&["-m", "64", "-t", "2"]);
    let address = server.address();
    let start = Instant::now();
    let take = |client: usize, number: usize| {
        // One of the two clients uses a single key.
        let key = if client == 0 { 0 } else { number % 1000 };
        format!("take k{client}-{key} 1 fixed:1000000000/1h id=c{client}.{number}\r\n")
    };
    let first: Vec<Vec<String>> = thread::scope(|scope| {
        let send = |client: usize| {
            let mut first = Vec::new();
            pipeline(
                address,
                (TAKES, Duration::ZERO),
                |number| take(client, number),
                |number, answer| {
                    assert!(answer.starts_with("ALLOW 1000000000 "), "{number}: {answer}");
                    if number < 1000 {
                        first.push(answer.to_owned());
                    }
                },
            );
            first
        };
        let threads = [0, 1].map(|client| scope.spawn(move || send(client)));
        threads.into_iter().map(|thread| thread.join().expect("all are answered")).collect()
    });
    let took = start.elapsed();
    println!("{} takes with ids in {took:?}", 2 * TAKES);
    let mut client = server.connect();
    if took < REPEATED_WITHIN {
        assert_eq!((client.stat("ids"), client.stat("ids_forgotten")), (2 * TAKES as u64, 0));
        assert!(client.stat("ids_bytes") <= 56 << 20);
        assert!(client.stat("ids_oldest_seconds") <= 60);
        for (name, answers) in first.iter().enumerate() {
            for (number, answer) in answers.iter().enumerate().step_by(10) {
                assert_eq!(client.ask_until(take(name, number), "\r\n"), *answer);
            }
        }
    }
    // One more id is not refused either, and its repetition gets the same reply.
    let last = client.ask_until(take(1, TAKES), "\r\n");
    assert!(last.starts_with("ALLOW "), "{last}");
    assert_eq!(client.ask_until(take(1, TAKES), "\r\n"), last);
}
