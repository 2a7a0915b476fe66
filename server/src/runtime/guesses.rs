//! The limit on guessing passwords: the rate at which an address may try them.
//!
//! Here: each address has [`BURST`] tries at once, and one more every [`INTERVAL_MS`]; a correct
//! password returns its try. A further try is not checked until it is due. So reconnecting gains
//! nothing; and because a correct password is delayed too, a delay reveals nothing. Addresses do
//! not wait for each other. Not here: checking a password (`auth`), delaying the connection
//! (`connection`).

use std::net::IpAddr;

use engine::KeyHasher;
use parking_lot::Mutex;

/// Number of tries that an address has at once.
const BURST: u64 = 10;
/// Milliseconds from one further try to the next.
const INTERVAL_MS: u64 = 500;
/// Number of wrong passwords after which a connection is closed.
pub(crate) const FAILURES_MAX: u32 = 10;

/// Number of sets over which addresses are spread, each with [`WAYS`] places.
const SETS: usize = 1024;
/// Number of addresses in a set. In a full set the address with the earliest
/// `full_ms` is replaced.
const WAYS: usize = 4;

/// The tries of one address: GCRA on one instant.
#[derive(Debug, Clone, Copy, Default)]
struct Tries {
    /// The hash of the address.
    address: u64,
    /// Time at which all tries are available again; 0 for an empty place.
    full_ms: u64,
}

/// The addresses that have tried passwords recently. Its size is fixed.
pub(crate) struct Guesses {
    hasher: KeyHasher,
    sets: Mutex<Box<[[Tries; WAYS]]>>,
}

impl Guesses {
    /// A value without addresses. `seeds` prevent a client from choosing addresses that share a
    /// set.
    pub(crate) fn new(seeds: [u64; 4]) -> Self {
        let hasher = KeyHasher::new(seeds);
        Self { hasher, sets: Mutex::new(vec![[Tries::default(); WAYS]; SETS].into()) }
    }

    /// Takes one try of `address`.
    ///
    /// # Errors
    ///
    /// If no try is available, the time in milliseconds at which one is.
    pub(crate) fn take(&self, address: Option<IpAddr>, now_ms: u64) -> Result<(), u64> {
        let address = self.hash(address);
        let mut sets = self.sets.lock();
        let tries = find(&mut sets, address);
        let full_ms = tries.full_ms.max(now_ms) + INTERVAL_MS;
        let may_from_ms = full_ms.saturating_sub(BURST * INTERVAL_MS);
        if now_ms < may_from_ms {
            return Err(may_from_ms);
        }
        tries.full_ms = full_ms;
        Ok(())
    }

    /// Returns a try, after a correct password.
    pub(crate) fn give_back(&self, address: Option<IpAddr>) {
        let address = self.hash(address);
        let mut sets = self.sets.lock();
        let tries = find(&mut sets, address);
        tries.full_ms = tries.full_ms.saturating_sub(INTERVAL_MS);
    }

    /// The hash of an address. Of an IPv6 address, the hash of its /64 network, which one host may
    /// have to itself. All clients of Unix sockets share one hash.
    fn hash(&self, address: Option<IpAddr>) -> u64 {
        match address {
            None => self.hasher.hash(b""),
            Some(IpAddr::V4(address)) => self.hasher.hash(&address.octets()),
            Some(IpAddr::V6(address)) => self.hasher.hash(&address.octets()[..8]),
        }
    }
}

/// Returns the tries of an address. If the address is new, it replaces another one of its set.
fn find(sets: &mut [[Tries; WAYS]], address: u64) -> &mut Tries {
    let set = &mut sets[address as usize % SETS];
    let known = set.iter().position(|tries| tries.address == address);
    let place = known.unwrap_or_else(|| {
        let places = 0..WAYS;
        let place = places.min_by_key(|place| set[*place].full_ms).unwrap_or(0);
        set[place] = Tries { address, full_ms: 0 };
        place
    });
    &mut set[place]
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "clients of a socket file have no address")]
    fn v4(number: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::from_bits(number).into())
    }

    #[test]
    fn an_address_has_a_burst_and_then_two_a_second() {
        let guesses = Guesses::new([1, 2, 3, 4]);
        for _ in 0..BURST {
            assert_eq!(guesses.take(v4(1), 10_000), Ok(()));
        }
        assert_eq!(guesses.take(v4(1), 10_000), Err(10_500));
        assert_eq!(guesses.take(v4(1), 10_499), Err(10_500));
        assert_eq!(guesses.take(v4(2), 10_000), Ok(()), "another does not wait");
        assert_eq!(guesses.take(None, 10_000), Ok(()));
        assert_eq!(guesses.take(v4(1), 10_500), Ok(()));
        assert_eq!(guesses.take(v4(1), 10_500), Err(11_000));
        // At any rate of tries for an hour, two per second are allowed.
        let tried = (10_501..3_610_501).filter(|now_ms| guesses.take(v4(1), *now_ms).is_ok());
        assert_eq!(tried.count(), 7_200);
    }

    #[test]
    fn a_right_password_costs_nothing() {
        let guesses = Guesses::new([1, 2, 3, 4]);
        for _ in 0..1_000 {
            assert_eq!(guesses.take(v4(1), 5), Ok(()));
            guesses.give_back(v4(1));
        }
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let guesses = Guesses::new([1, 2, 3, 4]);
        let address =
            |network: u128, host: u128| Some(Ipv6Addr::from_bits((network << 64) | host).into());
        for host in 0..u128::from(BURST) {
            assert_eq!(guesses.take(address(7, host), 0), Ok(()));
        }
        assert!(guesses.take(address(7, 99), 0).is_err());
        assert_eq!(guesses.take(address(8, 99), 0), Ok(()));
    }

    #[test]
    fn a_flood_of_addresses_locks_nobody_out() {
        let guesses = Guesses::new([1, 2, 3, 4]);
        for number in 0..200_000 {
            for _ in 0..=BURST {
                let _ = guesses.take(v4(number), 0);
            }
        }
        assert_eq!(guesses.take(v4(1_000_000), 0), Ok(()));
        assert_eq!(guesses.take(None, 0), Ok(()));
    }
}
