//! The connections over which workers of two nodes exchange operations and records.
//!
//! Here: counts through both nodes with different numbers of workers, with TLS, and while data
//! links are cut or fall silent and new ones can be opened. Not here: links between nodes that lose
//! everything (`links`).

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use cluster::message::{DecodedFrame, Frame, FrameBounds, decode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use super::{
    nodes::Cluster,
    work::{Account, Work},
};

const KEYS: usize = 60;
const CLIENTS: usize = 8;
/// The time under load.
const LOAD: Duration = Duration::from_secs(2);
/// The longest that clients wait when a data link is cut or silent.
const PAUSE_MAX: Duration = Duration::from_millis(1500);

/// Waits until every node has this many data links.
#[track_caller]
fn until_linked(cluster: &Cluster, nodes: u8, count: usize) {
    let start = Instant::now();
    let is_linked = |node| cluster.stat(node, "data_links").as_deref() == Some(&count.to_string());
    while !(0..nodes).all(is_linked) {
        assert!(start.elapsed() < Duration::from_secs(10), "not linked: {}", cluster.logs());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Counts through both nodes for `LOAD`, without a refusal.
#[track_caller]
fn count_and_settle(cluster: &Cluster) -> Account {
    let work = Work::start(cluster, CLIENTS, KEYS);
    thread::sleep(LOAD);
    work.until_answered(1000);
    let account = work.settle(cluster, 1);
    println!("{} counts, longest pause {:?}", account.answered, account.longest);
    assert_eq!((account.errors.len(), account.broken), (0, 0), "{:?}", account.kinds());
    account
}

#[test]
fn a_pair_has_a_data_link_per_worker_of_the_larger() {
    for (first, second, links) in [("1", "1", 1), ("2", "2", 2), ("1", "3", 3), ("3", "1", 3)] {
        let threads = |number| vec!["-t".to_owned(), [first, second][usize::from(number)].into()];
        let cluster = Cluster::start_each(2, &[], |number, _| threads(number));
        until_linked(&cluster, 2, links);
        count_and_settle(&cluster);
        until_linked(&cluster, 2, links);
    }
}

#[test]
fn restarted_node_has_data_links_again() {
    let mut cluster = Cluster::start(2, &[]);
    until_linked(&cluster, 2, 2);
    for node in [0, 1] {
        cluster.kill(node);
        cluster.restart(node);
        cluster.until_at_rest(2);
        until_linked(&cluster, 2, 2);
    }
    assert!(cluster.end(1).success(), "{}", cluster.log(1));
}

#[test]
fn data_links_use_tls_where_peers_do() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority =
        CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("sound");
    let write = |name: String, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the folder is ours");
        path.display().to_string()
    };
    let ca = write("ca.pem".to_owned(), &authority.pem());
    let cluster = Cluster::start_each(2, &["--peer-ca", &ca], |number, host| {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![host.to_string()]).expect("an address");
        let certificate = params.signed_by(&key, &authority).expect("sound");
        let certificate = write(format!("cert{number}.pem"), &certificate.pem());
        let key = write(format!("key{number}.pem"), &key.serialize_pem());
        ["--peer-cert", &certificate, "--peer-key", &key].map(str::to_owned).to_vec()
    });
    until_linked(&cluster, 2, 2);
    count_and_settle(&cluster);
    let value = "v".repeat(300_000);
    for node in 0..2 {
        for key in 0..10 {
            let set = format!("set large{key} 0 0 {}\r\n{value}\r\n", value.len());
            assert_eq!(cluster.ask(node, &set), "STORED");
        }
    }
    until_linked(&cluster, 2, 2);
}

/// The fate of existing data links; newer ones, and all other connections, pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Pass,
    /// The link is closed.
    Cut,
    /// No byte on the link arrives.
    Silent,
}

/// Proxies in front of the nodes' peer ports.
#[derive(Clone, Default)]
struct Proxies(Arc<Mutex<Vec<Arc<Mutex<Fate>>>>>);

const PROXY_PORT: u16 = 31211;

impl Proxies {
    /// Listens at a node's host; returns the flags that direct the other nodes there.
    fn at(&self, host: Ipv4Addr) -> Vec<String> {
        let listener = TcpListener::bind((host, PROXY_PORT)).expect("the port is free");
        let proxies = self.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let proxies = proxies.clone();
                thread::spawn(move || proxies.pass_on(stream, (host, 21211).into()));
            }
        });
        vec!["--advertise-peer".to_owned(), format!("{host}:{PROXY_PORT}")]
    }

    /// Sets the fate of all existing data links.
    fn decide(&self, fate: Fate) {
        for link in self.0.lock().expect("no holder panics").drain(..) {
            *link.lock().expect("no holder panics") = fate;
        }
    }

    /// Forwards a connection to a node.
    fn pass_on(&self, mut from: TcpStream, to: SocketAddr) {
        let mut first = BytesMut::new();
        let mut room = [0; 512];
        let is_data = loop {
            let Ok(count @ 1..) = from.read(&mut room) else { return };
            first.extend_from_slice(&room[..count]);
            match decode(&mut first.clone(), FrameBounds::unauthenticated()) {
                Ok(DecodedFrame::Frame(Frame::Hello(hello))) => break hello.data_link.is_some(),
                Ok(DecodedFrame::Incomplete { .. }) => {}
                other => panic!("{other:?}"),
            }
        };
        let Ok(mut to) = TcpStream::connect(to) else { return };
        if to.write_all(&first).is_err() {
            return;
        }
        let fate = Arc::new(Mutex::new(Fate::Pass));
        if is_data {
            self.0.lock().expect("no holder panics").push(Arc::clone(&fate));
        }
        let ways = [(&from, &to), (&to, &from)].map(|(one, other)| {
            let (one, other) = (one.try_clone(), other.try_clone());
            (one.expect("a stream"), other.expect("a stream"), Arc::clone(&fate))
        });
        for (one, other, fate) in ways {
            thread::spawn(move || pump(one, other, &fate));
        }
    }
}

/// Forwards the bytes of one direction.
fn pump(mut from: TcpStream, mut to: TcpStream, fate: &Mutex<Fate>) {
    from.set_read_timeout(Some(Duration::from_millis(5))).expect("it is open");
    let mut room = vec![0; 65536].into_boxed_slice();
    loop {
        let read = from.read(&mut room);
        let fate = *fate.lock().expect("no holder panics");
        match read {
            _ if fate == Fate::Cut => break,
            Ok(0) => break,
            Ok(_) if fate == Fate::Silent => {}
            Ok(count) if to.write_all(&room[..count]).is_err() => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Counts while data links end repeatedly.
#[track_caller]
fn count_while_links_end(fate: Fate) {
    let proxies = Proxies::default();
    let cluster = Cluster::start_each(2, &[], |_, host| proxies.at(host));
    until_linked(&cluster, 2, 2);
    let work = Work::start(&cluster, CLIENTS, KEYS);
    work.until_answered(1000);
    for _ in 0..4 {
        proxies.decide(fate);
        work.until_answered(1000);
        until_linked(&cluster, 2, 2);
        work.until_answered(1000);
    }
    let account = work.settle(&cluster, 1);
    println!("{} counts, longest pause {:?}", account.answered, account.longest);
    assert_eq!((account.errors.len(), account.broken), (0, 0), "{:?}", account.kinds());
    assert!(account.longest < PAUSE_MAX, "{:?}", account.longest);
}

#[test]
fn counts_go_on_when_data_links_are_cut() {
    count_while_links_end(Fate::Cut);
}

#[test]
fn counts_go_on_when_data_links_fall_silent() {
    count_while_links_end(Fate::Silent);
}
