//! Commands whose leader is slow, or whose answers are lost.

use cluster::map::{MapAnswer, MapRefusal};

use super::*;
use crate::ProposeError;
use crate::simulation::DiskFault;

/// Longer than one attempt at another node, shorter than two.
const ANSWERS_LOST: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn setting_soon_after_founding_is_made() {
    let mut world = World::new(1, &["a"]);
    world.bits = 14;
    let disk = Disk::new();
    disk.set_trouble(Some(DiskFault::Slow(ms(50))));
    let a = world.start_on("a", disk, StartMode::Found).await;
    let has_first = |_: &World| a.map().partitions().iter().any(|entry| entry.primary.is_some());
    world.until("the first copies are made", ms(5000), has_first).await;
    let started = Instant::now();
    let outcome = a.propose(MapCommand::Set(Setting::Replicas(2)), TTL).await;
    println!("set after {:?}", started.elapsed());
    assert!(started.elapsed() > ms(2000), "all other copies come before it");
    assert_eq!(outcome.expect("it leads").answer, Ok(MapAnswer::Done));
    assert_eq!(a.map().settings().replicas, 2);
}

/// Seven nodes, five of which vote. Returns the leader and two observers.
async fn seven() -> (World, &'static str, [&'static str; 2]) {
    let world = World::cluster(1, &["a", "b", "c", "d", "e", "f", "g"]).await;
    world.voters_are(&[1, 2, 3, 4, 5], ms(20_000)).await;
    let are_active = |world: &World| {
        world.at("a").map().nodes().values().all(|node| node.state == NodeState::Active)
    };
    world.until("all are active", ms(60_000), are_active).await;
    let leader = world.leader().expect("one leads");
    (world, leader, ["f", "g"])
}

/// Proposes at `name`, while the answers of the leader are lost for `lost`.
async fn propose_unanswered(
    world: &World,
    (leader, name): (&'static str, &'static str),
    lost: Duration,
    command: MapCommand,
) -> Result<Result<MapAnswer, MapRefusal>, ProposeError> {
    world.net.cut(leader, name);
    let heal = async {
        sleep(lost).await;
        world.net.heal();
    };
    let (outcome, ()) = tokio::join!(world.at(name).propose(command, TTL), heal);
    outcome.map(|outcome| outcome.answer)
}

#[tokio::test(start_paused = true)]
async fn repeatable_command_is_sent_again() {
    let (mut world, leader, [f, g]) = seven().await;
    let set = MapCommand::Set(Setting::Replicas(3));
    let answer = propose_unanswered(&world, (leader, f), ANSWERS_LOST, set.clone()).await;
    assert_eq!(answer, Ok(Ok(MapAnswer::Done)));

    let identity = world.at(g).identity();
    let id = identity.membership.expect("it is in").node;
    world.power_off(g).await;
    world.until("it is dead", ms(5000), is_dead(f, id.0)).await;
    let forget = MapCommand::Forget(id, identity.incarnation);
    let answer = propose_unanswered(&world, (leader, f), ANSWERS_LOST, forget).await;
    assert_eq!(answer, Ok(Ok(MapAnswer::Done)), "the first attempt has removed the node");
    let forget = MapCommand::Forget(id, identity.incarnation);
    let outcome = world.at(f).propose(forget, TTL).await.expect("it is answered");
    assert_eq!(outcome.answer, Err(MapRefusal::UnknownNode), "no earlier attempt of this one");

    let answer = propose_unanswered(&world, (leader, f), TTL * 2, set).await;
    assert_eq!(answer, Err(ProposeError::Unknown), "an attempt may have been done");
}

#[tokio::test(start_paused = true)]
async fn put_without_an_answer_is_sent_once() {
    let (world, leader, [f, _]) = seven().await;
    let started = Instant::now();
    let answer = propose_unanswered(&world, (leader, f), ANSWERS_LOST, put("api", 0, "1")).await;
    assert_eq!(answer, Err(ProposeError::Unknown));
    assert_eq!(started.elapsed(), TTL, "no second attempt needs the time");
    world.until("it is put", BEAT, |world| body(&world.at(f).map(), "api").is_some()).await;
}
