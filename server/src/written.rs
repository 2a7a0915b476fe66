//! Policies as clients write them, parsed once: a client sends the same few again and again.
//!
//! Not here: what a token says (`protocol`).

use protocol::Policy;

/// Tokens kept; two that fall on one place are parsed in turns.
const PLACES: usize = 64;

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
    /// The policy of a token.
    ///
    /// # Errors
    ///
    /// Why it is none, for the client.
    pub(crate) fn parse(&mut self, token: &[u8]) -> Result<Policy, String> {
        let (kept, policy) = &mut self.places[place_of(token)];
        if let Some(policy) = policy
            && kept == token
        {
            return Ok(*policy);
        }
        let parsed = Policy::parse(token).map_err(|error| error.to_string())?;
        kept.clear();
        kept.extend_from_slice(token);
        *policy = Some(parsed);
        Ok(parsed)
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
                    assert_eq!(written.parse(token.as_bytes()), Ok(expected));
                }
            }
            assert!(written.parse(b"bucket:0").is_err());
            assert!(written.parse(b"").is_err());
        }
    }
}
