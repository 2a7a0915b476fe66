//! Links on sockets of this process: order, bounds, silence, TLS.

use std::io::{Read as _, Write as _};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cluster::id::{Incarnation, Partition, Term};
use cluster::message::{Decoded, decode};
use cluster::replica::{Outcome, Reply, SessionId};
use tokio::runtime::Runtime;
use tokio_rustls::rustls;

use super::transport::{Life, Number};
use super::*;
use crate::lanes::TlsConnection;
use crate::lanes::ping::Pings;
use crate::net::shared::{OtherEnd, SharedStream};

const MS: u64 = 1_000_000;
const MOST: usize = 4 << 20;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime")
}

fn number(number: u64) -> Number {
    (Incarnation(1), number)
}

fn bounds() -> Bounds {
    Bounds::default()
}

/// A reply with a result of `bytes` bytes, for worker `core`.
fn reply(core: u16, seq: u64, bytes: usize) -> Frame {
    let to = SessionId { node: NodeId(2), incarnation: Incarnation(1), core };
    let outcome = Outcome::Done(Bytes::from(vec![7; bytes]));
    Frame::Reply { partition: Partition(5), to, reply: Reply { term: Term(1), seq, outcome } }
}

/// Attaches one end of a socket to the current runtime and installs it. Returns the other end.
fn install(transport: &Transport, link: u64, tls: Option<Box<TlsConnection>>) -> OtherEnd {
    let (stream, theirs) = SharedStream::pair();
    let pings = Pings::new(true, Timing::default(), 0);
    let waker = Waker::noop().clone();
    assert!(transport.install(number(link), Arc::new(stream), tls, waker, pings));
    theirs
}

/// Does what the worker of a link does about a full socket, until nothing is left to send.
async fn drain(transport: &Transport) {
    for _ in 0..3 {
        std::future::poll_fn(|context: &mut Context<'_>| {
            if transport.poll_unblocked(context) || !transport.is_blocked() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        transport.flush();
        tokio::task::yield_now().await;
    }
}

/// Reads frames until `count` replies are there.
fn replies(mut socket: impl std::io::Read, count: usize) -> Vec<(u16, u64)> {
    let (mut input, mut heard) = (BytesMut::new(), Vec::new());
    let mut room = vec![0; 8192];
    while heard.len() < count {
        let read = socket.read(&mut room).expect("it is open");
        assert!(read > 0, "{} of {count}", heard.len());
        input.extend_from_slice(&room[..read]);
        while let Decoded::Frame(frame) = decode(&mut input, 0, bounds()).expect("a good frame") {
            if let Frame::Reply { to, reply, .. } = frame {
                heard.push((to.core, reply.seq));
            }
        }
    }
    heard
}

#[test]
fn frames_of_many_threads_arrive_in_the_order_of_each() {
    const EACH: u64 = 3000;
    let runtime = runtime();
    let transport = Transport::default();
    let theirs = {
        let _context = runtime.enter();
        install(&transport, 1, None)
    };
    let heard = thread::scope(|scope| {
        let reader = scope.spawn(|| replies(theirs, 4 * EACH as usize));
        for core in 0..4 {
            let transport = &transport;
            scope.spawn(move || {
                for seq in 0..EACH {
                    let frame = reply(core, seq, 100);
                    let appended = transport.lock().append(&frame, usize::MAX, 0, bounds());
                    assert_eq!(appended, Ok(()));
                    if seq % 7 == 6 || seq + 1 == EACH {
                        transport.flush();
                    }
                }
            });
        }
        while !reader.is_finished() {
            runtime.block_on(drain(&transport));
            thread::sleep(Duration::from_micros(100));
        }
        reader.join().expect("it does not panic")
    });
    for core in 0..4 {
        let of_core = heard.iter().filter(|(of, _)| *of == core).map(|(_, seq)| *seq);
        assert!(of_core.eq(0..EACH), "thread {core}");
    }
}

#[test]
fn output_of_a_full_socket_is_bounded() {
    let runtime = runtime();
    let _context = runtime.enter();
    let transport = Transport::default();
    let theirs = install(&transport, 1, None);
    runtime.block_on(drain(&transport));
    let mut count = 0;
    while transport.lock().append(&reply(0, count, 1000), MOST, 0, bounds()).is_ok() {
        count += 1;
        transport.flush();
    }
    let full = transport.lock().append(&reply(0, count, 1000), MOST, 0, bounds());
    assert_eq!(full, Err(NotAppended::Full));
    assert_eq!(transport.lock().append(&reply(0, count, 1000), 2 * MOST, 0, bounds()), Ok(()));
    assert!((4000..6000).contains(&count), "{count} kilobytes");
    let reader = thread::spawn(move || replies(theirs, count as usize + 1));
    while !reader.is_finished() {
        runtime.block_on(drain(&transport));
    }
    assert!(reader.join().expect("no panic").into_iter().map(|(_, seq)| seq).eq(0..=count));
}

#[test]
fn newer_connection_ends_the_older_for_good() {
    let runtime = runtime();
    let _context = runtime.enter();
    let transport = Transport::default();
    let frame = reply(0, 1, 10);
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Err(NotAppended::Down));
    let _first = install(&transport, 5, None);
    assert!(transport.is_up());
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Ok(()));
    let mut second = install(&transport, 7, None);
    assert!(!transport.end(number(5)), "that was the older one");
    assert!(transport.failure(number(5)).is_some());
    assert_eq!(transport.failure(number(7)), None);
    transport.flush();
    second.set_nonblocking(true).expect("it is a socket");
    let read = second.read(&mut [0; 64]).map_err(|error| error.kind());
    assert_eq!(read, Err(std::io::ErrorKind::WouldBlock), "nothing of the older one");
    let (late, _theirs) = SharedStream::pair();
    let pings = Pings::new(true, Timing::default(), 0);
    assert!(!transport.install(number(6), Arc::new(late), None, Waker::noop().clone(), pings));
    assert!(transport.end(number(7)));
    assert!(!transport.is_up());
}

#[test]
fn silent_link_takes_no_frames_until_it_is_heard() {
    let runtime = runtime();
    let _context = runtime.enter();
    let transport = Transport::default();
    let _theirs = install(&transport, 1, None);
    let frame = reply(0, 1, 10);
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Ok(()));
    assert!(!transport.tick(50 * MS, bounds()));
    assert!(transport.tick(100 * MS, bounds()), "it asks");
    assert!(!transport.tick(399 * MS, bounds()));
    assert_eq!(transport.look_for_life(399 * MS), Life::Known);
    assert!(!transport.tick(400 * MS, bounds()), "its worker is to look");
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Ok(()));
    assert_eq!(transport.look_for_life(400 * MS), Life::Silent);
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Err(NotAppended::Down));
    assert!(!transport.is_up());
    assert!(transport.answered(1));
    assert_eq!(transport.look_for_life(450 * MS), Life::Known);
    assert_eq!(transport.lock().append(&frame, MOST, 0, bounds()), Ok(()));
    assert!(transport.tick(500 * MS, bounds()));
    assert_eq!(transport.look_for_life(3499 * MS), Life::Silent);
    assert_eq!(transport.look_for_life(3499 * MS), Life::Known);
    assert_eq!(transport.look_for_life(3500 * MS), Life::Lost);
}

#[test]
fn answer_that_waits_in_the_socket_counts() {
    let runtime = runtime();
    let _context = runtime.enter();
    let transport = Transport::default();
    let _theirs = install(&transport, 1, None);
    assert!(transport.tick(1000 * MS, bounds()), "an idle link is asked too");
    // The process did not run for a while; its worker reads first.
    assert!(!transport.tick(9000 * MS, bounds()));
    assert!(!transport.answered(1), "it was not silent");
    assert_eq!(transport.look_for_life(9000 * MS), Life::Known);
    assert!(transport.is_up());
}

/// Two ends of a TLS connection, after the handshake.
fn tls_pair() -> (TlsConnection, TlsConnection) {
    let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).expect("a certificate");
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let certificate = made.cert.der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.expect("a key"))
        .expect("they fit");
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from("node").expect("a name");
    let client = rustls::ClientConnection::new(Arc::new(client), name).expect("it is set up");
    let server = rustls::ServerConnection::new(Arc::new(server)).expect("it is set up");
    let mut ends = [TlsConnection::from(client), TlsConnection::from(server)];
    while ends.iter().any(|end| end.is_handshaking() || end.wants_write()) {
        for from in 0..2 {
            let mut bytes = Vec::new();
            while ends[from].wants_write() {
                ends[from].write_tls(&mut bytes).expect("into memory");
            }
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                ends[1 - from].read_tls(&mut bytes).expect("from memory");
                ends[1 - from].process_new_packets().expect("a good handshake");
            }
        }
    }
    let [client, server] = ends;
    (client, server)
}

#[test]
fn tls_carries_frames_longer_than_its_buffers() {
    const COUNT: u64 = 20;
    let runtime = runtime();
    let _context = runtime.enter();
    let (client, server) = tls_pair();
    let (from, to) = (Transport::default(), Transport::default());
    let mut wire = install(&from, 1, Some(Box::new(client)));
    let _unused = install(&to, 1, Some(Box::new(server)));
    for seq in 0..COUNT {
        let frame = reply(0, seq, if seq == 10 { 500_000 } else { 20 });
        assert_eq!(from.lock().append(&frame, MOST, 0, bounds()), Ok(()));
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let mut room = vec![0; 4096];
        while let Ok(count @ 1..) = wire.read(&mut room) {
            sender.send(room[..count].to_vec()).expect("somebody listens");
        }
    });
    let (mut input, mut heard) = (BytesMut::new(), Vec::new());
    while heard.len() < COUNT as usize {
        runtime.block_on(drain(&from));
        let Ok(bytes) = receiver.recv_timeout(Duration::from_millis(1)) else { continue };
        to.decrypt(number(1), &bytes, &mut input).expect("good TLS");
        while let Decoded::Frame(frame) = decode(&mut input, 0, bounds()).expect("a good frame") {
            if let Frame::Reply { reply, .. } = frame {
                heard.push(reply.seq);
            }
        }
    }
    assert!(heard.into_iter().eq(0..COUNT));
    let garbage = to.decrypt(number(1), &[9; 100], &mut input);
    assert!(garbage.is_err());
}

#[test]
fn reply_goes_over_the_link_of_the_worker_that_waits() {
    let links = DataLinks::new(NodeId(2), "a:1", bounds(), Timing::default());
    assert!(links.link_of(&reply(0, 1, 1)).is_none(), "the number of links is not known");
    links.count.store(3, Ordering::Release);
    let index = |frame: &Frame| links.link_of(frame).map(|link| link.index);
    assert_eq!([0, 1, 2, 3].map(|core| index(&reply(core, 1, 1))), [0, 1, 2, 0].map(Some));
    assert_eq!(index(&Frame::Ping(1)), None);
}

#[test]
fn peer_that_closed_is_noticed_by_the_sender() {
    let runtime = runtime();
    let _context = runtime.enter();
    let transport = Transport::default();
    let mut theirs = install(&transport, 1, None);
    theirs.write_all(b"x").expect("it is open");
    drop(theirs);
    assert_eq!(transport.lock().append(&reply(0, 1, 1), MOST, 0, bounds()), Ok(()));
    runtime.block_on(async {
        tokio::task::yield_now().await;
        transport.flush();
        drain(&transport).await;
    });
    assert!(transport.failure(number(1)).is_some());
}
