//! Words that are nearly another one, for errors that name the word that is meant.
//!
//! Not here: the words, and the errors.

/// Most letters by which a word may differ from the one that is meant.
const DISTANCE_MAX: usize = 2;
/// The longest word that is compared with others, in bytes.
const WORD_BYTES_MAX: usize = 16;

/// Whether `word` becomes `known` by at most two changed, added or left out letters, upper and
/// lower case alike. In words of up to three letters it is one. Words of more than 16 bytes are
/// near no other one.
#[must_use]
pub fn is_near(word: &[u8], known: &[u8]) -> bool {
    if word.is_empty() || word.len() > WORD_BYTES_MAX || known.len() > WORD_BYTES_MAX {
        return false;
    }
    // The distance of the front of `word` that was read from each front of `known`.
    let mut row: [usize; WORD_BYTES_MAX + 1] = std::array::from_fn(|place| place);
    for (number, own) in word.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], number + 1);
        for (place, letter) in known.iter().enumerate() {
            let changed = before + usize::from(!own.eq_ignore_ascii_case(letter));
            before = row[place + 1];
            row[place + 1] = changed.min(before + 1).min(row[place] + 1);
        }
    }
    row[known.len()] <= DISTANCE_MAX.min(known.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The distance by its definition.
    fn distance(one: &[u8], other: &[u8]) -> usize {
        match (one.split_first(), other.split_first()) {
            (None, _) => other.len(),
            (_, None) => one.len(),
            (Some((a, one_rest)), Some((b, other_rest))) => {
                let changed = distance(one_rest, other_rest) + usize::from(a != b);
                changed.min(distance(one_rest, other) + 1).min(distance(one, other_rest) + 1)
            }
        }
    }

    #[test]
    fn near_words_differ_by_few_letters() {
        let words: [&[u8]; 9] =
            [b"log", b"lag", b"block", b"blk", b"bucket", b"buckt", b"bukcet", b"gcra", b"a"];
        for word in words {
            for known in words {
                let most = 2.min(known.len() / 2);
                assert_eq!(is_near(word, known), distance(word, known) <= most);
            }
        }
        assert!(is_near(b"Policy", b"policy") && !is_near(b"", b"a"));
        assert!(!is_near(&[b'a'; 17], &[b'a'; 16]) && !is_near(b"a", &[b'a'; 17]));
    }
}
