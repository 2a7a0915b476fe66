//! Policies as clients write them, parsed once: a client sends the same few again and again.
//!
//! Not here: what a token says (`protocol`).

use std::hint::cold_path;

use protocol::Policy;

/// Tokens kept; two that fall on one place are parsed in turns.
const PLACES: usize = 64;

/// Where the policy of a token is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written(usize);

/// The policies written last, by their tokens.
#[derive(Debug)]
pub(crate) struct WrittenPolicies {
    places: Box<[(Vec<u8>, Option<Policy>); PLACES]>,
}

impl Default for WrittenPolicies {
    fn default() -> Self {
        Self { places: Box::new(std::array::from_fn(|_| (Vec::new(), None))) }
    }
}

/// Where a token is kept: a mix of its length, front and end, where tokens differ most.
fn place_of(token: &[u8]) -> usize {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let front = word(token.first_chunk::<8>());
    let end = word(token.last_chunk::<8>());
    let mixed =
        (front ^ end.rotate_left(29) ^ token.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - PLACES.trailing_zeros())) as usize
}

impl WrittenPolicies {
    /// Reads a token; the answer is where its policy is kept until the next is read.
    ///
    /// # Errors
    ///
    /// Why it is none, for the client.
    #[inline]
    pub(crate) fn parse(&mut self, token: &[u8]) -> Result<Written, String> {
        let place = place_of(token);
        let (kept, policy) = &mut self.places[place];
        if policy.is_none() || kept != token {
            cold_path();
            let parsed = Policy::parse(token).map_err(|error| error.to_string())?;
            kept.clear();
            kept.extend_from_slice(token);
            *policy = Some(parsed);
        }
        Ok(Written(place))
    }

    /// The policy of the token that was read last.
    #[inline]
    pub(crate) fn policy(&self, Written(place): Written) -> &Policy {
        self.places[place].1.as_ref().expect("a token was read to this place")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_is_parsed() {
        let mut written = WrittenPolicies::default();
        for _ in 0..2 {
            for count in 1..500 {
                for algorithm in ["bucket", "sliding", "log"] {
                    let token = format!("{algorithm}:{count}/60s");
                    let expected = Policy::parse(token.as_bytes()).expect("a good policy");
                    let place = written.parse(token.as_bytes()).expect("a good policy");
                    assert_eq!(*written.policy(place), expected);
                }
            }
            assert!(written.parse(b"bucket:0").is_err());
            assert!(written.parse(b"").is_err());
        }
    }
}
