//! Placement against golden vectors, against a linear scan, and as nodes join and leave.

use proptest::prelude::*;

use super::*;

/// The answers of libmemcached, line by line; `tests/ketama.rs` writes and checks the file.
const GOLDEN: &str = include_str!("golden.txt");

fn member(number: u32, weight: u32, zone: &str) -> Member {
    Member {
        node: NodeId(number),
        ring_name: format!("10.0.{}.{}", number / 250, number % 250),
        weight,
        zone: zone.to_owned(),
    }
}

fn members(numbers: impl IntoIterator<Item = u32>) -> Vec<Member> {
    numbers.into_iter().map(|number| member(number, 1, "")).collect()
}

fn ketama(bits: u8) -> Placement {
    Placement::new(Scheme::Ketama, bits).expect("few bits")
}

fn xxh3(bits: u8) -> Placement {
    Placement::new(Scheme::Xxh3, bits).expect("few bits")
}

#[test]
fn the_circle_is_libmemcacheds() {
    let mut circle = None;
    let mut checked = 0;
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#')) {
        if let Some(servers) = line.strip_prefix("servers ") {
            let servers: Vec<(String, u32)> = servers.split(' ').map(server).collect();
            circle = Some(Circle::new(servers.iter().map(|(name, weight)| (&**name, *weight))));
        } else if let Some(owners) = line.strip_prefix("owners ") {
            let circle = circle.as_ref().expect("servers come first");
            for (at, owner) in owners.chars().enumerate() {
                let key = format!("key:{at}");
                let expected = owner.to_digit(36).map(|digit| digit as u16);
                assert_eq!(circle.owner(ketama::hash(key.as_bytes())), expected, "{line} {key}");
                checked += 1;
            }
        }
    }
    assert!(checked > 2000);
}

fn server(words: &str) -> (String, u32) {
    let [host, port, weight] = words.split(':').collect::<Vec<_>>()[..] else { panic!("{words}") };
    let port = port.parse().expect("a port");
    (ketama::ring_name(host, port), weight.parse().expect("a weight"))
}

#[test]
fn partitions_of_several_keys_are_those_of_each() {
    let keys: Vec<Vec<u8>> = (0..80).map(|length| vec![b'k'; length]).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    for scheme in [Scheme::Ketama, Scheme::Xxh3] {
        let placement = Placement::new(scheme, 14).expect("few enough");
        for count in 0..keys.len() {
            for some in [&keys[..count], &keys[keys.len() - count..]] {
                let mut numbers = vec![u64::MAX; count];
                placement.partitions_of(some, &mut numbers);
                let each: Vec<u64> =
                    some.iter().map(|key| u64::from(placement.partition(key).0)).collect();
                assert_eq!(numbers, each);
            }
        }
    }
}

#[test]
fn a_partition_is_the_top_of_the_hash() {
    let placement = ketama(14);
    assert_eq!(placement.partitions(), 16384);
    assert_eq!(placement.partition_of_hash(0), Partition(0));
    assert_eq!(placement.partition_of_hash((1 << 18) - 1), Partition(0));
    assert_eq!(placement.partition_of_hash(1 << 18), Partition(1));
    assert_eq!(placement.partition_of_hash(u32::MAX), Partition(16383));
    assert_eq!(ketama(0).partition_of_hash(u32::MAX), Partition(0));
    assert_eq!(ketama(16).partition_of_hash(u32::MAX), Partition(u16::MAX));
    assert_eq!(Placement::new(Scheme::Ketama, 17), None);
    for bits in [0, 1, 14, 16] {
        for partition in [0, ketama(bits).partitions() - 1].map(|at| Partition(at as u16)) {
            let middle = ketama(bits).middle(partition);
            assert_eq!(ketama(bits).partition_of_hash(middle), partition);
        }
    }
}

#[test]
fn no_nodes_hold_nothing() {
    for placement in [ketama(4), xxh3(4)] {
        assert!(placement.targets(&[], 2).iter().all(|holders| holders.is_empty()));
        assert!(placement.targets(&members([7]), 2).iter().all(|one| **one == [NodeId(7)]));
    }
}

/// Points of each of `live` nodes of equal weight.
fn points_each(live: u32) -> u32 {
    ketama::points_of_weight(1, u64::from(live), live as usize)
}

#[test]
fn equal_weights_draw_160_points_but_for_rounding() {
    // libmemcached's single floats fall just below 40 digests at some sizes; the first is 25.
    let odd: Vec<u32> = (1..=1000).filter(|&live| points_each(live) != 160).collect();
    assert_eq!(odd[..5], [25, 47, 50, 55, 61]);
    assert_eq!(odd.len(), 103);
    assert!(odd.into_iter().all(|live| points_each(live) == 156));
}

#[test]
fn a_join_at_an_odd_size_moves_little_more() {
    let before = ketama(14).targets(&members(0..24), 1);
    let after = ketama(14).targets(&members(0..25), 1);
    let moved = (before.iter().zip(&after)).filter(|(before, after)| before[0] != after[0]);
    let elsewhere = moved.clone().filter(|(_, after)| after[0] != NodeId(24)).count();
    assert!((1..16384 / 25).contains(&elsewhere), "{elsewhere} of {}", moved.count());
}

#[test]
fn shares_follow_weights() {
    for placement in [ketama(14), xxh3(14)] {
        let weights = [600, 300, 200, 350, 1000, 800, 950, 100];
        let nodes: Vec<Member> =
            (0..).zip(weights).map(|(number, weight)| member(number, weight, "")).collect();
        let mut held = [0_u32; 8];
        for holders in placement.targets(&nodes, 1) {
            held[holders[0].0 as usize] += 1;
        }
        for (held, weight) in held.into_iter().zip(weights) {
            let expected = 16384 * weight / 4300;
            let off = held.abs_diff(expected) * 100 / expected;
            let max = if placement.scheme() == Scheme::Ketama { 35 } else { 12 };
            assert!(off <= max, "{:?}: {held} for {expected}", placement.scheme());
        }
    }
}

fn some_members() -> impl Strategy<Value = Vec<Member>> {
    let one = (1_u32..2000, 1_u32..20, 0_usize..4);
    (proptest::collection::btree_map(0_u32..60, one, 1..12), any::<bool>(), any::<bool>()).prop_map(
        |(nodes, weighted, zoned)| {
            let zones = ["", "a", "b", "c"];
            let build = |(number, (_, weight, zone)): (u32, (u32, u32, usize))| {
                let weight = if weighted { weight } else { 1 };
                member(number, weight, if zoned { zones[zone] } else { "" })
            };
            nodes.into_iter().map(build).collect()
        },
    )
}

/// The owner by a naive twin: draws the circle of `members` alone and scans all points.
fn owner_by_scan(members: &[Member], hash: u32) -> NodeId {
    let total: u32 = members.iter().map(|one| one.weight).sum();
    let mut best: Option<(u32, usize)> = None;
    for (at, member) in members.iter().enumerate() {
        let points = ketama::points_of_weight(member.weight, u64::from(total), members.len());
        for number in 0..points / 4 {
            let digest: [u8; 16] =
                <md5::Md5 as md5::Digest>::digest(format!("{}-{number}", member.ring_name)).into();
            for word in digest.chunks(4) {
                let value = u32::from_le_bytes(word.try_into().expect("four bytes"));
                // The distance from the hash up to the point, around the end if necessary.
                let way = value.wrapping_sub(hash);
                if best.is_none_or(|best| (way, at) < best) {
                    best = Some((way, at));
                }
            }
        }
    }
    members[best.expect("somebody has a point").1].node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_twin_scans_the_circle(nodes in some_members(), hashes in any::<[u32; 8]>()) {
        let circle = Circle::new(nodes.iter().map(|one| (&*one.ring_name, one.weight)));
        for hash in hashes {
            let first = circle.owner(hash).expect("there are nodes");
            prop_assert_eq!(nodes[usize::from(first)].node, owner_by_scan(&nodes, hash));
            // Without that node the circle is drawn anew, with other numbers of points.
            let mut left = nodes.clone();
            left.remove(usize::from(first));
            let next = circle.next(hash, &[first], &|_| true);
            match next {
                Some(next) => {
                    prop_assert_eq!(nodes[usize::from(next)].node, owner_by_scan(&left, hash));
                }
                None => prop_assert!(left.is_empty()),
            }
        }
    }

    #[test]
    fn holders_differ_and_zones_too_where_possible(nodes in some_members(), copies in 1_usize..4) {
        let zones: Vec<String> = nodes.iter().map(|one| match &*one.zone {
            "" => format!("of {}", one.node),
            zone => zone.to_owned(),
        }).collect();
        let of = |node: NodeId| nodes.iter().position(|one| one.node == node).map(|at| zones[at].clone());
        for placement in [ketama(6), xxh3(6)] {
            for holders in placement.targets(&nodes, copies) {
                prop_assert_eq!(holders.len(), copies.min(nodes.len()));
                let mut distinct = holders.to_vec();
                distinct.sort();
                distinct.dedup();
                prop_assert_eq!(distinct.len(), holders.len());
                let mut used: Vec<_> = holders.iter().map(|&node| of(node)).collect();
                used.sort();
                used.dedup();
                let mut all = zones.clone();
                all.sort();
                all.dedup();
                prop_assert_eq!(used.len(), holders.len().min(all.len()));
            }
        }
    }

    #[test]
    fn after_a_crash_the_backup_is_the_successor(nodes in some_members(), dead in any::<prop::sample::Index>()) {
        // Clients do not know zones, so the test leaves them out.
        let nodes: Vec<Member> = nodes.into_iter().map(|one| Member { zone: String::new(), ..one }).collect();
        prop_assume!(nodes.len() > 1);
        let dead = dead.get(&nodes).node;
        let left: Vec<Member> = nodes.iter().filter(|one| one.node != dead).cloned().collect();
        for placement in [ketama(8), xxh3(8)] {
            let before = placement.targets(&nodes, 2);
            let after = placement.targets(&left, 2);
            for (partition, (before, after)) in before.iter().zip(&after).enumerate() {
                if before[0] == dead {
                    prop_assert_eq!(after[0], before[1]);
                    if placement.scheme() == Scheme::Ketama {
                        let middle = placement.middle(Partition(partition as u16));
                        prop_assert_eq!(after[0], owner_by_scan(&left, middle));
                    }
                }
            }
        }
    }

    #[test]
    fn a_join_moves_only_to_the_new_node(count in 1_u32..40, new in 100_u32..200, copies in 1_usize..4) {
        // A backup is drawn from the circle without the nodes before it.
        let sizes = (count + 1).saturating_sub(copies as u32).max(1)..=count + 1;
        let is_odd = { sizes }.any(|live| points_each(live) != 160);
        for placement in [ketama(10), xxh3(10)] {
            if is_odd && placement.scheme() == Scheme::Ketama {
                continue;
            }
            let before = placement.targets(&members(0..count), copies);
            let after = placement.targets(&members((0..count).chain([new])), copies);
            for (before, after) in before.iter().zip(&after) {
                for holder in after.iter() {
                    prop_assert!(before.contains(holder) || *holder == NodeId(new));
                }
                if before.primary() != after.primary() {
                    prop_assert_eq!(after.primary(), Some(NodeId(new)));
                    // The old primary stays as backup, so only the new node's copy is made.
                    prop_assert!(copies == 1 || after[1] == before[0]);
                }
            }
        }
    }

    #[test]
    fn rendezvous_moves_only_to_a_node_that_grows(nodes in some_members(), more in 1_u32..20, grows in any::<prop::sample::Index>()) {
        let mut nodes: Vec<Member> = nodes.into_iter().map(|one| Member { zone: String::new(), ..one }).collect();
        let before = xxh3(8).targets(&nodes, 1);
        let at = grows.index(nodes.len());
        nodes[at].weight += more;
        let after = xxh3(8).targets(&nodes, 1);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(before[0] == after[0] || after[0] == nodes[at].node);
        }
    }
}
