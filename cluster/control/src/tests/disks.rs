//! Disks that fail, fill or are slow under whole control planes.

use super::*;
use crate::DiskState;
use crate::simulation::DiskFault;

const SAID_WITHIN: Duration = Duration::from_secs(2);

async fn four(seed: u64) -> World {
    let world = World::cluster(seed, &["a", "b", "c", "d"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let are_active = |world: &World| {
        world.at("a").map().nodes().values().all(|node| node.state == NodeState::Active)
    };
    world.until("all are active", ms(20_000), are_active).await;
    sleep(ms(5000)).await;
    world
}

fn id_of(world: &World, name: &'static str) -> NodeId {
    world.at(name).identity().membership.expect("it is in").node
}

/// A change of the limit used in these tests, at the version that a node knows.
fn next(world: &World, name: &'static str) -> MapCommand {
    let version = world.at(name).map().limits().get("api").map_or(0, |limit| limit.version);
    put("api", version, "1")
}

#[tokio::test(start_paused = true)]
async fn a_leader_with_a_broken_disk_is_succeeded() {
    for (seed, trouble) in [(1, DiskFault::Broken), (2, DiskFault::Full), (3, DiskFault::Broken)] {
        let world = four(seed).await;
        let led = world.leader().expect("one leads");
        world.nodes[led].disk.set_trouble(Some(trouble));
        let says = |world: &World| world.at(led).status().fault.is_some();
        let said = world.until("it says so", SAID_WITHIN, says).await;
        let is_led = |world: &World| world.leader().is_some_and(|name| name != led);
        let succeeded = world.until("another leads", ms(3000), is_led).await;
        println!(
            "{trouble:?} at the leader: said after {said:?}, another leads {succeeded:?} later"
        );
        // The node stays and may propose changes; the node that did not vote replaces it as a
        // voter.
        done(world.at(led), put("api", 0, "1")).await;
        let id = id_of(&world, led);
        let lost_membership = |world: &World| {
            let another = world.leader().expect("one leads");
            !world.at(another).status().voters.contains(&id)
        };
        world.until("its seat is another's", ms(10_000), lost_membership).await;
        sleep(ms(20_000)).await;
        assert!(
            matches!(world.at(led).membership_state(), MembershipState::Member(_)),
            "{}",
            world.show()
        );
        assert!(world.at(led).lease().is_some_and(|age| age < ms(1000)));
        let another = world.leader().expect("one leads");
        let seen = world.at(another).status();
        let seen = seen.reports.iter().find(|heard| heard.node == id).expect("it beats");
        assert_eq!(seen.disk, DiskState::Failed);
        world.nodes[led].disk.set_trouble(None);
        let is_well = |world: &World| world.at(led).status().fault.is_none();
        let took = world.until("it is well", ms(3000), is_well).await;
        println!("  repaired: well after {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_voter_votes_again_when_its_disk_works() {
    let world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let mut world = world;
    let led = world.leader().expect("one leads");
    let mut others = ["a", "b", "c"].into_iter().filter(|name| *name != led);
    let (sick, other) = (others.next().expect("two"), others.next().expect("two"));
    world.nodes[sick].disk.set_trouble(Some(DiskFault::Broken));
    world.until("it says so", SAID_WITHIN, |w| w.at(sick).fault().is_some()).await;
    done(world.at(sick), put("api", 0, "1")).await;
    world.nodes[sick].disk.set_trouble(None);
    world.until("it is well", ms(3000), |w| w.at(sick).fault().is_none()).await;
    // The node was never dead, and from now on there is a majority only with it.
    assert_eq!(state(&world.at(led).map(), id_of(&world, sick).0), Some(NodeState::Active));
    world.power_off(other).await;
    let id = id_of(&world, led);
    world
        .until("the other is dead", ms(5000), |w| {
            w.at(led).map().nodes().values().any(|node| node.state == NodeState::Dead)
        })
        .await;
    done(world.at(sick), next(&world, sick)).await;
    assert_eq!(id_of(&world, led), id);
}

#[tokio::test(start_paused = true)]
async fn the_only_voter_with_a_broken_disk_keeps_contact() {
    let world = World::cluster(1, &["a", "b"]).await;
    sleep(ms(5000)).await;
    world.nodes["a"].disk.set_trouble(Some(DiskFault::Broken));
    world.until("it says so", SAID_WITHIN, |w| w.at("a").fault().is_some()).await;
    for _ in 0..200 {
        sleep(ms(100)).await;
        // No other voters can decide over them, so both may keep serving.
        for name in ["a", "b"] {
            let contact = world.at(name).contact().expect("it had some");
            assert!(contact < ms(1500), "{name}: {contact:?}");
        }
    }
    let refused = world.at("b").propose(put("api", 0, "1"), ms(1000)).await;
    assert!(refused.is_err(), "nothing is decided");
    world.nodes["a"].disk.set_trouble(None);
    world.until("it is well", ms(3000), |w| w.at("a").fault().is_none()).await;
    done(world.at("b"), put("api", 0, "1")).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_disk_leads_only_where_no_better_one_is() {
    let slow = Some(DiskFault::Slow(ms(500)));
    let world = World::cluster(1, &["a", "b", "c"]).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    sleep(ms(5000)).await;
    let led = world.leader().expect("one leads");
    world.nodes[led].disk.set_trouble(slow);
    let says = |world: &World| world.at(led).status().disk == DiskState::Slow;
    world.until("it says so", SAID_WITHIN, says).await;
    let is_led = |world: &World| world.leader().is_some_and(|name| name != led);
    let took = world.until("another leads", ms(10_000), is_led).await;
    println!("slow leader: another leads after {took:?}");
    // The node causes no elections as a follower.
    let another = world.leader().expect("one leads");
    let before = (world.leader(), world.at(another).status().raft_term);
    for _ in 0..20 {
        done(world.at(led), next(&world, led)).await;
        sleep(ms(500)).await;
    }
    assert_eq!((world.leader(), world.at(another).status().raft_term), before);
    // One of them leads even if all disks are slow.
    for running in world.nodes.values() {
        running.disk.set_trouble(slow);
    }
    sleep(ms(20_000)).await;
    for _ in 0..4 {
        let outcome = world.at("a").propose(next(&world, "a"), ms(10_000)).await;
        assert!(outcome.is_ok_and(|outcome| outcome.answer.is_ok()), "{}", world.show());
    }
}

#[tokio::test(start_paused = true)]
async fn all_voters_with_broken_disks_come_back() {
    let world = four(1).await;
    let before = world.at("a").map();
    for running in world.nodes.values() {
        running.disk.set_trouble(Some(DiskFault::Full));
    }
    sleep(ms(10_000)).await;
    for running in world.nodes.values() {
        assert!(running.control.fault().is_some());
        assert!(matches!(running.control.membership_state(), MembershipState::Member(_)));
        running.disk.set_trouble(None);
    }
    let are_well = |w: &World| w.nodes.values().all(|one| one.control.fault().is_none());
    world.until("all are well", ms(5000), are_well).await;
    world.until("one leads", ms(5000), |w| w.leader().is_some()).await;
    while world.at("a").propose(next(&world, "a"), TTL).await.is_err() {}
    assert!(world.at("a").map().ver() > before.ver());
}
