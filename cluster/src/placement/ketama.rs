//! The ketama circle, point for point as libmemcached's weighted ketama draws it.
//!
//! Here: where points lie, who owns a place, who would own it without some nodes. Not here:
//! partitions (`placement`). Source: libmemcached 1.1.4, `hosts.cc` and `hash.cc`; checked against
//! Debian's library by `tests/ketama.rs`.

use md5::{Digest as _, Md5};

use super::md5_of_four;

/// Points of a node of average weight.
const POINTS_PER_NODE: u32 = 160;
/// Points that one digest gives.
const POINTS_PER_DIGEST: u32 = 4;
/// The port that a ring name leaves out.
pub const DEFAULT_PORT: u16 = 11211;

/// A node's place on the circle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    value: u32,
    /// Index of the node, which decides ties as libmemcached's stable sort does.
    node: u16,
    /// How many points its node has drawn before this one. A node draws more of them when the
    /// others weigh less, so this says on which circles the point is.
    rank: u32,
}

/// All nodes' points, for the whole circle and for every circle without one or two of the nodes.
#[derive(Debug, Clone)]
pub struct Circle {
    points: Vec<Point>,
    weights: Vec<u32>,
    total: u64,
}

/// A key's place on the circle.
#[must_use]
pub fn hash(key: &[u8]) -> u32 {
    points_of_digest(key)[0]
}

/// The places of several keys, in their order.
pub(super) fn hash_all(keys: &[&[u8]], mut each: impl FnMut(u32)) {
    for group in keys.chunks(md5_of_four::KEYS) {
        let is_short = |key: &&[u8]| key.len() <= md5_of_four::KEY_BYTES_MAX;
        if group.len() == 1 || !group.iter().all(is_short) {
            for key in group {
                each(hash(key));
            }
            continue;
        }
        let key = |stream: usize| group.get(stream).copied().unwrap_or_default();
        let words = md5_of_four::first_words(std::array::from_fn(key));
        words.into_iter().take(group.len()).for_each(&mut each);
    }
}

/// A node's name in clients' lists, as libmemcached makes it of an address.
#[must_use]
pub fn ring_name(host: &str, port: u16) -> String {
    if port == DEFAULT_PORT { host.to_owned() } else { format!("{host}:{port}") }
}

fn points_of_digest(bytes: &[u8]) -> [u32; POINTS_PER_DIGEST as usize] {
    let digest: [u8; 16] = Md5::digest(bytes).into();
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| digest[at * 4 + byte]));
    [0, 1, 2, 3].map(word)
}

/// How many points a node of `weight` draws among `live` nodes of `total` weight.
///
/// Floats, because libmemcached computes it in single floats and the circle has to be the same.
/// Each operation is exactly rounded, so every machine gets the same number.
#[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "as libmemcached does")]
pub(super) fn points_of_weight(weight: u32, total: u64, live: usize) -> u32 {
    let share = weight as f32 / total as f32;
    let digests = share * POINTS_PER_NODE as f32 / POINTS_PER_DIGEST as f32 * live as f32;
    let digests = (f64::from(digests) + 0.000_000_000_1) as f32;
    digests.floor() as u32 * POINTS_PER_DIGEST
}

impl Circle {
    /// The circle of these nodes, each by ring name and weight. A weight of 0 counts as 1, as it
    /// does in libmemcached.
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

    /// The index of the node that owns a place; none on an empty circle.
    #[must_use]
    pub fn owner(&self, hash: u32) -> Option<u16> {
        self.next(hash, &[], &|_| true)
    }

    /// Who owns a place on the circle without the nodes that are `gone`, passing over those that
    /// may not.
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

    /// The most points that a node draws on any circle without up to two others: its share is
    /// greatest when the heaviest are gone.
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
