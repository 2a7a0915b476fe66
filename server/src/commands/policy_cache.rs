//! Parsed policies by their tokens: a client sends the same few tokens again and again.
//!
//! Not here: the syntax of a token (`protocol`).

use protocol::Policy;

/// The cache has this many sets of this many ways each.
const SETS: usize = 32;
const WAYS: usize = 4;

/// The place of a cached policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PolicyId {
    set: usize,
    way: usize,
}

/// Policies by their tokens, in a set-associative cache.
///
/// A new token replaces the last way of its set, and each later hit swaps it with the way before
/// it. Clients that never send the same policy twice therefore compete for the last ways, and
/// policies that are used repeatedly stay in the ways before.
#[derive(Debug)]
pub(crate) struct PolicyCache {
    sets: Box<[[CachedPolicy; WAYS]; SETS]>,
}

/// A token and its policy; `None` while the way is empty.
type CachedPolicy = (Vec<u8>, Option<Policy>);

impl Default for PolicyCache {
    fn default() -> Self {
        let set = |_| std::array::from_fn(|_| (Vec::new(), None));
        Self { sets: Box::new(std::array::from_fn(set)) }
    }
}

fn holds((kept, policy): &CachedPolicy, token: &[u8]) -> bool {
    kept == token && policy.is_some()
}

/// Returns the set of a token: a hash of its length, its first and its last bytes, where tokens
/// differ most.
fn set_of(token: &[u8]) -> usize {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let front = word(token.first_chunk::<8>());
    let end = word(token.last_chunk::<8>());
    let mixed =
        (front ^ end.rotate_left(29) ^ token.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - SETS.trailing_zeros())) as usize
}

impl PolicyCache {
    /// Parses a token. The returned id is valid until the next call.
    ///
    /// # Errors
    ///
    /// The reason, for the client, why the token is not a policy.
    #[inline]
    pub(crate) fn parse(&mut self, token: &[u8]) -> Result<PolicyId, String> {
        let set = set_of(token);
        if holds(&self.sets[set][0], token) {
            return Ok(PolicyId { set, way: 0 });
        }
        self.parse_miss(set, token)
    }

    #[cold]
    fn parse_miss(&mut self, set: usize, token: &[u8]) -> Result<PolicyId, String> {
        let ways = &mut self.sets[set];
        if let Some(way) = (1..WAYS).find(|way| holds(&ways[*way], token)) {
            ways.swap(way, way - 1);
            return Ok(PolicyId { set, way: way - 1 });
        }
        let parsed = Policy::parse(token).map_err(|error| error.to_string())?;
        let (kept, policy) = &mut ways[WAYS - 1];
        kept.clear();
        kept.extend_from_slice(token);
        *policy = Some(parsed);
        Ok(PolicyId { set, way: WAYS - 1 })
    }

    /// Returns the policy of the token that was parsed last.
    #[inline]
    pub(crate) fn policy(&self, PolicyId { set, way }: PolicyId) -> &Policy {
        self.sets[set][way].1.as_ref().expect("a token was read to this place")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_written_again_stays_in_a_flood_of_others() {
        let mut written = PolicyCache::default();
        let own: [&[u8]; 3] = [b"bucket:5/60s", b"fixed:100/1m", b"sliding:9/1h"];
        // Parse each own token several times between the others.
        for number in 0..40 {
            for token in own {
                written.parse(token).expect("a good policy");
            }
            written.parse(format!("log:{}/1h", 1 + number).as_bytes()).expect("a good policy");
        }
        for number in 0..100_000 {
            let token = format!("bucket:{}/60s", 1000 + number);
            written.parse(token.as_bytes()).expect("a good policy");
        }
        for token in own {
            let ways = &written.sets[set_of(token)];
            assert!(ways.iter().any(|kept| holds(kept, token)), "{token:?}");
        }
    }

    #[test]
    fn a_cached_policy_equals_the_parsed_one() {
        let mut written = PolicyCache::default();
        for _ in 0..2 {
            for count in 1..500 {
                for algorithm in ["bucket", "sliding", "log"] {
                    let token = format!("{algorithm}:{count}/60s");
                    let expected = Policy::parse(token.as_bytes()).expect("a good policy");
                    let at = written.parse(token.as_bytes()).expect("a good policy");
                    assert_eq!(*written.policy(at), expected);
                }
            }
            assert!(written.parse(b"bucket:0").is_err());
            assert!(written.parse(b"").is_err());
        }
    }
}
