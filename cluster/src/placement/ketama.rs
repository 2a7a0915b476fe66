//! The ketama circle, point for point as libmemcached's weighted ketama draws it.
//!
//! Here: the points, the owner of a hash, and its owner on the circle without some nodes. Not here:
//! partitions (`placement`). Source: libmemcached 1.1.4, `hosts.cc` and `hash.cc`;
//! `tests/ketama.rs` compares it with Debian's library.

use md5::{Digest as _, Md5};

/// Points of a node of average weight.
const POINTS_PER_NODE: u32 = 160;
/// Points per digest.
const POINTS_PER_DIGEST: u32 = 4;
/// The port that a ring name omits.
pub const DEFAULT_PORT: u16 = 11211;

/// A node's place on the circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    value: u32,
    /// Index of the node, which decides ties as libmemcached's stable sort does.
    node: u16,
    /// The number of points that the node drew before this one. A node draws more points when the
    /// others weigh less, so the rank decides which circles contain the point.
    rank: u32,
}

/// The points of all nodes, for the whole circle and for every circle without one or two of the
/// nodes.
#[derive(Debug, Clone)]
pub struct Circle {
    points: Vec<Point>,
    weights: Vec<u32>,
    total: u64,
}

/// The hash of a key: its position on the circle.
#[must_use]
pub fn hash(key: &[u8]) -> u32 {
    points_of_digest(key)[0]
}

/// A node's name in clients' server lists, as libmemcached derives it from an address.
#[must_use]
pub fn ring_name(host: &str, port: u16) -> String {
    if port == DEFAULT_PORT { host.to_owned() } else { format!("{host}:{port}") }
}

fn points_of_digest(bytes: &[u8]) -> [u32; POINTS_PER_DIGEST as usize] {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| digest[at * 4 + byte]));
    [0, 1, 2, 3].map(word)
}

/// The number of points that a node of `weight` draws among `live` nodes of `total` weight.
///
/// libmemcached computes this in single floats, and the circle has to be the same. Each operation
/// is exactly rounded, so every machine gets the same number.
#[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "as libmemcached does")]
pub(super) fn points_of_weight(weight: u32, total: u64, live: usize) -> u32 {
    let share = weight as f32 / total as f32;
    let digests = share * POINTS_PER_NODE as f32 / POINTS_PER_DIGEST as f32 * live as f32;
    let digests = (f64::from(digests) + 0.000_000_000_1) as f32;
    digests.floor() as u32 * POINTS_PER_DIGEST
}

impl Circle {
    /// The circle of `nodes`, each a ring name and a weight. A weight of 0 counts as 1, as in
    /// libmemcached.
    pub fn new<'a>(nodes: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let (names, weights): (Vec<&str>, Vec<u32>) =
            nodes.into_iter().map(|(name, weight)| (name, weight.max(1))).unzip();
        let total = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut circle = Self { points: Vec::new(), weights, total };
        for (node, name) in names.into_iter().enumerate() {
            let max = circle.most_points(node);
            for number in 0..max / POINTS_PER_DIGEST {
                let values = points_of_digest(format!("{name}-{number}").as_bytes());
                let ranks = number * POINTS_PER_DIGEST..;
                let points = values.into_iter().zip(ranks);
                circle.points.extend(points.map(|(value, rank)| Point {
                    value,
                    node: node as u16,
                    rank,
                }));
            }
        }
        circle.points.sort_unstable();
        circle
    }

    /// The index of the node that owns `hash`; none on an empty circle.
    #[must_use]
    pub fn owner(&self, hash: u32) -> Option<u16> {
        self.next(hash, &[], &|_| true)
    }

    /// The owner of `hash` on the circle without the nodes in `gone`, skipping nodes that `may`
    /// rejects.
    #[must_use]
    pub fn next(&self, hash: u32, gone: &[u16], may: &dyn Fn(u16) -> bool) -> Option<u16> {
        let live = self.weights.len() - gone.len();
        let total = self.total - gone.iter().map(|&node| self.weight(node)).sum::<u64>();
        let start = self.points.partition_point(|point| point.value < hash);
        let (before, from) = self.points.split_at(start);
        let is_drawn = |point: &&Point| {
            !gone.contains(&point.node)
                && may(point.node)
                && point.rank < points_of_weight(self.weight(point.node) as u32, total, live)
        };
        from.iter().chain(before).find(is_drawn).map(|point| point.node)
    }

    fn weight(&self, node: u16) -> u64 {
        u64::from(self.weights[usize::from(node)])
    }

    /// The most points that a node draws on any circle without up to two others. Its share is
    /// greatest when the heaviest nodes are gone.
    fn most_points(&self, node: usize) -> u32 {
        let mut others: Vec<u32> = self.weights.clone();
        let weight = others.swap_remove(node);
        others.sort_unstable_by(|a, b| b.cmp(a));
        let mut total = self.total;
        let mut max = points_of_weight(weight, total, self.weights.len());
        for (gone, heavy) in others.into_iter().take(super::COPIES_MAX - 1).enumerate() {
            total -= u64::from(heavy);
            max = max.max(points_of_weight(weight, total, self.weights.len() - gone - 1));
        }
        max
    }
}
