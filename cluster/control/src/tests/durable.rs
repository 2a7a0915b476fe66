//! The state that survives restarts.

use super::*;
use crate::ControlStore;

#[tokio::test(start_paused = true)]
async fn a_single_node_keeps_its_id_and_its_limits() {
    let mut world = World::cluster(1, &["a"]).await;
    let a = world.at("a").clone();
    done(&a, put("api", 0, "100/s")).await;
    let before = a.map();
    let disk = world.kill("a").await;
    let started = Instant::now();
    let a = world.start_on("a", disk, StartMode::Found).await;
    assert_eq!(a.registered().await, (NodeId(1), Incarnation(2)));
    println!("alone: registered again after {:?}", started.elapsed());
    assert_eq!(a.map().limits(), before.limits());
    assert_eq!(a.map().head(), before.head());
}

#[tokio::test]
async fn a_data_directory_is_a_node() {
    let directory = tempfile::tempdir().expect("a place for it");
    let path = directory.path().join("data");
    let net = SimNetwork::new(1);
    let mut lives = Vec::new();
    for seed in 1..=2 {
        let options = options("a", seed, 14, StartMode::Found);
        let store = ControlStore::open(&path).expect("it can be written");
        assert!(ControlStore::open(&path).is_err(), "one process has it");
        let control = Control::start(store, options, net.peers("a")).await.expect("it works");
        let registered = timeout(ms(20_000), control.registered()).await.expect("alone");
        lives.push((control.identity().node_uuid, registered));
        if seed == 1 {
            done(&control, put("api", 0, "100/s")).await;
        }
        assert_eq!(body(&control.map(), "api").as_deref(), Some("100/s"));
        control.stop().await;
    }
    assert_eq!(lives, [(1, (NodeId(1), Incarnation(1))), (1, (NodeId(1), Incarnation(2)))]);
}

#[tokio::test(start_paused = true)]
async fn all_nodes_restart_and_the_map_is_there() {
    let names = ["a", "b", "c"];
    let mut world = World::cluster(1, &names).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    done(world.at("b"), put("api", 0, "100/s")).await;
    let mut disks = Vec::new();
    for name in names {
        disks.push((name, world.kill(name).await));
    }
    sleep(ms(5000)).await;
    let started = Instant::now();
    for (name, disk) in disks {
        world.start_on(name, disk, StartMode::Expect(3)).await;
    }
    for (at, name) in names.into_iter().enumerate() {
        assert_eq!(world.is_in(name).await, NodeId(at as u32 + 1));
    }
    println!("all three restarted: in after {:?}", started.elapsed());
    assert!(names.iter().all(|name| body(&world.at(name).map(), "api").is_some()));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_voter_keeps_its_id_and_votes() {
    let mut world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let disk = world.kill("b").await;
    sleep(ms(5000)).await;
    world.start_on("b", disk, StartMode::Join).await;
    assert_eq!(world.is_in("b").await, NodeId(2));
    assert_eq!(world.at("b").identity().incarnation, Incarnation(2));
    // The node votes: without one of the others there is a majority only with it.
    world.power_off("c").await;
    world.until("c is dead", ms(5000), is_dead("a", 3)).await;
    done(world.at("b"), put("api", 0, "1")).await;
}

#[tokio::test(start_paused = true)]
async fn emptied_directory_becomes_a_new_node() {
    let mut world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    world.kill("b").await;
    let started = Instant::now();
    world.start("b", StartMode::Join).await;
    assert_eq!(world.is_in("b").await, NodeId(4));
    println!("emptied: in under a new id after {:?}", started.elapsed());
    assert_eq!(state(&world.at("a").map(), 2), None, "the old one is forgotten");
    world.voters_are(&[1, 3, 4], ms(10_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_forgotten_comes_back_as_another() {
    let mut world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let disk = world.kill("c").await;
    world.until("c is dead", ms(5000), is_dead("a", 3)).await;
    done(world.at("a"), MapCommand::Forget(NodeId(3), Incarnation(1))).await;
    world.start_on("c", disk, StartMode::Join).await;
    let is_another = |world: &World| {
        world.at("c").identity().membership.is_some_and(|membership| membership.node == NodeId(4))
    };
    world.until("c is another", ms(10_000), is_another).await;
    assert_eq!(world.is_in("c").await, NodeId(4));
    world.voters_are(&[1, 2, 4], ms(10_000)).await;
}

#[tokio::test(start_paused = true)]
async fn a_late_voter_gets_a_snapshot() {
    let mut world = World::cluster(1, &["a", "b"]).await;
    for number in 0..1500_u64 {
        let name = format!("limit{}", number % 100);
        let version = world.at("a").map().limits().get(&name).map_or(0, |limit| limit.version);
        done(world.at("a"), put(&name, version, &"x".repeat(4000))).await;
    }
    world.start("c", StartMode::Join).await;
    world.is_in("c").await;
    let took = world.voters_are(&[1, 2, 3], ms(20_000)).await;
    println!("two voters with a snapshot of 400 KB after {took:?}");
    world.until("all are even", ms(2000), World::is_even).await;
    // The node restarts from a snapshot.
    let disk = world.kill("c").await;
    world.start_on("c", disk, StartMode::Join).await;
    world.is_in("c").await;
    world.until("all are even", ms(2000), World::is_even).await;
}

#[tokio::test(start_paused = true)]
async fn node_whose_new_id_was_lost_gets_it_again() {
    let mut world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let disk = world.kill("c").await;
    world.until("c is dead", ms(5000), is_dead("a", 3)).await;
    done(world.at("a"), MapCommand::Forget(NodeId(3), Incarnation(1))).await;
    let c = world.start_on("c", disk, StartMode::Join).await;
    while state(&world.at("a").map(), 4).is_none() {
        sleep(ms(1)).await;
    }
    for other in ["a", "b"] {
        world.net.cut(other, "c");
    }
    // The node sends heartbeats under the forgotten id, so the new one is marked dead.
    world.until("it is dead", ms(5000), is_dead("a", 4)).await;
    assert_eq!(c.identity().membership.map(|membership| membership.node), Some(NodeId(3)));
    world.net.heal();
    assert_eq!(world.is_in("c").await, NodeId(4));
}
