//! The sender of a request: name, role, and the names and keys to which its token is narrowed.
//!
//! Not here: finding the sender (`access`), the role that a route requires (`api`, `ui`), the
//! limits and keys within those prefixes (`scope`).

use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr};

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;

use crate::host::{Actor, Via};
use crate::problem::Problem;
use crate::tokens::{TokenLine, TokenRole};

/// The address of a request's sender. The listener puts it into the extensions of each request; a
/// request that came another way has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClientAddress(pub(crate) Option<IpAddr>);

impl ClientAddress {
    /// Creates the address of a connection; an IPv4 address that is mapped into IPv6 is IPv4.
    pub(crate) fn new(address: IpAddr) -> Self {
        Self(Some(address.to_canonical()))
    }

    /// Returns the network that one sender is counted under: IPv6 hands out 64 bits to each.
    pub(crate) fn network(self) -> IpAddr {
        match self.0 {
            None => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            Some(IpAddr::V4(address)) => address.into(),
            Some(IpAddr::V6(address)) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for ClientAddress {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// The sender of a request and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the token; `-` without a tokens file.
    pub(crate) name: String,
    /// The role.
    pub(crate) role: TokenRole,
    /// Only limits whose names begin so may be changed.
    pub(crate) names: String,
    /// Only keys that begin so may be changed.
    pub(crate) keys: String,
    /// The address of the sender.
    pub(crate) address: ClientAddress,
    /// Whether the request came with a session of the UI rather than with a token.
    pub(crate) has_session: bool,
}

impl Caller {
    /// The sender where there are no tokens: everyone is an admin.
    pub(crate) fn anyone(address: ClientAddress) -> Self {
        Self {
            name: "-".to_owned(),
            role: TokenRole::Admin,
            names: String::new(),
            keys: String::new(),
            address,
            has_session: false,
        }
    }

    /// The sender with this line of the tokens file.
    pub(crate) fn of(line: &TokenLine, address: ClientAddress, has_session: bool) -> Self {
        Self {
            name: line.name.clone(),
            role: line.role,
            names: line.names.clone(),
            keys: line.keys.clone(),
            address,
            has_session,
        }
    }

    /// Refuses a caller whose role is below `role`.
    pub(crate) fn require(&self, role: TokenRole) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        let detail = format!(
            "this needs the role {role}, and {} has the role {}: ask an admin for a token",
            self.name, self.role
        );
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
    }

    /// Returns the sender of a change that comes over `via`.
    pub(crate) fn actor(&self, via: Via) -> Actor {
        Actor {
            name: self.name.clone(),
            via,
            address: self.address.0,
            is_admin: self.role == TokenRole::Admin,
        }
    }
}
