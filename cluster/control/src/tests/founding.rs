//! Clusters of one node, founding, joining.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_node_without_a_cluster_is_a_cluster_of_one() {
    let mut world = World::new(1, &["a"]);
    let started = Instant::now();
    let a = world.start("a", StartMode::Found).await;
    assert_eq!(a.registered().await, (NodeId(1), Incarnation(1)));
    println!("alone: registered after {:?}", started.elapsed());
    let outcome = a.propose(put("api", 0, "100/s"), TTL).await.expect("it leads");
    assert_eq!(outcome.answer, Ok(cluster::map::MapAnswer::Done));
    assert_eq!(body(&a.map(), "api").as_deref(), Some("100/s"));
    let serves = |_: &World| {
        let map = a.map();
        map.partitions().len() == 8
            && map.partitions().iter().all(|entry| entry.primary.is_some())
            && state(&map, 1) == Some(NodeState::Active)
    };
    world.until("each partition has its primary", ms(2000), serves).await;
    let refused = a.propose(put("api", 0, "other"), TTL).await.expect("it leads").answer;
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(a.membership_state(), MembershipState::Member(NodeState::Active));
    assert_eq!(a.contact(), Some(Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn three_expecting_nodes_found_one_cluster() {
    for seed in 0..10 {
        let names = ["a", "b", "c"];
        let mut world = World::new(seed, &names);
        let started = Instant::now();
        for name in names {
            sleep(ms(seed * 37)).await;
            world.start(name, StartMode::Expect(3)).await;
        }
        let mut ids = BTreeSet::new();
        for name in names {
            ids.insert(world.is_in(name).await);
        }
        println!("expect 3, seed {seed}: all in after {:?}", started.elapsed());
        assert_eq!(ids, [1, 2, 3].map(NodeId).into());
        let cluster = |one: &Running| Some(one.control.map().head()?.cluster);
        let clusters: BTreeSet<u128> = world.nodes.values().filter_map(cluster).collect();
        assert_eq!(clusters.len(), 1);
        assert_eq!(
            world.at("a").identity().membership.map(|membership| membership.is_founder),
            Some(true)
        );
        world.voters_are(&[1, 2, 3], ms(10_000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn too_few_expecting_nodes_found_nothing() {
    let names = ["a", "b", "c"];
    let mut world = World::new(1, &names);
    for name in names {
        world.start(name, StartMode::Expect(3)).await;
    }
    world.net.isolate("c", &names);
    sleep(ms(10_000)).await;
    assert!(
        world.nodes.values().all(|one| one.control.membership_state() == MembershipState::Seeking)
    );
    world.net.heal();
    for name in names {
        world.is_in(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn existing_cluster_is_joined_despite_expect() {
    let mut world = World::new(1, &["z", "a", "b"]);
    world.start("z", StartMode::Found).await;
    world.is_in("z").await;
    world.start("a", StartMode::Expect(2)).await;
    world.start("b", StartMode::Expect(2)).await;
    let ids = BTreeSet::from([world.is_in("a").await, world.is_in("b").await]);
    assert_eq!(ids, [2, 3].map(NodeId).into());
}

#[tokio::test(start_paused = true)]
async fn voters_grow_from_one_to_three_to_five() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut world = World::new(1, &names);
    for (at, name) in names.iter().enumerate() {
        world.start(name, if at == 0 { StartMode::Found } else { StartMode::Join }).await;
        world.is_in(name).await;
        let wanted: &[u32] = match at + 1 {
            0..3 => &[1],
            3..5 => &[1, 2, 3],
            _ => &[1, 2, 3, 4, 5],
        };
        let took = world.voters_are(wanted, ms(10_000)).await;
        println!("{} nodes: voters after {took:?}", at + 1);
    }
    let at_rest = |world: &World| {
        let map = world.at("a").map();
        map.nodes().values().all(|node| node.state == NodeState::Active) && world.is_even()
    };
    let took = world.until("all have what they should", ms(60_000), at_rest).await;
    println!("7 nodes: all active after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn voters_are_spread_over_zones() {
    let names = ["a", "b", "c", "d"];
    let mut world = World::new(1, &names);
    world.zones = [("a", "x"), ("b", "x"), ("c", "y"), ("d", "z")].into();
    world.start("a", StartMode::Found).await;
    // The last node is in a third zone, so it replaces a voter that shares its zone.
    for name in ["b", "c", "d"] {
        world.start(name, StartMode::Join).await;
        world.is_in(name).await;
    }
    world.voters_are(&[1, 3, 4], ms(10_000)).await;
    let voters = world.at("a").status().voters;
    let map = world.at("a").map();
    let zones: BTreeSet<_> = voters.iter().map(|id| &map.nodes()[id].description.zone).collect();
    assert_eq!(zones.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn node_whose_first_id_was_lost_gets_it_again() {
    let mut world = World::new(1, &["a", "b"]);
    world.start("a", StartMode::Found).await;
    world.is_in("a").await;
    let b = world.start("b", StartMode::Join).await;
    while world.at("a").map().nodes().len() < 2 {
        sleep(ms(1)).await;
    }
    world.net.cut("a", "b");
    // The node sends nothing because it does not know of its membership, so its present incarnation
    // is marked dead.
    world.until("it is dead", ms(5000), is_dead("a", 2)).await;
    assert_eq!(b.membership_state(), MembershipState::Seeking);
    world.net.heal();
    assert_eq!(world.is_in("b").await, NodeId(2));
    let active = |world: &World| state(&world.at("a").map(), 2) == Some(NodeState::Active);
    // A third of the nodes died, so no copies are made for ten seconds.
    world.until("it is active", ms(15_000), active).await;
}

#[tokio::test(start_paused = true)]
async fn joining_node_does_not_prevent_founding() {
    let mut world = World::new(1, &["a", "b", "c"]);
    // It has the lowest node uuid.
    world.start("a", StartMode::Join).await;
    sleep(ms(500)).await;
    world.start("b", StartMode::Expect(2)).await;
    world.start("c", StartMode::Expect(2)).await;
    for name in ["a", "b", "c"] {
        world.is_in(name).await;
    }
}
