//! The limits, keys and overrides that a token may change, by its `names=` and `keys=`.
//!
//! Not here: the role that a change needs (`api`, `ui::rights`).

use std::net::IpAddr;

use axum::http::StatusCode;

use crate::caller::Caller;
use crate::host::{AdminHost, LimitView, ServiceError};
use crate::problem::Problem;

/// A change of a single key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopedKeyChange {
    /// Forgets the state of the key.
    Reset,
    /// Gives units back to the key and to its parents.
    Refund,
}

impl Caller {
    /// Refuses a limit whose name is not the caller's, and one that matches, counts or charges keys
    /// that may not be.
    pub(crate) fn may_limit(&self, limit: &LimitView) -> Result<(), Problem> {
        self.may_name(&limit.name)?;
        self.may_key(limit.literal_front.as_bytes())?;
        if !limit.counted_front.starts_with(&self.keys) {
            return Err(self.narrowed("limits whose counted keys", &self.keys));
        }
        if !limit.parent_fronts.iter().all(|front| front.starts_with(&self.keys)) {
            return Err(self.narrowed("limits whose parents", &self.keys));
        }
        Ok(())
    }

    /// Refuses the change of a key, unless the key, the name of its limit, the key that it is
    /// counted under and, of a refund, its parents are the caller's.
    pub(crate) fn may_change_key(
        &self,
        host: &dyn AdminHost,
        key: &[u8],
        change: ScopedKeyChange,
    ) -> Result<(), Problem> {
        self.may_key(key)?;
        if self.is_unrestricted() {
            return Ok(());
        }
        let found = host.match_key(key)?;
        self.may_name(found.limit.as_deref().unwrap_or_default())?;
        // A key that is shown as typed has passed above, and others may be shown as hashes.
        let is_own = |limit: &str, counted: &str| {
            counted.as_bytes() == key
                || if host.status().keys_hashed {
                    let limit = host.limit(limit);
                    limit.is_some_and(|limit| limit.counted_front.starts_with(&self.keys))
                } else {
                    counted.starts_with(&self.keys)
                }
        };
        if let (Some(limit), Some(counted)) = (&found.limit, &found.counted_key)
            && !is_own(limit, counted)
        {
            return Err(self.narrowed("keys whose counted keys", &self.keys));
        }
        let mut parents = found.parents.iter();
        let has_own = parents.all(|parent| is_own(&parent.limit, &parent.key));
        if change == ScopedKeyChange::Refund && !has_own {
            return Err(self.narrowed("keys whose parents", &self.keys));
        }
        Ok(())
    }

    /// Refuses an override unless its limit and all keys that it can hold for are the caller's.
    /// `key` is a counted key, a prefix with `*`, or a literal with a network.
    pub(crate) fn may_override(
        &self,
        host: &dyn AdminHost,
        limit: &str,
        key: &str,
    ) -> Result<(), Problem> {
        self.may_name(limit)?;
        self.may_key(key.strip_suffix('*').unwrap_or(key).as_bytes())?;
        if networks(key).all(|network| network.begins_with(&self.keys)) {
            return Ok(());
        }
        // An override holds for keys of its limit only.
        let limit = host.limit(limit);
        if limit.is_some_and(|limit| limit.counted_front.starts_with(&self.keys)) {
            return Ok(());
        }
        Err(self.narrowed("networks of which all keys", &self.keys))
    }

    fn narrowed(&self, things: &str, prefix: &str) -> Problem {
        let detail =
            format!("the token {} may only change {things} begin with {prefix}", self.name);
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// Refuses a limit, and an override of one, whose name is outside of the caller's `names=`.
    pub(crate) fn may_name(&self, name: &str) -> Result<(), Problem> {
        if name.starts_with(&self.names) {
            return Ok(());
        }
        Err(self.narrowed("limits whose names", &self.names))
    }

    /// Refuses a key, or the literal front of a pattern, that is outside of the caller's `keys=`.
    fn may_key(&self, key: &[u8]) -> Result<(), Problem> {
        if key.starts_with(self.keys.as_bytes()) {
            return Ok(());
        }
        Err(self.narrowed("keys that", &self.keys))
    }

    /// Refuses a change of another version than that of `present`, whose rights were checked: a
    /// later version may be a limit of others.
    pub(crate) fn may_version(
        &self,
        present: Option<&LimitView>,
        version: Option<u64>,
    ) -> Result<(), ServiceError> {
        let checked = present.map(|limit| limit.version);
        if self.is_unrestricted() || version == checked {
            return Ok(());
        }
        Err(checked.map_or_else(
            || ServiceError::NotFound("there is no limit of this name".to_owned()),
            ServiceError::Changed,
        ))
    }

    /// Returns whether the caller may change everything that its role may.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.names.is_empty() && self.keys.is_empty()
    }
}

/// A way to read the end of an override's key as a network.
struct KeyNetwork<'k> {
    /// The key in front of the address.
    literal: &'k str,
    address: IpAddr,
    bits: u8,
}

/// All ways to read the end of an override's key as a network: the limit decides between
/// `beef:2001:db8::/32` and the network `2001:db8::/32` behind `beef:`.
fn networks(key: &str) -> impl Iterator<Item = KeyNetwork<'_>> {
    key.char_indices().filter_map(|(at, _)| {
        let (literal, network) = key.split_at(at);
        let (address, bits) = network.split_once('/')?;
        let (address, bits) = (address.parse().ok()?, bits.parse().ok()?);
        Some(KeyNetwork { literal, address, bits })
    })
}

impl KeyNetwork<'_> {
    /// Returns whether all keys that end with an address of the network begin with `prefix`.
    fn begins_with(&self, prefix: &str) -> bool {
        if self.literal.starts_with(prefix) {
            return true;
        }
        let Some(rest) = prefix.strip_prefix(self.literal) else { return false };
        match self.address {
            IpAddr::V4(address) => {
                // The octets that all addresses have in common, each with its dot.
                let octets = address.octets().map(|octet| format!("{octet}."));
                let common = octets[..usize::from(self.bits / 8).min(4)].concat();
                common.starts_with(rest)
            }
            // One address has many texts.
            IpAddr::V6(_) => false,
        }
    }
}

#[cfg(test)]
mod tests;
