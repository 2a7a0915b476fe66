//! Addresses of nodes: `host:port`, and seeds, which may be names that are resolved repeatedly.
//!
//! Here: parsing and printing. Not here: addresses to listen on (`config::listen`), resolving
//! names.

use std::fmt;
use std::net::IpAddr;

use super::super::listen::{ListenAddr, host_and_port};
use super::ClusterConfig;

/// An address to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address without brackets.
    pub host: String,
    /// TCP port; 0 if it is not known until it is bound.
    pub port: u16,
}

impl HostPort {
    /// Returns this address, with `port` if it has port 0.
    #[must_use]
    pub fn with_port_if_none(&self, port: u16) -> Self {
        let port = if self.port == 0 { port } else { self.port };
        Self { host: self.host.clone(), port }
    }
}

/// `host:port` or `[v6]:port`.
impl fmt::Display for HostPort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

/// A possible address of another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seed {
    /// One address.
    Place(HostPort),
    /// `dns:`: every address of the name, which is resolved again from time to time.
    Name(HostPort),
}

impl Seed {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, address) = match text.strip_prefix("dns:") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let (host, port) = reachable(address)?;
        let port = port.unwrap_or(ClusterConfig::PEER_PORT);
        if port == 0 {
            return Err(format!("\"{text}\": nobody can be reached at port 0"));
        }
        let place = HostPort { host, port };
        Ok(if name { Self::Name(place) } else { Self::Place(place) })
    }
}

/// Prints the form that `--join` and `--seeds` take.
impl fmt::Display for Seed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(place) => place.fmt(out),
            Self::Name(name) => write!(out, "dns:{name}"),
        }
    }
}

/// The seeds of one flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeedList(pub(super) Vec<Seed>);

impl SeedList {
    /// Parses a comma-separated list; empty parts are skipped.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let seeds: Vec<_> = parts.map(Seed::parse).collect::<Result<_, _>>()?;
        if seeds.is_empty() { Err("expected an address".to_owned()) } else { Ok(Self(seeds)) }
    }
}

/// An advertised address: a host, perhaps with a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AdvertisedAddr {
    pub(super) host: String,
    pub(super) port: Option<u16>,
}

impl AdvertisedAddr {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = reachable(text.trim())?;
        Ok(Self { host, port })
    }
}

/// Parses a host that can be connected to, and its port. Refuses wildcard addresses.
fn reachable(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = host_and_port(text)?;
    if is_every_interface(host) {
        return Err(format!("\"{host}\" is every interface here, and no place to others"));
    }
    Ok((host.to_owned(), port))
}

/// Whether `host` is a wildcard address, which other nodes cannot connect to.
pub(super) fn is_every_interface(host: &str) -> bool {
    host == ListenAddr::ANY || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

/// Whether `host` is reachable from this machine only. A name may resolve to anything, except
/// `localhost`.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}
