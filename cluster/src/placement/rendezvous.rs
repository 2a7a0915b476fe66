//! Rendezvous hashing: each node draws a lot for each partition, and the best lots hold it.
//!
//! Here: lots, and weights exact to twenty-four bits. Not here: the partition of a key, zones
//! (`placement`).
//!
//! A node's lots depend only on its own name and weight. So a node that joins, leaves or changes
//! its weight moves no partition between other nodes.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

use crate::id::Partition;

/// Fractional bits of a logarithm.
const FRACTION_BITS: u32 = 24;

/// All nodes, by the hash of their names.
#[derive(Debug, Clone)]
pub struct Nodes {
    names: Vec<u64>,
    weights: Vec<u32>,
    are_equal: bool,
}

/// The lots of all nodes for one partition.
#[derive(Debug)]
pub struct Draw<'a> {
    nodes: &'a Nodes,
    lots: Vec<u64>,
}

impl Nodes {
    /// The nodes, each given by ring name and weight. A weight of 0 counts as 1.
    pub fn new<'a>(nodes: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let (names, weights): (Vec<u64>, Vec<u32>) = nodes
            .into_iter()
            .map(|(name, weight)| (xxh3_64(name.as_bytes()), weight.max(1)))
            .unzip();
        let are_equal = weights.windows(2).all(|pair| pair[0] == pair[1]);
        Self { names, weights, are_equal }
    }

    /// The lots for one partition.
    #[must_use]
    pub fn draw(&self, partition: Partition) -> Draw<'_> {
        let lot = |name: &u64| {
            let mut bytes = [0; 10];
            bytes[..8].copy_from_slice(&name.to_le_bytes());
            bytes[8..].copy_from_slice(&partition.0.to_le_bytes());
            xxh3_64(&bytes)
        };
        Draw { nodes: self, lots: self.names.iter().map(lot).collect() }
    }
}

impl Draw<'_> {
    /// The node with the best lot that is not in `gone` and passes `may`.
    #[must_use]
    pub fn next(&self, gone: &[u16], may: &dyn Fn(u16) -> bool) -> Option<u16> {
        (0..self.lots.len() as u16)
            .filter(|node| !gone.contains(node) && may(*node))
            .max_by(|&a, &b| self.compare(a, b))
    }

    /// Greater is better; the earlier node wins a tie.
    fn compare(&self, a: u16, b: u16) -> Ordering {
        let (lot_a, lot_b) = (self.lots[usize::from(a)], self.lots[usize::from(b)]);
        let by_lot = lot_a.cmp(&lot_b).then(b.cmp(&a));
        if self.nodes.are_equal {
            return by_lot;
        }
        // Of N exponential clocks with rates w, each rings first with probability w / sum of w, and
        // -log(lot) / w is such a clock. Multiplying crosswise avoids a division.
        let weight = |node: u16| u128::from(self.nodes.weights[usize::from(node)]);
        let clock_a = u128::from(negative_log2(lot_a)) * weight(b);
        let clock_b = u128::from(negative_log2(lot_b)) * weight(a);
        clock_b.cmp(&clock_a).then(by_lot)
    }
}

/// -log2(lot / 2^64), at least 0, in units of 2^-24. Computed in integers, so that all machines
/// agree. The result never grows with the lot, so equal weights keep the order of the lots.
fn negative_log2(lot: u64) -> u64 {
    let lot = lot.max(1);
    let zeros = lot.leading_zeros();
    // The mantissa, from 1 inclusive to 2 exclusive, with 63 fractional bits. Squaring doubles the
    // logarithm.
    let mut mantissa = lot << zeros;
    let mut fraction = 0_u64;
    for _ in 0..FRACTION_BITS {
        let square = (u128::from(mantissa) * u128::from(mantissa)) >> 63;
        let bit = (square >> 64) as u64;
        fraction = fraction << 1 | bit;
        mantissa = (square >> bit) as u64;
    }
    (u64::from(zeros + 1) << FRACTION_BITS) - fraction
}
