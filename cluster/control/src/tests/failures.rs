//! Deaths, cuts, and the work that goes on without a majority.

use super::*;

const THREE: [&str; 3] = ["a", "b", "c"];

async fn three(seed: u64) -> World {
    let world = World::cluster(seed, &THREE).await;
    world.voters_are(&[1, 2, 3], ms(10_000)).await;
    let are_active = |world: &World| {
        world.at("a").map().nodes().values().all(|node| node.state == NodeState::Active)
    };
    world.until("all are active", ms(20_000), are_active).await;
    world
}

fn id_of(world: &World, name: &'static str) -> u32 {
    world.at(name).identity().membership.expect("it is in").node.0
}

fn others(name: &'static str) -> impl Iterator<Item = &'static str> {
    THREE.into_iter().filter(move |other| *other != name)
}

#[tokio::test(start_paused = true)]
async fn any_node_may_propose() {
    let world = three(1).await;
    for name in THREE {
        let started = Instant::now();
        done(world.at(name), put(name, 0, "1")).await;
        println!("asked at {name}: answered after {:?}", started.elapsed());
        assert!(body(&world.at(name).map(), name).is_some(), "who asked sees it at once");
        let on_all = |world: &World| {
            world.nodes.values().all(|one| body(&one.control.map(), name).is_some())
        };
        let spread = world.until("all have it", BEAT, on_all).await;
        println!("on all after {spread:?} more");
    }
}

#[tokio::test(start_paused = true)]
async fn another_one_leads_when_the_leader_dies() {
    for seed in 0..20 {
        let mut world = three(seed).await;
        let leader = world.leader().expect("one leads");
        let id = id_of(&world, leader);
        let off = seed % 2 == 0;
        if off {
            world.power_off(leader).await;
        } else {
            world.kill(leader).await;
        }
        let started = Instant::now();
        world.until("another leads", ms(3000), |world| world.leader().is_some()).await;
        let led = started.elapsed();
        let left = others(leader).next().expect("two are left");
        world.until("it is dead", ms(4000), is_dead(left, id)).await;
        let dead = started.elapsed();
        let are_led = |world: &World| {
            let map = world.at(left).map();
            let lives = |copy| map.is_living(copy);
            map.partitions().iter().all(|entry| entry.primary.is_some_and(lives))
        };
        world.until("its partitions are promoted", ms(4000), are_led).await;
        let promoted = started.elapsed();
        let how = if off { "powered off" } else { "killed" };
        println!("leader {how}: next {led:?}, buried {dead:?}, promoted {promoted:?}");
        done(world.at(left), put("api", 0, "1")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn silent_node_is_marked_dead_by_the_majority() {
    for seed in 0..10 {
        let mut world = three(seed).await;
        let leader = world.leader().expect("one leads");
        let other = others(leader).next().expect("two follow");
        let id = id_of(&world, other);
        world.power_off(other).await;
        let took = world.until("it is dead", ms(3000), is_dead(leader, id)).await;
        println!("follower powered off: buried after {took:?}");
        assert!(took >= ms(1200), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_a_quick_death() {
    let mut world = three(1).await;
    let leader = world.leader().expect("one leads");
    let both: Vec<&str> = others(leader).collect();
    let id = id_of(&world, both[0]);
    world.kill(both[0]).await;
    world.at(both[1]).suspect(NodeId(id)).await;
    let took = world.until("it is dead", ms(400), is_dead(leader, id)).await;
    println!("process gone, reported: buried after {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_host_is_no_quick_death() {
    let world = three(1).await;
    let leader = world.leader().expect("one leads");
    let both: Vec<&str> = others(leader).collect();
    let id = id_of(&world, both[0]);
    world.net.isolate(leader, &[both[0]]);
    world.at(both[1]).suspect(NodeId(id)).await;
    sleep(ms(5000)).await;
    assert_eq!(state(&world.at(leader).map(), id), Some(NodeState::Active));
}

#[tokio::test(start_paused = true)]
async fn node_that_only_the_leader_hears_stays_dead() {
    let mut world = three(1).await;
    world.names.push("d");
    world.start("d", StartMode::Join).await;
    world.is_in("d").await;
    sleep(ms(5000)).await;
    let leader = world.leader().expect("one leads");
    let both: Vec<&str> = others(leader).collect();
    world.net.isolate("d", &both);
    world.until("it is dead", ms(3000), is_dead(leader, 4)).await;
    sleep(ms(3000)).await;
    let ver = world.at(leader).map().ver();
    sleep(ms(10_000)).await;
    assert_eq!(world.at(leader).map().ver(), ver, "it is not taken to be buried again");
    assert_eq!(world.at("d").membership_state(), MembershipState::Registering);
    assert_eq!(world.at("d").lease(), None);
    world.net.heal();
    world.is_in("d").await;
}

#[tokio::test(start_paused = true)]
async fn one_bad_link_makes_no_node_dead() {
    let world = three(1).await;
    for (from, to) in [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "b")] {
        world.net.cut(from, to);
        let started = Instant::now();
        while started.elapsed() < ms(8000) {
            let map = world.at("a").map();
            let is_well = |node: &cluster::map::MapNode| node.state == NodeState::Active;
            assert!(map.nodes().values().all(is_well), "{from} to {to}\n{}", world.show());
            sleep(ms(50)).await;
        }
        world.net.heal();
        sleep(ms(3000)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_with_one_bad_link_lives_and_hears() {
    let mut world = three(1).await;
    world.names.push("d");
    world.start("d", StartMode::Join).await;
    world.is_in("d").await;
    let leader = world.leader().expect("one leads");
    world.net.isolate("d", &[leader]);
    sleep(ms(10_000)).await;
    assert_ne!(state(&world.at(leader).map(), 4), Some(NodeState::Dead));
    done(world.at(leader), put("api", 0, "1")).await;
    let has_it = |world: &World| body(&world.at("d").map(), "api").is_some();
    world.until("it hears of it from another voter", BEAT * 2, has_it).await;
    assert!(world.at("d").contact().expect("through the others") < ms(1500));
}

#[tokio::test(start_paused = true)]
async fn node_marked_dead_registers_in_its_incarnation() {
    let world = three(1).await;
    let leader = world.leader().expect("one leads");
    let other = others(leader).next().expect("two follow");
    let id = id_of(&world, other);
    world.net.isolate(other, &THREE);
    world.until("it is dead", ms(3000), is_dead(leader, id)).await;
    assert_eq!(state(&world.at(other).map(), id), Some(NodeState::Active), "it does not know");
    sleep(ms(10_000)).await;
    assert!(world.at(other).contact().expect("once") > ms(10_000));
    world.net.heal();
    let is_back = |world: &World| state(&world.at(other).map(), id) == Some(NodeState::Active);
    let knows = |world: &World| state(&world.at(leader).map(), id) == Some(NodeState::Active);
    let took = world.until("it is back", ms(10_000), |w| knows(w) && is_back(w)).await;
    println!("cut off for 10 s: active again after {took:?}");
    assert_eq!(world.at(other).identity().incarnation, Incarnation(1));
}

#[tokio::test(start_paused = true)]
async fn without_a_majority_the_map_stays_unchanged() {
    let mut world = three(1).await;
    let leader = world.leader().expect("one leads");
    for name in others(leader) {
        world.power_off(name).await;
    }
    let before = world.at(leader).map();
    for _ in 0..3 {
        let started = Instant::now();
        let outcome = world.at(leader).propose(put("api", 0, "1"), ms(3000)).await;
        assert!(outcome.is_err(), "{outcome:?}");
        assert!(started.elapsed() <= ms(3100), "{:?}", started.elapsed());
    }
    assert_eq!(world.at(leader).map(), before);
    assert!(world.at(leader).contact().expect("once") > ms(5000));
    assert_eq!(body(&world.at(leader).map(), "api"), None);
}

#[tokio::test(start_paused = true)]
async fn two_halves_never_decide_both() {
    let world = three(1).await;
    let leader = world.leader().expect("one leads");
    world.net.isolate(leader, &THREE);
    let cut_off = world.at(leader).clone();
    let asked = tokio::spawn(async move { cut_off.propose(put("api", 0, "minority"), TTL).await });
    let other = others(leader).next().expect("two follow");
    let is_led = |world: &World| world.leader().is_some_and(|name| name != leader);
    let led = world.until("the others have a leader", ms(3000), is_led).await;
    println!("leader cut off: next one after {led:?}");
    done(world.at(other), put("api", 0, "majority")).await;
    assert!(asked.await.expect("it ends").is_err());
    world.net.heal();
    world.until("all are even", ms(5000), World::is_even).await;
    assert_eq!(body(&world.at(leader).map(), "api").as_deref(), Some("majority"));
}

/// Checks that no node is marked dead before the end of a lease that it had.
async fn nobody_is_promoted_within_a_lease(seed: u64, wreck: impl AsyncFn(&mut World)) {
    let mut world = three(seed).await;
    let mut until: BTreeMap<NodeId, Instant> = BTreeMap::new();
    let watched: Vec<Control> = world.nodes.values().map(|one| one.control.clone()).collect();
    let check = tokio::spawn(async move {
        let mut leases = 0_u32;
        loop {
            for control in &watched {
                let map = control.map();
                for (id, node) in map.nodes() {
                    let end = until.get(id).copied().unwrap_or_else(Instant::now);
                    let is_promised = end > Instant::now();
                    assert!(!is_promised || node.state != NodeState::Dead, "{id} had a lease");
                }
                if let (Some(age), Some(membership)) =
                    (control.lease(), control.identity().membership)
                {
                    leases += 1;
                    let end = Instant::now() + ms(1400).saturating_sub(age);
                    let kept = until.entry(membership.node).or_insert(end);
                    *kept = end.max(*kept);
                }
            }
            if leases > 1_000_000 {
                return;
            }
            sleep(ms(1)).await;
        }
    });
    sleep(ms(3000)).await;
    wreck(&mut world).await;
    sleep(ms(8000)).await;
    assert!(!check.is_finished(), "{:?}", check.await);
    check.abort();
}

#[tokio::test(start_paused = true)]
async fn node_with_a_lease_is_not_promoted_over() {
    for seed in 0..4 {
        for name in THREE {
            nobody_is_promoted_within_a_lease(seed, async |world: &mut World| {
                world.net.isolate(name, &THREE);
            })
            .await;
        }
        nobody_is_promoted_within_a_lease(seed, async |world: &mut World| {
            for (from, to) in [("a", "b"), ("b", "c"), ("c", "a")] {
                world.net.cut(from, to);
                sleep(ms(400)).await;
            }
            sleep(ms(4000)).await;
            world.net.heal();
        })
        .await;
    }
}
