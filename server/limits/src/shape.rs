//! Comparison of two patterns when a file is checked: whether some key matches both, and whether
//! one matches every key of the other.
//!
//! Here: shapes. A shape is a pattern as a sequence of byte sets. It may accept more texts than its
//! pattern (an address becomes any sequence of its bytes), never fewer. Not here: matching keys
//! (`pattern`).

use hashbrown::HashSet;

use super::capture::CaptureClass;
use super::pattern::{Glob, Pattern};

/// Maximum number of states that `covers` visits. Beyond it the answer is no, and no limit is
/// called unreachable.
const COVERS_STEPS_MAX: usize = 4096;

/// A set of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    pub(super) fn of(has: impl Fn(u8) -> bool) -> Self {
        let mut set = [0; 4];
        for byte in (0..=255).filter(|byte| has(*byte)) {
            set[usize::from(byte >> 6)] |= 1 << (byte & 63);
        }
        Self(set)
    }

    fn byte(byte: u8) -> Self {
        let mut set = [0; 4];
        set[usize::from(byte >> 6)] = 1 << (byte & 63);
        Self(set)
    }

    pub(super) fn has(self, byte: u8) -> bool {
        self.0[usize::from(byte >> 6)] & (1 << (byte & 63)) != 0
    }

    fn meets(self, other: Self) -> bool {
        self.0.iter().zip(other.0).any(|(one, other)| one & other != 0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Element {
    bytes: Bytes,
    /// Zero or more bytes of the set; otherwise exactly one.
    many: bool,
}

/// A sequence of byte sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Shape {
    elements: Vec<Element>,
    /// Whether the shape accepts more texts than its pattern.
    loose: bool,
}

impl Shape {
    pub(super) fn one(&mut self, bytes: Bytes) {
        self.elements.push(Element { bytes, many: false });
    }

    pub(super) fn many(&mut self, bytes: Bytes) {
        self.elements.push(Element { bytes, many: true });
    }

    pub(super) fn text(&mut self, text: &[u8]) {
        for byte in text {
            self.one(Bytes::byte(*byte));
        }
    }

    pub(super) fn class(&mut self, class: CaptureClass) {
        let bytes = Bytes::of(|byte| class.has(byte));
        self.one(bytes);
        self.many(bytes);
        self.loose |= class.is_address();
    }

    pub(super) fn of(pattern: &Pattern) -> Self {
        match pattern {
            Pattern::Glob(glob) => Self::of_glob(glob),
            Pattern::Regex(regex) => {
                let mut shape = Self { loose: true, ..Self::default() };
                shape.text(regex.prefix());
                shape.many(Bytes::of(|_| true));
                shape
            }
        }
    }

    pub(super) fn of_glob(glob: &Glob) -> Self {
        let mut shape = Self::default();
        let chunk = |shape: &mut Self, bytes: &[Option<u8>]| {
            for own in bytes {
                shape.one(own.map_or_else(|| Bytes::of(|_| true), Bytes::byte));
            }
        };
        chunk(&mut shape, &glob.first.bytes);
        for step in &glob.steps {
            if step.least == 0 {
                shape.many(Bytes::of(|_| true));
            } else {
                shape.class(step.class);
            }
            chunk(&mut shape, &step.then.bytes);
        }
        shape
    }

    /// Whether some text may belong to both shapes.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let (one, other) = (&self.elements, &other.elements);
        let width = other.len() + 1;
        let mut seen = vec![false; (one.len() + 1) * width];
        let mut waiting = vec![(0, 0)];
        while let Some((i, j)) = waiting.pop() {
            if std::mem::replace(&mut seen[i * width + j], true) {
                continue;
            }
            if i == one.len() && j == other.len() {
                return true;
            }
            let (a, b) = (one.get(i), other.get(j));
            if a.is_some_and(|a| a.many) {
                waiting.push((i + 1, j));
            }
            if b.is_some_and(|b| b.many) {
                waiting.push((i, j + 1));
            }
            if let (Some(a), Some(b)) = (a, b)
                && a.bytes.meets(b.bytes)
            {
                waiting.push((i + usize::from(!a.many), j + usize::from(!b.many)));
            }
        }
        false
    }

    /// Whether every text of `other` belongs to this shape. When in doubt, no.
    pub(super) fn covers(&self, other: &Self) -> bool {
        if self.loose {
            return self == other;
        }
        let letters = self.letters(other);
        let mut seen = HashSet::new();
        let mut waiting = vec![(0, self.close([0].into()))];
        while let Some((at, own)) = waiting.pop() {
            if seen.len() > COVERS_STEPS_MAX {
                return false;
            }
            if !seen.insert((at, own.clone())) {
                continue;
            }
            let Some(element) = other.elements.get(at) else {
                if own.last() != Some(&self.elements.len()) {
                    return false;
                }
                continue;
            };
            for letter in letters.iter().filter(|letter| element.bytes.has(**letter)) {
                let next = at + usize::from(!element.many);
                waiting.push((next, self.step(&own, *letter)));
            }
            if element.many {
                waiting.push((at + 1, own));
            }
        }
        true
    }

    /// One representative of each class of bytes that both shapes treat alike.
    fn letters(&self, other: &Self) -> Vec<u8> {
        let sets: HashSet<Bytes> =
            self.elements.iter().chain(&other.elements).map(|element| element.bytes).collect();
        let mut kinds = HashSet::new();
        let kind = |byte: u8| sets.iter().map(|set| set.has(byte)).collect::<Vec<bool>>();
        (0..=255).filter(|byte| kinds.insert(kind(*byte))).collect()
    }

    /// The places reached from `places` by one byte, ascending.
    fn step(&self, places: &[usize], byte: u8) -> Vec<usize> {
        let stepped = places.iter().filter_map(|place| {
            let element = self.elements.get(*place)?;
            element.bytes.has(byte).then_some(place + usize::from(!element.many))
        });
        self.close(stepped.collect())
    }

    /// Adds the places reached without a byte.
    fn close(&self, places: Vec<usize>) -> Vec<usize> {
        let mut all = Vec::with_capacity(places.len());
        for mut place in places {
            loop {
                if !all.contains(&place) {
                    all.push(place);
                }
                if self.elements.get(place).is_none_or(|element| !element.many) {
                    break;
                }
                place += 1;
            }
        }
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        Shape::of_glob(&Glob::parse(text).expect(text).0)
    }

    #[test]
    fn what_covers_what() {
        for (one, other, covers, meets) in [
            ("*", "a:{x}", true, true),
            ("a:{x}", "a:{y}", true, true),
            ("a:{x}", "a:*", false, true),
            ("a:*", "a:{x}", true, true),
            ("a:{x}", "a:{x}:b", true, true),
            ("a:{x}:b", "a:{x}", false, true),
            ("a:{x}", "b:{x}", false, false),
            ("a:{x}", "a:{x:digits}", true, true),
            ("a:{x:digits}", "a:{x:hex}", false, true),
            ("a:{x:hex}", "a:{x:digits}", true, true),
            ("a:{x:digits}", "a:{x:alnum}b", false, false),
            ("a:{x:ip}", "a:{y:ip}", true, true),
            ("a:{x:ip}", "a:1.2.3.4", false, true),
            ("a?", "ab", true, true),
            ("a?", "abc", false, false),
            ("*:{x}:*", "a:b:c:d", true, true),
            ("*b*", "{x}bc", true, true),
        ] {
            assert_eq!(shape(one).covers(&shape(other)), covers, "{one} covers {other}");
            assert_eq!(shape(one).meets(&shape(other)), meets, "{one} meets {other}");
        }
    }
}
