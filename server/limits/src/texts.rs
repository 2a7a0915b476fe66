//! Texts by number, and the search for a part of a text.
//!
//! Here: a million texts in few allocations, in huge pages. Not here: the overrides that they
//! belong to (`overrides`).

use engine::prefetch;
use memchr::memmem::Finder;

use super::huge_table::PIECE_BYTES;

/// Texts by number, with less than 4 GiB in total.
///
/// The texts are stored in pieces of [`PIECE_BYTES`]; no text is split. The place of a byte is the
/// number of its piece times [`PIECE_BYTES`], plus the offset in the piece. A text above
/// [`PIECE_BYTES`] has a longer piece, and empty pieces follow it, so that places stay unique.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Texts {
    pieces: Vec<String>,
    /// The place and the length of each text.
    spans: Vec<(u32, u32)>,
}

impl Texts {
    pub(super) fn push(&mut self, text: &str) {
        let is_full = |piece: &String| piece.len() + text.len() > PIECE_BYTES;
        if self.pieces.last().is_none_or(is_full) {
            // The first piece of a small table stays small.
            let bytes = if self.pieces.is_empty() { 0 } else { PIECE_BYTES };
            self.pieces.push(String::with_capacity(bytes));
        }
        let number = self.pieces.len() - 1;
        let piece = &mut self.pieces[number];
        let place = number * PIECE_BYTES + piece.len();
        piece.push_str(text);
        self.spans.push((place as u32, text.len() as u32));
        if text.len() > PIECE_BYTES {
            self.pieces.resize_with(number + 1 + text.len().div_ceil(PIECE_BYTES), String::new);
        }
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> Option<&str> {
        let (place, len) = *self.spans.get(number)?;
        let at = place as usize % PIECE_BYTES;
        self.pieces.get(place as usize / PIECE_BYTES)?.get(at..at + len as usize)
    }

    /// The place of a text.
    #[inline]
    pub(super) fn place(&self, number: usize) -> u32 {
        self.spans.get(number).map_or(0, |(place, _)| *place)
    }

    /// Whether the text of this number is `wanted`.
    pub(super) fn is(&self, number: u32, wanted: &[u8]) -> bool {
        self.get(number as usize).is_some_and(|text| text.as_bytes() == wanted)
    }

    /// Whether `wanted` stands at `place`.
    #[inline]
    pub(super) fn stands_at(&self, place: u32, wanted: &[u8]) -> bool {
        self.from(place).get(..wanted.len()) == Some(wanted)
    }

    /// Prefetches the text of `len` bytes at `place`.
    #[inline]
    pub(super) fn prefetch(&self, place: u32, len: usize) {
        // A short text is in one cache line or in two.
        if let Some([first, .., last]) = self.from(place).get(..len) {
            prefetch(first);
            prefetch(last);
        }
    }

    /// The bytes of a piece from a place on.
    #[inline]
    fn from(&self, place: u32) -> &[u8] {
        let (piece, at) = (place as usize / PIECE_BYTES, place as usize % PIECE_BYTES);
        self.pieces.get(piece).and_then(|piece| piece.as_bytes().get(at..)).unwrap_or_default()
    }

    /// The number of texts.
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn shrink_to_fit(&mut self) {
        if let Some(piece) = self.pieces.last_mut() {
            piece.shrink_to_fit();
        }
        self.pieces.shrink_to_fit();
        self.spans.shrink_to_fit();
    }

    /// Returns the numbers of the texts that contain `part`, in their order.
    pub(super) fn containing<'t>(&'t self, part: &'t str) -> impl Iterator<Item = usize> + 't {
        let spans = &self.spans;
        let finder = Finder::new(part.as_bytes());
        let mut number = 0;
        std::iter::from_fn(move || {
            // One search over the texts of a piece; a place between two texts does not count.
            while let Some((place, _)) = spans.get(number) {
                let Some(at) = finder.find(self.from(*place)) else {
                    let piece = *place as usize / PIECE_BYTES;
                    number = spans.partition_point(|(at, _)| *at as usize / PIECE_BYTES <= piece);
                    continue;
                };
                let at = *place as usize + at;
                let end = |(place, len): &(u32, u32)| (place + len) as usize;
                let found = spans.partition_point(|span| end(span) <= at);
                number = found + 1;
                if at + part.len() <= end(spans.get(found)?) {
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

    fn texts_of(all: &[&str]) -> Texts {
        let mut texts = Texts::default();
        for text in all {
            texts.push(text);
        }
        texts.shrink_to_fit();
        texts
    }

    #[test]
    fn parts_are_found_within_one_text() {
        let all = ["ab", "ba", "xab", "abab", "b"];
        let texts = texts_of(&all);
        let found = |part: &str| texts.containing(part).collect::<Vec<_>>();
        for part in ["ab", "bb", "ba", "a", "bx", "x", "abab", "", "bab", "c", "b"] {
            let naive = all.iter().enumerate().filter(|(_, text)| text.contains(part));
            assert_eq!(found(part), naive.map(|(at, _)| at).collect::<Vec<_>>(), "{part}");
        }
    }

    #[test]
    fn texts_of_several_pieces_are_found() {
        let most = "m".repeat(PIECE_BYTES);
        let long = format!("{}yz", "l".repeat(PIECE_BYTES * 5 / 2));
        let many: Vec<String> = (0..40_000).map(|number| format!("key {number};")).collect();
        let mut all = vec!["a", &most, "b", &long, &long, "c", &most];
        all.extend(many.iter().map(String::as_str));
        all.extend(["yz", &most]);
        let texts = texts_of(&all);
        assert_eq!(texts.len(), all.len());
        for (number, text) in all.iter().enumerate() {
            assert_eq!(texts.get(number), Some(*text));
            assert!(texts.is(number as u32, text.as_bytes()));
            assert!(texts.stands_at(texts.place(number), text.as_bytes()));
            assert!(!texts.stands_at(texts.place(number), b"key x"));
        }
        assert_eq!(texts.get(all.len()), None);
        for part in ["key 3999", "yz", "mm", "a", "c", "x"] {
            let naive = all.iter().enumerate().filter(|(_, text)| text.contains(part));
            let naive: Vec<usize> = naive.map(|(at, _)| at).collect();
            assert_eq!(texts.containing(part).collect::<Vec<_>>(), naive, "{part}");
        }
    }
}
