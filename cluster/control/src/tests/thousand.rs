//! A thousand nodes in a model: the size of their map, their idle traffic, and the rounds of a
//! join. `cargo test -p tollgate-control thousand -- --nocapture` prints them; only the times
//! depend on the machine.
//!
//! Here: real maps, real frames, the real controller, and nodes that do each step at once. Not
//! here: a thousand processes.

use tokio::time::Instant;

use bytes::BytesMut;
use cluster::map::controller::{self, ControllerInput};
use cluster::message::control::ControlCall as Carried;
use cluster::message::{Frame, FrameBounds};

use super::*;
use crate::rpc::{self, Envelope, Heartbeat, HeartbeatReply, RpcReply, RpcRequest, Sender};

fn register(number: u32) -> MapCommand {
    let place = |port| format!("10.{}.{}.{}:{port}", number >> 16, number >> 8 & 255, number & 255);
    MapCommand::Register {
        node_uuid: u128::from(number) << 64 | 0x1234_5678,
        incarnation: Incarnation(1),
        description: NodeDescription {
            client_address: place(11211),
            peer_address: place(21211),
            ring_name: place(0).replace(":0", ""),
            weight: 1,
            zone: format!("zone-{}", number % 3),
        },
    }
}

/// The changes that the primaries would propose next, with each step done at once.
fn work(map: &Map) -> Vec<MapCommand> {
    let due = |(number, entry): (usize, &cluster::map::SharedEntry)| {
        let step = match (entry.transfer_to, entry.learner) {
            (Some(to), _) => Transition::Transfer(to),
            (None, Some(learner)) => Transition::AddInSync(learner),
            (None, None) => return None,
        };
        Some(MapChange { partition: Partition(number as u16), ver: entry.ver, transition: step })
    };
    let changes: Vec<MapChange> = map.partitions().iter().enumerate().filter_map(due).collect();
    changes.chunks(256).map(|some| MapCommand::Partitions(some.to_vec())).collect()
}

/// Brings the map to rest. Returns the numbers of rounds, commands, partition changes and bytes of
/// deltas.
fn settle(map: &mut Map) -> [usize; 4] {
    let mut counts = [0; 4];
    let mut targets = map.targets();
    let mut members = map.members();
    loop {
        if members != map.members() {
            (members, targets) = (map.members(), map.targets());
        }
        let commands = controller::next(map, &ControllerInput::default(), &targets);
        if commands.is_empty() {
            return counts;
        }
        counts[0] += 1;
        for decided in [commands, Vec::new()] {
            let commands = if decided.is_empty() { work(map) } else { decided };
            for command in commands {
                counts[1] += 1;
                if let (_, Some(delta)) = map.apply(&command).expect("it is allowed") {
                    counts[2] += delta.items.len();
                    counts[3] += delta.encode().len();
                }
            }
        }
    }
}

fn frame_bytes(rpc: bytes::Bytes) -> usize {
    let mut out = BytesMut::new();
    let frame = Frame::Call(Carried { id: 1 << 20, wall_ns: 1 << 60, rpc });
    frame.encode(FrameBounds::default(), &mut out).expect("it fits");
    out.len()
}

#[test]
fn a_thousand_nodes_on_paper() {
    const NODES: u32 = 1000;
    for bits in [14, 16] {
        let placement = Placement::new(Scheme::Ketama, bits).expect("few bits");
        let mut map = Map::default();
        map.apply(&MapCommand::Create { cluster: 1 << 100, placement }).expect("it is the first");
        for number in 1..=NODES {
            map.apply(&register(number)).expect("there is room");
        }
        let [rounds, commands, changes, _] = settle(&mut map);
        println!(
            "2^{bits} partitions, {NODES} nodes at once: {rounds} rounds, {commands} commands, {changes} changes"
        );
        let start = Instant::now();
        let bytes = map.encode();
        let encoded = start.elapsed();
        let start = Instant::now();
        assert_eq!(Map::decode(&bytes).expect("it is a map"), map);
        let decoded = start.elapsed();
        println!("  map: {} bytes, encoded in {encoded:?}, decoded in {decoded:?}", bytes.len());
        let start = Instant::now();
        let targets = map.targets();
        println!("  targets: {:?}", start.elapsed());
        let start = Instant::now();
        assert!(controller::next(&map, &ControllerInput::default(), &targets).is_empty());
        println!("  a round of the controller with nothing to do: {:?}", start.elapsed());
        map.apply(&register(NODES + 1)).expect("there is room");
        let [rounds, commands, changes, bytes] = settle(&mut map);
        println!(
            "  one more joins: {rounds} rounds, {commands} commands, {changes} changes, \
             {bytes} bytes of deltas"
        );
        assert!(rounds < 20, "{rounds} rounds");
    }
}

#[test]
fn idle_traffic_of_a_thousand_nodes() {
    let from = Sender {
        node_uuid: u128::MAX,
        incarnation: Incarnation(3),
        membership: Some((u128::MAX, NodeId(777))),
        address: "10.0.3.9:21211".to_owned(),
    };
    let heard = |count: u32| (0..count).map(|n| (NodeId(n), Incarnation(3), n % 250)).collect();
    let beat = |count| {
        let disk = rpc::DiskState::Fine;
        let heard = heard(count);
        let heartbeat = Heartbeat { map_ver: 100_000, is_ready: true, load: 50_000, disk, heard };
        let envelope = Envelope {
            from: from.clone(),
            to: Some(NodeId(3)),
            call: RpcRequest::Heartbeat(heartbeat),
        };
        frame_bytes(rpc::encode(&envelope))
    };
    let news = HeartbeatReply {
        leader: Some((NodeId(1), "10.0.0.1:21211".to_owned())),
        voters: (100_000, (1..=5).map(NodeId).collect()),
        contact_ms: Some(120),
        deltas: Some(Vec::new()),
        map_ver: 100_000,
    };
    let news = frame_bytes(rpc::encode(&RpcReply::News(news)));
    let (node, voter) = (beat(0), beat(1000));
    println!("a beat: {node} bytes, of a voter {voter}; its answer: {news}");
    // To each of five voters, four times per second.
    println!(
        "a node sends {} B/s and hears {} B/s; a voter hears {} B/s of nodes and {} B/s of voters, \
         and sends {} B/s",
        node * 20,
        news * 20,
        node * 4 * 995,
        voter * 4 * 4,
        news * 4 * 999 + voter * 4 * 4
    );
    assert!(node < 200 && news < 200, "{node} {news}");
}
