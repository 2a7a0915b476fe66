//! Which peers get a link.

use std::path::Path;

use cluster::message::handshake::CloseReason;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tollgate::transport::{LinkEnd, UNAUTHENTICATED_MAX, Unauthenticated};

use super::*;

/// Starts two nodes with these options and returns the error on the connecting node.
async fn refusal(connecting: TransportOptions, accepting: TransportOptions) -> LinkError {
    let a = Host::with(connecting, Node::new(false));
    let b = Host::with(accepting, Node::new(false));
    a.to(2, &b).send(op(1)).expect("there is room");
    let why = a.node.failure().await;
    assert!(!a.node.is_up() && !b.node.is_up());
    assert_eq!(a.metrics(2).lost, 1, "what waited is dropped");
    why
}

fn with_key(node: u32, key: &[u8]) -> TransportOptions {
    TransportOptions::new(identity(node), PeerSecurity::Key(key.to_vec()))
}

#[tokio::test]
async fn only_secured_nodes_listen_off_loopback() {
    let start = |options: TransportOptions| {
        let bound = BoundListener::tcp("0.0.0.0:0".parse().expect("an address"), 16);
        let listener = bound.expect("a free port").attach().expect("there is a runtime");
        Transport::start(options, vec![listener], Node::new(false))
    };
    let refused = start(options(1)).err().expect("open to all").to_string();
    assert!(refused.contains("`insecure = true`"), "{refused}");
    start(TransportOptions { insecure_confirmed: true, ..options(1) }).expect("it was said");
    let transport = start(with_key(1, b"correct horse battery staple")).expect("there is a key");
    let opened = transport.secure(PeerSecurity::Insecure);
    assert!(opened.is_err(), "what is guarded stays guarded");
}

#[tokio::test]
async fn only_peers_with_the_key_get_a_link() {
    let key = b"correct horse battery staple";
    let a = Host::with(with_key(1, key), Node::new(false));
    let b = Host::with(with_key(2, key), Node::new(true));
    a.to(2, &b).send(op(1)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;

    let wrong = refusal(with_key(1, b"correct horse battery stable"), with_key(2, key)).await;
    assert_eq!(wrong, LinkError::Theirs(CloseReason::WrongKey));
    assert_eq!(
        refusal(options(1), with_key(2, key)).await,
        LinkError::Theirs(CloseReason::WrongKey)
    );
    assert_eq!(
        refusal(with_key(1, key), options(2)).await,
        LinkError::Theirs(CloseReason::WrongKey)
    );
}

#[tokio::test]
async fn a_mismatched_hello_is_refused_with_the_reason() {
    let other = PeerIdentity { cluster: 78, ..identity(1) };
    let other = TransportOptions::new(other, PeerSecurity::Insecure);
    assert_eq!(refusal(other, options(2)).await, LinkError::Theirs(CloseReason::OtherCluster));
    let newer = TransportOptions { versions: 9..=10, ..options(1) };
    assert_eq!(refusal(newer, options(2)).await, LinkError::Theirs(CloseReason::NoVersion));
    assert_eq!(refusal(options(2), options(2)).await, LinkError::Theirs(CloseReason::Myself));
    assert_eq!(refusal(options(1), options(3)).await, LinkError::OtherNode(NodeId(3)));
}

#[tokio::test]
async fn the_newest_common_version_is_spoken() {
    let a = Host::with(TransportOptions { versions: 1..=3, ..options(1) }, Node::new(false));
    let b = Host::with(TransportOptions { versions: 2..=7, ..options(2) }, Node::new(false));
    a.to(2, &b).send(op(1)).expect("there is room");
    let at_three = |event: &LinkEvent| matches!(event, LinkEvent::Up(peer) if peer.version == 3);
    until("both know", || a.node.has_event(at_three) && b.node.has_event(at_three)).await;
}

#[tokio::test]
async fn a_node_without_an_id_gets_a_link_and_then_an_id() {
    let newcomer =
        PeerIdentity { cluster: 0, node: NodeId(0), incarnation: Incarnation(5), core: 0 };
    let a = TransportOptions::new(newcomer, PeerSecurity::Insecure);
    let (a, b) = (Host::with(a, Node::new(false)), Host::new(2));
    let seed = a.transport.sender_at(&b.address);
    seed.send(op(1)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;
    a.transport.identify(identity(1));
    until("the old link is gone", || {
        b.node
            .has_event(|event| matches!(event, LinkEvent::Down(peer, _) if peer.node == NodeId(0)))
    })
    .await;
    seed.send(op(2)).expect("there is room");
    until("it has a name", || b.node.ops_from(1) == [2]).await;
    let own = a.transport.sender(NodeId(2), &b.address);
    own.send(op(3)).expect("there is room");
    until("a lane by name", || b.node.ops_from(1) == [2, 3]).await;
}

#[tokio::test]
async fn garbage_gets_a_farewell_and_no_link() {
    let b = Host::new(2);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &[5, 0, 0, 0, 99, 1, 2, 3, 4]] {
        let mut raw = Raw::connect(&b).await;
        raw.send(garbage).await;
        let said = raw.receive().await;
        assert!(matches!(said, Some((Frame::Farewell(CloseReason::BadFrame), _))), "{said:?}");
        assert!(raw.receive().await.is_none());
    }
    // Only a hello may come first, and it may arrive in two parts; an operation may not.
    let mut raw = Raw::connect(&b).await;
    raw.send(&bytes_of(&op(1))).await;
    assert!(matches!(raw.receive().await, Some((Frame::Farewell(CloseReason::BadFrame), _))));
    let hello = bytes_of(&Frame::Hello(hello(1)));
    let mut raw = Raw::connect(&b).await;
    raw.send(&hello[..30]).await;
    tokio::task::yield_now().await;
    raw.send(&hello[30..]).await;
    assert!(matches!(raw.receive().await, Some((Frame::Hello(_), _))));
    assert!(!b.node.is_up());
}

#[tokio::test]
async fn an_operation_instead_of_a_proof_gets_no_link() {
    let b = Host::new(2);
    let mut raw = Raw::connect(&b).await;
    raw.send(&bytes_of(&Frame::Hello(hello(1)))).await;
    raw.send(&bytes_of(&op(1))).await;
    assert!(matches!(raw.receive().await, Some((Frame::Hello(_), _))));
    assert!(matches!(raw.receive().await, Some((Frame::Farewell(CloseReason::BadFrame), _))));
    assert!(b.node.received.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn strangers_are_few_and_do_not_stay() {
    let b = Host::new(2);
    let mut raws = Vec::new();
    for _ in 0..UNAUTHENTICATED_MAX + 36 {
        raws.push(Raw::connect(&b).await);
    }
    let came =
        |unauthenticated: Unauthenticated| unauthenticated.came == UNAUTHENTICATED_MAX as u64 + 36;
    until("all came", || came(b.transport.unauthenticated())).await;
    let Unauthenticated { now, refused, .. } = b.transport.unauthenticated();
    assert!(now <= UNAUTHENTICATED_MAX && refused >= 36, "{now} {refused}");
    assert!(raws[0].receive().await.is_none(), "the oldest went");
    // All are silent. The paused clock advances only to timers, so the wait takes no time.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(b.transport.unauthenticated().now, 0);
    assert_eq!(b.transport.unauthenticated().refused, UNAUTHENTICATED_MAX as u64 + 36);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_greet_back_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let a = Host::new(1);
    a.transport.sender(NodeId(9), &address).send(op(1)).expect("there is room");
    assert_eq!(a.node.failure().await, LinkError::Late);
}

#[tokio::test]
async fn an_old_life_does_not_take_the_place_of_a_newer_one() {
    let b = Host::new(2);
    let life = |incarnation| {
        let identity = PeerIdentity { incarnation: Incarnation(incarnation), ..identity(1) };
        TransportOptions::new(identity, PeerSecurity::Insecure)
    };
    let new = Host::with(life(8), Node::new(false));
    new.to(2, &b).send(op(1)).expect("there is room");
    until("it is here", || b.node.ops_from(1) == [1]).await;
    let old = Host::with(life(7), Node::new(false));
    old.to(2, &b).send(op(2)).expect("there is room");
    assert_eq!(old.node.failure().await, LinkError::Theirs(CloseReason::OldIncarnation));
    let newer = Host::with(life(9), Node::new(false));
    newer.to(2, &b).send(op(3)).expect("there is room");
    until("it is here too", || b.node.ops_from(1) == [1, 3]).await;
    let replaced = |event: &LinkEvent| matches!(event, LinkEvent::Down(peer, LinkEnd::Replaced) if peer.incarnation == Incarnation(8));
    until("the older one has gone", || b.node.has_event(replaced)).await;
}

/// A certificate authority and its certificates.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn certifies(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        (params.signed_by(&key, &self.0).expect("a certificate"), key)
    }

    /// Returns the options of a node that trusts this authority and has a certificate of `by`.
    pub(super) fn options(
        &self,
        node: u32,
        by: &Self,
        host: &str,
        name: Option<&str>,
    ) -> TransportOptions {
        let (certificate, key) = by.certifies(host);
        let security = PeerSecurity::Tls {
            certificates: vec![certificate.der().clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            authorities: vec![self.0.der().clone()],
            name: name.map(str::to_owned),
        };
        with_room(TransportOptions::new(identity(node), security))
    }
}

#[tokio::test]
async fn certificates_of_one_authority_are_believed() {
    let ours = Authority::new();
    for (host, name) in [("127.0.0.1", None), ("peer.tollgate", Some("peer.tollgate"))] {
        let a = Host::with(ours.options(1, &ours, host, name), Node::new(false));
        let b = Host::with(ours.options(2, &ours, host, name), Node::new(true));
        let sender = a.to(2, &b);
        for seq in 1..=2000 {
            sender.send(op(seq)).expect("fewer than the window");
        }
        until("all are answered", || a.node.replies() == 2000).await;
        assert!(b.node.ops_from(1).into_iter().eq(1..=2000));
        assert!(a.metrics(2).writes < 1000, "batches over TLS too");
    }
}

#[tokio::test]
async fn other_certificates_are_refused() {
    let (ours, other) = (Authority::new(), Authority::new());
    let host = "127.0.0.1";
    let good = |node| ours.options(node, &ours, host, None);
    // From another authority: first the connecting node's, then the accepting node's.
    let why = refusal(ours.options(1, &other, host, None), good(2)).await;
    assert!(matches!(why, LinkError::Tls(_)), "{why}");
    let why = refusal(good(1), ours.options(2, &other, host, None)).await;
    assert!(matches!(why, LinkError::Tls(_)), "{why}");
    // For another host.
    let why = refusal(good(1), ours.options(2, &ours, "10.9.8.7", None)).await;
    assert!(matches!(why, LinkError::Tls(_)), "{why}");
    // The connecting node's certificate has another name.
    let named = ours.options(2, &ours, "peer.tollgate", Some("peer.tollgate"));
    let unnamed = ours.options(1, &ours, "app.example", Some("peer.tollgate"));
    let why = refusal(unnamed, named).await;
    assert!(matches!(why, LinkError::Lost(_) | LinkError::Tls(_)), "{why}");
    // Without TLS on one side.
    let why = refusal(options(1), good(2)).await;
    assert!(matches!(why, LinkError::Fault(_) | LinkError::Lost(_)), "{why}");
    let why = refusal(good(1), options(2)).await;
    assert!(matches!(why, LinkError::Tls(_)), "{why}");
}

#[tokio::test]
async fn certificates_are_read_from_files() {
    let ours = Authority::new();
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the folder is ours");
        path
    };
    let (certificate, key) = ours.certifies("127.0.0.1");
    let authorities = write("authority.pem", &ours.0.pem());
    let certificates = write("node.pem", &certificate.pem());
    let key = write("node.key", &key.serialize_pem());
    let read = || PeerSecurity::tls_of(&certificates, &key, &authorities, None);
    let options = |node| TransportOptions::new(identity(node), read().expect("good files"));
    let (a, b) =
        (Host::with(options(1), Node::new(false)), Host::with(options(2), Node::new(true)));
    a.to(2, &b).send(op(1)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;

    let check = |certificates: &Path, key: &Path, authorities: &Path| {
        let read = PeerSecurity::tls_of(certificates, key, authorities, None);
        read.expect_err("a bad file").to_string()
    };
    let none = folder.path().join("none.pem");
    assert!(check(&none, &key, &authorities).contains("none.pem"));
    assert!(check(&key, &key, &authorities).ends_with("node.key: no certificate in it"));
    assert!(check(&certificates, &certificates, &authorities).contains("node.pem"));
    // The key belongs to another certificate.
    let (_, other) = ours.certifies("127.0.0.1");
    let other = write("other.key", &other.serialize_pem());
    let mixed = PeerSecurity::tls_of(&certificates, &other, &authorities, None);
    let refused = a.transport.secure(mixed.expect("each file alone is good"));
    assert!(refused.expect_err("they do not fit").to_string().starts_with("certificates: "));
}

#[tokio::test]
async fn a_renewed_certificate_serves_later_links() {
    let (ours, old) = (Authority::new(), Authority::new());
    let host = "127.0.0.1";
    let a = Host::with(ours.options(1, &old, host, None), Node::new(false));
    let b = Host::with(ours.options(2, &ours, host, None), Node::new(true));
    a.to(2, &b).send(op(1)).expect("there is room");
    a.node.failure().await;
    a.transport.secure(ours.options(1, &ours, host, None).security).expect("sound");
    a.to(2, &b).send(op(2)).expect("there is room");
    until("it is answered", || a.node.replies() == 1).await;
}
