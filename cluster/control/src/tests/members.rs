//! Observers, voters that are replaced, nodes that leave.

use super::*;

#[tokio::test(start_paused = true)]
async fn changes_reach_observers_within_a_beat() {
    let names = ["a", "b", "c", "d"];
    let world = World::cluster(1, &names).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    sleep(ms(10_000)).await;
    for (at, name) in names.into_iter().enumerate() {
        let limit = format!("limit{at}");
        let mut watch = world.at("d").watch();
        watch.changed().await;
        done(world.at(name), put(&limit, 0, "1")).await;
        let on_all = |world: &World| {
            world.nodes.values().all(|one| body(&one.control.map(), &limit).is_some())
        };
        let took = world.until("it is on all", BEAT, on_all).await;
        println!("put at {name}: on all after {took:?}");
        let news = timeout(BEAT, watch.changed()).await.expect("it is told");
        let deltas = news.deltas.expect("one change");
        assert_eq!(deltas.last().map(|delta| delta.ver), Some(news.map.ver()));
        assert!(body(&news.map, &limit).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_voter_is_replaced_within_seconds() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::cluster(1, &names).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    sleep(ms(10_000)).await;
    let disk = world.power_off("b").await;
    let took = world.voters_are(&[1, 3, 4], ms(3000)).await;
    println!("voter off: replaced after {took:?}");
    // The node comes back as an observer and causes no elections.
    let before = (world.leader(), world.at("a").status().raft_term);
    world.start_on("b", disk, StartMode::Join).await;
    assert_eq!(world.is_in("b").await, NodeId(2));
    sleep(ms(10_000)).await;
    world.voters_are(&[1, 3, 4], ms(100)).await;
    assert_eq!((world.leader(), world.at("a").status().raft_term), before);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_leaves_gives_everything_away() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::cluster(1, &names).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let leader = world.leader().expect("one leads");
    let identity = world.at(leader).identity();
    let id = identity.membership.expect("it is in").node;
    done(world.at(leader), MapCommand::Drain(id, identity.incarnation)).await;
    let is_gone = |world: &World| world.at(leader).membership_state() == MembershipState::Gone;
    let took = world.until("it may go", ms(30_000), is_gone).await;
    println!("leader drained after {took:?}");
    sleep(ms(3000)).await;
    assert_eq!(world.at(leader).membership_state(), MembershipState::Gone, "it does not come back");
    world.kill(leader).await;
    let left = *names.iter().find(|name| **name != leader).expect("three are left");
    let three_vote = |world: &World| world.at(left).status().voters.len() == 3;
    world.until("three vote", ms(10_000), three_vote).await;
    done(world.at(left), put("api", 0, "1")).await;
}

#[tokio::test(start_paused = true)]
async fn leader_transfers_leadership_before_it_drains() {
    let names = ["a", "b", "c"];
    let world = World::cluster(1, &names).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let old = world.leader().expect("one leads");
    let identity = world.at(old).identity();
    let id = identity.membership.expect("it is in").node;
    let drain = world.at(old).propose(MapCommand::Drain(id, identity.incarnation), TTL);
    let start = Instant::now();
    let waits = async {
        while world.at(old).membership_state() != MembershipState::Gone {
            assert!(start.elapsed() < ms(30_000), "{}", world.show());
            if state(&world.at(old).map(), id.0) == Some(NodeState::Draining) {
                // Partitions move from here on, and each step of a move needs a leader.
                assert!(world.leader().is_some_and(|leader| leader != old), "{}", world.show());
            }
            sleep(ms(5)).await;
        }
    };
    let (drained, ()) = tokio::join!(drain, waits);
    drained.expect("a leader").answer.expect("it is allowed");
}

#[tokio::test(start_paused = true)]
async fn last_voter_of_two_transfers_the_leadership() {
    let world = World::cluster(1, &["a", "b"]).await;
    world.voters_are(&[1], ms(10_000)).await;
    let identity = world.at("a").identity();
    done(world.at("a"), MapCommand::Drain(NodeId(1), identity.incarnation)).await;
    let is_voter = |world: &World| world.at("b").status().voters == [NodeId(2)].into();
    world.until("the other one votes", ms(10_000), is_voter).await;
    let leads = |world: &World| world.leader() == Some("b");
    let took = world.until("the other one leads", ms(150), leads).await;
    println!("the lead changed {took:?} after the vote");
}

#[tokio::test(start_paused = true)]
async fn partitions_come_to_rest_at_their_targets() {
    let mut world = World::new(1, &["a", "b", "c"]);
    world.bits = 10;
    world.start("a", StartMode::Found).await;
    world.start("b", StartMode::Join).await;
    world.start("c", StartMode::Join).await;
    let at_rest = |world: &World| {
        let map = world.at("a").map();
        let is_right = |(entry, target): (&cluster::map::SharedEntry, cluster::PartitionOwners)| {
            entry.primary.map(|copy| copy.node) == target.primary()
                && entry.in_sync.len() == target.len()
                && target.iter().all(|&node| entry.in_sync_on(node).is_some())
        };
        map.nodes().len() == 3 && map.partitions().iter().zip(map.targets()).all(is_right)
    };
    let took = world.until("all are at their targets", ms(120_000), at_rest).await;
    println!("1024 partitions on three nodes after {took:?}");
    done(world.at("c"), MapCommand::Set(Setting::Replicas(3))).await;
    let took = world.until("three copies each", ms(120_000), at_rest).await;
    println!("a third copy of each after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn new_node_is_not_marked_dead() {
    let mut world = World::cluster(1, &["a"]).await;
    sleep(ms(10_000)).await;
    let mut watch = world.at("a").watch();
    watch.changed().await;
    world.names.push("b");
    world.start("b", StartMode::Join).await;
    world.is_in("b").await;
    sleep(ms(5000)).await;
    let deltas = watch.changed().await.deltas.expect("a few changes");
    for item in deltas.iter().flat_map(|delta| &delta.items) {
        if let cluster::map::delta::DeltaItem::Node(_, Some(node)) = item {
            assert_ne!(node.state, NodeState::Dead);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_transfer_leaves_the_leader_leading() {
    let world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let leader = world.leader().expect("one leads");
    let identity = world.at(leader).identity();
    let id = identity.membership.expect("it is in").node;
    let term = world.at(leader).status().raft_term;
    let drain = world.at(leader).propose(MapCommand::Drain(id, identity.incarnation), TTL);
    assert!(timeout(ms(50), drain).await.is_err(), "the transfer takes longer");
    sleep(ms(3000)).await;
    assert_eq!((world.leader(), world.at(leader).status().raft_term), (Some(leader), term));
    done(world.at(leader), put("api", 0, "1")).await;
}
