//! A compressed trie: finds all strings of a set that a key begins with, in one pass over the key.
//!
//! Here: building and walking the trie. A node is one cache line with up to fifteen bytes of its
//! edge, so a key that begins with no known string ends after one or two nodes, whatever the size
//! of the set.

/// Maximum number of bytes of an edge in one node; a longer edge is a chain of nodes.
const LABEL_BYTES_MAX: usize = 15;

/// The value of a node without a string.
const NONE: u32 = u32::MAX;

/// A fixed set of byte strings, each with a number.
#[derive(Debug, Clone, Default)]
pub(super) struct Trie {
    /// The root first; the children of a node are adjacent, in the order of their bytes.
    nodes: Vec<TrieNode>,
}

#[derive(Debug, Clone)]
struct TrieNode {
    /// A bit for each byte that has a child.
    children: [u64; 4],
    /// The number of children in the words of `children` before each word.
    ranks: [u8; 4],
    first_child: u32,
    value: u32,
    /// The bytes of the edge; the last byte is their number.
    edge: [u8; LABEL_BYTES_MAX + 1],
}

impl TrieNode {
    const EMPTY: Self = Self {
        children: [0; 4],
        ranks: [0; 4],
        first_child: 0,
        value: NONE,
        edge: [0; LABEL_BYTES_MAX + 1],
    };

    fn label_len(&self) -> usize {
        self.edge[LABEL_BYTES_MAX].into()
    }

    /// The part of a key behind this node's edge, if the key begins with it.
    #[inline]
    fn behind_edge<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let len = self.label_len();
        // Most keys are longer than an edge: one comparison of two words, without a call.
        let Some(front) = key.first_chunk() else { return key.strip_prefix(self.edge.get(..len)?) };
        let differing = u128::from_le_bytes(*front) ^ u128::from_le_bytes(self.edge);
        if (differing.trailing_zeros() as usize) < 8 * len {
            return None;
        }
        key.get(len..)
    }
}

impl Trie {
    /// Builds a trie of strings and their numbers, each below `u32::MAX`. Of equal strings the last
    /// one counts.
    pub(super) fn new(mut strings: Vec<(&[u8], u32)>) -> Self {
        if strings.is_empty() {
            return Self::default();
        }
        strings.sort_by(|one, other| one.0.cmp(other.0));
        let mut nodes = vec![TrieNode::EMPTY];
        // Tuples of a node, the strings below it, and the number of their bytes that lead to it.
        let mut waiting = vec![(0, strings.as_slice(), 0)];
        while let Some((index, mut below, depth)) = waiting.pop() {
            let (Some((first, _)), Some((last, _))) = (below.first(), below.last()) else {
                continue;
            };
            // The strings are sorted, so all of them share the common prefix of the first and the
            // last.
            let shared = first[depth..].iter().zip(&last[depth..]).take_while(|(a, b)| a == b);
            let label_len = shared.count().min(LABEL_BYTES_MAX);
            let end = depth + label_len;
            let mut node = TrieNode::EMPTY;
            node.edge[..label_len].copy_from_slice(&first[depth..end]);
            node.edge[LABEL_BYTES_MAX] = label_len as u8;
            while let Some(((string, value), rest)) = below.split_first()
                && string.len() == end
            {
                node.value = *value;
                below = rest;
            }
            node.first_child = nodes.len() as u32;
            for group in below.chunk_by(|one, other| one.0[end] == other.0[end]) {
                let byte = group[0].0[end];
                node.children[usize::from(byte >> 6)] |= 1 << (byte & 63);
                waiting.push((nodes.len(), group, end + 1));
                nodes.push(TrieNode::EMPTY);
            }
            for word in 1..4 {
                let before = node.children[word - 1].count_ones() as u8;
                node.ranks[word] = node.ranks[word - 1] + before;
            }
            nodes[index] = node;
        }
        Self { nodes }
    }

    /// Whether there are no strings.
    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Calls `visit` with the number of each string that `key` begins with, shortest first.
    #[inline]
    pub(super) fn walk(&self, key: &[u8], mut visit: impl FnMut(u32)) {
        let Some(mut node) = self.nodes.first() else { return };
        let mut rest = key;
        loop {
            let Some(after) = node.behind_edge(rest) else { return };
            if node.value != NONE {
                visit(node.value);
            }
            let Some((byte, after)) = after.split_first() else { return };
            let (word, bit) = (usize::from(byte >> 6), 1_u64 << (byte & 63));
            let children = node.children[word];
            if children & bit == 0 {
                return;
            }
            let rank = u32::from(node.ranks[word]) + (children & (bit - 1)).count_ones();
            node = &self.nodes[(node.first_child + rank) as usize];
            rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(strings: &[&str], key: &str) -> Vec<u32> {
        let strings = strings.iter().zip(0..).map(|(string, number)| (string.as_bytes(), number));
        let mut found = Vec::new();
        Trie::new(strings.collect()).walk(key.as_bytes(), |number| found.push(number));
        found
    }

    #[test]
    fn all_prefixes_of_a_key_are_found_shortest_first() {
        let long = "a-string-of-more-than-fifteen-bytes";
        let strings = ["user:", "u", "", "user:42", "users", long, "a-string-of-more-than-fifty"];
        assert_eq!(found(&strings, "user:42:x"), [2, 1, 0, 3]);
        assert_eq!(found(&strings, "user"), [2, 1]);
        assert_eq!(found(&strings, "users"), [2, 1, 4]);
        assert_eq!(found(&strings, long), [2, 5]);
        assert_eq!(found(&strings, &long[..20]), [2]);
        assert_eq!(found(&strings, ""), [2]);
        assert!(found(&[], "x").is_empty());
    }

    #[test]
    fn every_byte_can_branch() {
        let strings: Vec<[u8; 2]> = (0..=255).map(|byte| [byte, 7]).collect();
        let trie = Trie::new(strings.iter().zip(0..).map(|(s, n)| (s.as_slice(), n)).collect());
        for byte in 0..=255 {
            let mut found = Vec::new();
            trie.walk(&[byte, 7, 9], |number| found.push(number));
            assert_eq!(found, [u32::from(byte)]);
            trie.walk(&[byte, 8], |_| panic!("{byte} 8 is none of them"));
        }
    }

    #[test]
    fn a_node_is_one_cache_line() {
        assert_eq!(size_of::<TrieNode>(), 64);
    }
}
