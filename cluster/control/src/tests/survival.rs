//! Deaths at one moment, and one after the other: checks the table of docs/operations/cluster.md
//! against whole control planes.
//!
//! Here: every set of nodes of the size that the table allows is powered off at once, for each
//! number of nodes and copies; for six and seven nodes every fourth set, and all of them with
//! `SETS=all`. Not here: the same with processes and counts (`tests/cluster/pairs.rs`).

use super::*;

const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
/// A host that is off is detected after 1.5 s; another leader takes one second more.
const SERVED_WITHIN: Duration = Duration::from_millis(4500);

/// A row of the table: nodes, voters, deaths at once with one, two and three copies, deaths one
/// after the other with two copies.
struct Row {
    nodes: usize,
    voters: usize,
    at_once: [usize; 3],
    in_turn: usize,
}

fn table() -> Vec<Row> {
    let book = include_str!("../../../../docs/operations/cluster.md");
    let rows = book.lines().skip_while(|line| !line.starts_with("| nodes | voters |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with('|')).map(|line| {
        let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().parse().expect(line));
        let cells: Vec<usize> = cells.collect();
        let [nodes, voters, one, two, three, in_turn] = cells[..] else { panic!("{line}") };
        Row { nodes, voters, at_once: [one, two, three], in_turn }
    });
    rows.collect()
}

fn sets_of(size: usize, nodes: usize) -> impl Iterator<Item = Vec<&'static str>> {
    (0..1_u32 << nodes).filter(move |set| set.count_ones() as usize == size).map(move |set| {
        NAMES.into_iter().enumerate().filter(|(at, _)| set >> at & 1 == 1).map(|it| it.1).collect()
    })
}

/// Whether every partition has its copies on living nodes, and there is the right number of voters.
fn is_whole(world: &World, copies: usize, voters: usize) -> bool {
    world.nodes.values().all(|running| {
        let map = running.control.map();
        let living = map.members().len();
        running.control.status().voters.len() == voters
            && map.nodes().values().all(|node| node.state != NodeState::Joining)
            && map.partitions().iter().all(|entry| {
                entry.in_sync.len() == copies.min(living)
                    && entry.learner.is_none()
                    && entry.transfer_to.is_none()
                    && entry.in_sync.iter().all(|copy| map.is_living(*copy))
            })
    })
}

async fn whole(nodes: usize, copies: usize, voters: usize) -> World {
    let world = World::cluster(nodes as u64, &NAMES[..nodes]).await;
    let replicas = u8::try_from(copies).expect("three at most");
    done(world.at("a"), MapCommand::Set(Setting::Replicas(replicas))).await;
    world.until("it is whole", ms(60_000), |world| is_whole(world, copies, voters)).await;
    // Waits until the first leases and silences are over.
    sleep(ms(5000)).await;
    world
}

fn eras(map: &Map) -> Vec<u32> {
    map.partitions().iter().map(|entry| entry.era).collect()
}

/// Whether a running node has a map in which every partition is served: its primary and all in-sync
/// copies are on running nodes, and no partition started empty.
fn is_served(world: &World, eras_before: &[u32]) -> bool {
    let membership =
        |running: &Running| running.control.identity().membership.map(|membership| membership.node);
    let running: BTreeSet<NodeId> = world.nodes.values().filter_map(membership).collect();
    let newest = world.nodes.values().map(|running| running.control.map()).max_by_key(|m| m.ver());
    newest.is_some_and(|map| {
        let runs = |copy: &CopyId| running.contains(&copy.node) && map.is_living(*copy);
        let answers = |entry: &cluster::map::SharedEntry| {
            entry.primary.is_some() && entry.in_sync.iter().all(runs)
        };
        eras(&map) == eras_before && map.partitions().iter().all(answers)
    })
}

/// Powers off all of `dead` at once. Returns whether every partition is served soon after.
async fn survives(row: &Row, copies: usize, dead: &[&'static str]) -> bool {
    let mut world = whole(row.nodes, copies, row.voters).await;
    let before = eras(&world.at("a").map());
    for name in dead {
        world.net.darken(name);
    }
    for name in dead {
        world.end(name).await;
    }
    let start = Instant::now();
    while start.elapsed() < SERVED_WITHIN {
        if is_served(&world, &before) {
            return true;
        }
        sleep(ms(20)).await;
    }
    false
}

async fn holds_the_table(copies: usize) {
    let rows = table();
    assert_eq!(rows.iter().map(|row| row.nodes).collect::<Vec<_>>(), (1..=7).collect::<Vec<_>>());
    for row in rows {
        let most = row.at_once[copies - 1];
        let is_full = std::env::var("SETS").as_deref() == Ok("all");
        let step = if row.nodes > 5 && !is_full { 4 } else { 1 };
        for size in 1..=most {
            for dead in sets_of(size, row.nodes).step_by(step) {
                let survived = survives(&row, copies, &dead).await;
                assert!(survived, "{} nodes, {copies} copies, dead {dead:?}", row.nodes);
            }
        }
        // One more death is too many, at least for the worst choice.
        let mut has_failed = false;
        for dead in sets_of(most + 1, row.nodes) {
            if !survives(&row, copies, &dead).await {
                has_failed = true;
                break;
            }
        }
        assert!(has_failed, "{} nodes, {copies} copies: {} are survived", row.nodes, most + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn one_copy_survives_the_deaths_of_the_table() {
    holds_the_table(1).await;
}

#[tokio::test(start_paused = true)]
async fn two_copies_survive_the_deaths_of_the_table() {
    holds_the_table(2).await;
}

#[tokio::test(start_paused = true)]
async fn three_copies_survive_the_deaths_of_the_table() {
    holds_the_table(3).await;
}

/// Returns whether every partition is served after the voters die one by one, each as soon as the
/// copies of the one before were made again.
async fn survives_in_turn(row: &Row, deaths: usize) -> bool {
    let mut world = whole(row.nodes, 2, row.voters).await;
    let before = eras(&world.at("a").map());
    for _ in 0..deaths {
        // The leader dies last, if another voter is left.
        let leader = world.leader();
        let voters = leader.map(|name| world.at(name).status().voters).unwrap_or_default();
        let mut next = world.nodes.keys().copied().filter(|name| {
            let id = world.at(name).identity().membership.map(|membership| membership.node);
            id.is_some_and(|id| voters.contains(&id)) && Some(*name) != leader
        });
        let Some(name) = next.next_back().or(leader) else { return false };
        world.power_off(name).await;
        let start = Instant::now();
        let is_ready = |world: &World| {
            is_served(world, &before)
                && world.nodes.values().all(|one| {
                    let map = one.control.map();
                    let copies = 2.min(map.members().len());
                    map.partitions().iter().all(|entry| entry.in_sync.len() == copies)
                })
        };
        while !is_ready(&world) {
            if start.elapsed() > ms(30_000) {
                return false;
            }
            sleep(ms(20)).await;
        }
    }
    true
}

#[tokio::test(start_paused = true)]
async fn voters_that_die_in_turn_are_replaced_in_time() {
    for row in table() {
        assert!(survives_in_turn(&row, row.in_turn).await, "{} nodes", row.nodes);
        assert!(!survives_in_turn(&row, row.in_turn + 1).await, "{} nodes", row.nodes);
    }
}
