//! Texts by number, and the search for a part of a text.
//!
//! Here: a million texts in two allocations. Not here: the overrides that they belong to
//! (`overrides`).

use engine::prefetch;
use memchr::memmem::Finder;

/// Texts by number, one after the other, with less than 4 GiB in total.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Texts {
    text: String,
    /// The end of each.
    ends: Vec<u32>,
}

impl Texts {
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len() as u32);
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&str> {
        self.text.get(self.start(number) as usize..*self.ends.get(number)? as usize)
    }

    #[inline]
    pub(super) fn start(&self, number: usize) -> u32 {
        number.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Whether the text of this number is `wanted`.
    pub(super) fn is(&self, number: u32, wanted: &[u8]) -> bool {
        self.get(number as usize).is_some_and(|text| text.as_bytes() == wanted)
    }

    /// Whether `wanted` stands at `start`.
    #[inline]
    pub(super) fn stands_at(&self, start: u32, wanted: &[u8]) -> bool {
        let start = start as usize;
        self.text.as_bytes().get(start..start + wanted.len()) == Some(wanted)
    }

    /// Prefetches the text of `len` bytes at `start`.
    #[inline]
    pub(super) fn prefetch(&self, start: u32, len: usize) {
        let (bytes, start) = (self.text.as_bytes(), start as usize);
        // A short text is in one cache line or in two.
        for at in [start, (start + len).saturating_sub(1)] {
            if let Some(byte) = bytes.get(at) {
                prefetch(byte);
            }
        }
    }

    /// The number of texts.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn shrink_to_fit(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Returns the numbers of the texts that contain `part`, in their order.
    pub(super) fn containing<'t>(&'t self, part: &'t str) -> impl Iterator<Item = usize> + 't {
        let (text, ends) = (&self.text, &self.ends);
        let finder = Finder::new(part.as_bytes());
        let mut number = 0;
        std::iter::from_fn(move || {
            // One search over all texts; a place between two texts does not count.
            while number < ends.len() {
                let start = self.start(number) as usize;
                let at = start + finder.find(&text.as_bytes()[start..])?;
                let found = ends.partition_point(|end| (*end as usize) <= at);
                number = found + 1;
                if at + part.len() <= *ends.get(found)? as usize {
                    return Some(found);
                }
                // The first place reaches into the next text, so this text has none.
            }
            None
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_within_one_text() {
        let all = ["ab", "ba", "xab", "abab", "b"];
        let mut texts = Texts::default();
        for text in all {
            texts.push(text);
        }
        let found = |part: &str| texts.containing(part).collect::<Vec<_>>();
        for part in ["ab", "bb", "ba", "a", "bx", "x", "abab", "", "bab", "c", "b"] {
            let naive = all.iter().enumerate().filter(|(_, text)| text.contains(part));
            assert_eq!(found(part), naive.map(|(at, _)| at).collect::<Vec<_>>(), "{part}");
        }
    }
}
