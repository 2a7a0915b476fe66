//! Where nodes are: `host:port`, and seeds, which may be names to resolve again.
//!
//! Here: how they are written and printed. Not here: where to listen (`config::listen`), resolving
//! names.

use std::fmt;
use std::net::IpAddr;

use super::super::listen::{ListenAddr, host_and_port};
use super::ClusterConfig;

/// A place that can be connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name or an address without brackets.
    pub host: String,
    /// TCP port; 0 where it is not known before it is bound.
    pub port: u16,
}

impl HostPort {
    /// This place; where it has no port, with `port`.
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

/// Where another node may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seed {
    /// One place.
    Place(HostPort),
    /// `dns:`: each address of the name, looked up anew from time to time.
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

/// As `--join` and `--seeds` take it.
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
    /// Reads a list separated by commas; empty places are skipped.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let seeds: Vec<_> = parts.map(Seed::parse).collect::<Result<_, _>>()?;
        if seeds.is_empty() { Err("expected an address".to_owned()) } else { Ok(Self(seeds)) }
    }
}

/// An address that others are told: a host, perhaps a port.
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

/// A host that can be connected to, and its port.
fn reachable(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = host_and_port(text)?;
    if is_every_interface(host) {
        return Err(format!("\"{host}\" is every interface here, and no place to others"));
    }
    Ok((host.to_owned(), port))
}

/// The host listens everywhere, so that it says nothing about where others find us.
pub(super) fn is_every_interface(host: &str) -> bool {
    host == ListenAddr::ANY || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}

/// Nobody on another machine gets there. A name may lead anywhere, but for `localhost`.
pub(super) fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}
