//! Sessions of the UI, and the count of wrong tokens. Both are bounded, and lost at a restart.
//!
//! Here: the tables. Not here: cookies and headers (`access`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// Lifetime of a session.
pub(crate) const SESSION_LIFE: Duration = Duration::from_hours(12);
/// Maximum number of sessions; one more ends the oldest.
pub(crate) const SESSIONS_MAX: usize = 1000;
/// Wrong tokens of one address in a window; then every token of it is refused.
pub(crate) const WRONG_TOKENS_MAX: u32 = 10;
/// The window in which wrong tokens are counted.
pub(crate) const WRONG_TOKENS_WINDOW: Duration = Duration::from_mins(1);
/// Maximum number of addresses whose wrong tokens are counted; one more forgets the oldest.
pub(crate) const WRONG_ADDRESSES_MAX: usize = 1024;

/// A session: the token with which it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UiSession {
    /// The SHA-256 of the token: the session ends when this token goes.
    pub(crate) token_digest: [u8; 32],
    start: Instant,
}

/// All sessions, by the SHA-256 of their ids: a lookup tells nothing by its time.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_id: HashMap<[u8; 32], UiSession>,
}

impl Sessions {
    /// Begins a session for a token and returns its id, 43 letters. `random` are random bytes.
    pub(crate) fn begin(
        &mut self,
        token_digest: [u8; 32],
        random: [u8; 32],
        now: Instant,
    ) -> String {
        self.by_id.retain(|_, session| is_within(session.start, now, SESSION_LIFE));
        if self.by_id.len() >= SESSIONS_MAX {
            let oldest = self.by_id.iter().min_by_key(|(_, session)| session.start);
            if let Some(id) = oldest.map(|(id, _)| *id) {
                self.by_id.remove(&id);
            }
        }
        let id = URL_SAFE_NO_PAD.encode(random);
        self.by_id.insert(digest(&id), UiSession { token_digest, start: now });
        id
    }

    /// Returns the session of an id, if it has not ended.
    pub(crate) fn find(&self, id: &str, now: Instant) -> Option<&UiSession> {
        self.find_digest(&digest(id), now)
    }

    /// Returns the session of an id with this SHA-256, if it has not ended.
    pub(crate) fn find_digest(&self, id: &[u8; 32], now: Instant) -> Option<&UiSession> {
        self.by_id.get(id).filter(|found| is_within(found.start, now, SESSION_LIFE))
    }

    /// Ends a session and returns it, if there was one.
    pub(crate) fn end(&mut self, id: &str) -> Option<UiSession> {
        self.by_id.remove(&digest(id))
    }
}

/// Returns the SHA-256 of an id or a token.
pub(crate) fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

fn is_within(start: Instant, now: Instant, span: Duration) -> bool {
    now.saturating_duration_since(start) < span
}

/// Wrong tokens by address, in windows that begin with the first of them.
#[derive(Debug, Default)]
pub(crate) struct WrongTokens {
    by_network: HashMap<IpAddr, (Instant, u32)>,
}

impl WrongTokens {
    /// Returns the time until tokens of this network are looked at again; `None`: they are now.
    pub(crate) fn refused_for(&self, network: IpAddr, now: Instant) -> Option<Duration> {
        let (start, count) = self.by_network.get(&network)?;
        let left = WRONG_TOKENS_WINDOW.checked_sub(now.saturating_duration_since(*start))?;
        (*count >= WRONG_TOKENS_MAX && !left.is_zero()).then_some(left)
    }

    /// Counts a wrong token.
    pub(crate) fn count(&mut self, network: IpAddr, now: Instant) {
        if let Some((start, count)) = self.by_network.get_mut(&network)
            && is_within(*start, now, WRONG_TOKENS_WINDOW)
        {
            *count = count.saturating_add(1);
            return;
        }
        if self.by_network.len() >= WRONG_ADDRESSES_MAX {
            self.by_network.retain(|_, (start, _)| is_within(*start, now, WRONG_TOKENS_WINDOW));
        }
        if self.by_network.len() >= WRONG_ADDRESSES_MAX {
            let oldest = self.by_network.iter().min_by_key(|(_, (start, _))| *start);
            if let Some(oldest) = oldest.map(|(network, _)| *network) {
                self.by_network.remove(&oldest);
            }
        }
        self.by_network.insert(network, (now, 1));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn bytes(number: u32) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    #[test]
    fn a_session_ends_after_its_life_or_by_request() {
        let (mut sessions, start) = (Sessions::default(), Instant::now());
        let id = sessions.begin([1; 32], bytes(1), start);
        assert_eq!(id.len(), 43);
        let last = start + SESSION_LIFE.saturating_sub(Duration::from_nanos(1));
        assert_eq!(sessions.find(&id, last).map(|found| found.token_digest), Some([1; 32]));
        assert_eq!(sessions.find(&id, start + SESSION_LIFE), None);
        assert_eq!(sessions.find("", start), None);
        assert!(sessions.end(&id).is_some() && sessions.find(&id, start).is_none());
    }

    #[test]
    fn one_session_too_many_ends_the_oldest() {
        let (mut sessions, start) = (Sessions::default(), Instant::now());
        let max = u32::try_from(SESSIONS_MAX).expect("a small bound");
        let ids: Vec<String> = (0..=max)
            .map(|n| sessions.begin([0; 32], bytes(n), start + Duration::from_millis(n.into())))
            .collect();
        assert_eq!(sessions.by_id.len(), SESSIONS_MAX);
        assert!(sessions.find(&ids[0], start).is_none() && sessions.find(&ids[1], start).is_some());
        sessions.begin([0; 32], bytes(max + 1), start + 2 * SESSION_LIFE);
        assert_eq!(sessions.by_id.len(), 1);
    }

    #[test]
    fn ten_wrong_tokens_a_minute_are_looked_at() {
        let (mut wrong, start) = (WrongTokens::default(), Instant::now());
        let (one, other) = (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into());
        for _ in 0..WRONG_TOKENS_MAX {
            assert_eq!(wrong.refused_for(one, start), None);
            wrong.count(one, start);
        }
        assert_eq!(wrong.refused_for(one, start), Some(WRONG_TOKENS_WINDOW));
        assert_eq!(wrong.refused_for(other, start), None);
        let later = start + WRONG_TOKENS_WINDOW;
        assert_eq!(wrong.refused_for(one, later), None);
        wrong.count(one, later);
        assert_eq!(wrong.refused_for(one, later), None);
    }

    #[test]
    fn the_addresses_of_wrong_tokens_are_bounded() {
        let (mut wrong, start) = (WrongTokens::default(), Instant::now());
        let max = u32::try_from(WRONG_ADDRESSES_MAX).expect("a small bound");
        for n in 0..2 * max {
            wrong.count(Ipv4Addr::from_bits(n).into(), start + Duration::from_micros(n.into()));
        }
        assert_eq!(wrong.by_network.len(), WRONG_ADDRESSES_MAX);
        assert!(!wrong.by_network.contains_key(&IpAddr::V4(Ipv4Addr::from_bits(0))));
    }
}
