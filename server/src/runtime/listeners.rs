//! Binding the addresses that clients and nodes connect to.
//!
//! Not here: accepting (`io::listener`, `transport::acceptor`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};

use crate::config::ListenAddr;
use crate::net::BoundListener;

/// An address or path cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {place}: {source}")]
pub struct BindError {
    /// The address or path.
    pub(crate) place: String,
    /// The system's error.
    pub(crate) source: io::Error,
}

/// Binds TCP addresses. Of a name with several addresses one is enough.
///
/// # Errors
///
/// The first address that cannot be bound.
pub(crate) fn bind_each(
    addresses: &[ListenAddr],
    backlog: u32,
) -> Result<Vec<BoundListener>, BindError> {
    let mut listeners = Vec::new();
    for listen in addresses {
        let place = format!("{}:{}", listen.host, listen.port);
        let error_of = |source| BindError { place: place.clone(), source };
        let addresses: Vec<SocketAddr> = if listen.host == ListenAddr::ANY {
            vec![
                (Ipv4Addr::UNSPECIFIED, listen.port).into(),
                (Ipv6Addr::UNSPECIFIED, listen.port).into(),
            ]
        } else {
            let host = listen.host.trim_start_matches('[').trim_end_matches(']');
            (host, listen.port).to_socket_addrs().map_err(error_of)?.collect()
        };
        let mut failure = None;
        let before = listeners.len();
        for address in addresses {
            match BoundListener::tcp(address, backlog) {
                Ok(listener) => listeners.push(listener),
                Err(error) => failure = Some(error),
            }
        }
        // Of a name with several addresses one is enough: hosts without IPv6 have names with it.
        if let (true, Some(error)) = (listeners.len() == before, failure) {
            return Err(error_of(error));
        }
    }
    Ok(listeners)
}
