//! The settings of the admin listener.
//!
//! Here: the settings, checked and resolved. Not here: binding and serving it (`admin`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use super::listen::host_and_port;
use super::raw::RawConfig;
use super::{Config, ConfigError, ListenAddr, ProgramName};

/// Bytes of the flight recorder's events by default.
const RECORDER_BYTES: usize = 8 << 20;

/// The admin listener's settings; fixed at startup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// The address (`--http`). Port 0: any free port.
    pub address: SocketAddr,
    /// Whether the operator named the address; otherwise the server runs without the listener if
    /// the address is taken.
    pub is_named: bool,
    /// The certificate of the listener (`--http-tls` with `-o ssl_chain_cert,ssl_key`).
    pub tls: Option<HttpTls>,
    /// Names accepted in `Host` besides `localhost` and addresses (`--http-host`).
    pub hosts: Vec<String>,
    /// File of tokens (`--tokens`).
    pub tokens: Option<PathBuf>,
    /// Whether everyone off loopback may use the listener without a token (`--http-insecure`).
    pub insecure: bool,
    /// Bytes of the flight recorder's events (`--recorder`); 0: nothing is recorded.
    pub recorder_bytes: usize,
}

/// The files of the listener's certificate, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpTls {
    /// The certificate and its chain (`-o ssl_chain_cert`).
    pub certificates: PathBuf,
    /// The private key (`-o ssl_key`).
    pub key: PathBuf,
}

/// The value of `--http`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HttpAddr {
    /// No listener.
    Off,
    /// An address; the port may be left out.
    At(IpAddr, Option<u16>),
}

impl HttpAddr {
    /// Parses `off`, `address` or `address:port`. Names are not accepted, besides `localhost`: an
    /// address tells whether other machines reach it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(Self::Off);
        }
        let (host, port) = host_and_port(text)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let address = match host {
            "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host if host == ListenAddr::ANY => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            host => host.parse(),
        };
        match address {
            Ok(address) => Ok(Self::At(address, port)),
            Err(_) => Err(format!("expected off or an IP address, not {host}")),
        }
    }
}

impl HttpConfig {
    /// Distance from the client port to the default port of the admin listener. Peers have another
    /// one, so nodes on neighbouring ports of one host do not collide.
    pub const PORT_ABOVE: u16 = 20_000;
}

impl RawConfig {
    /// The admin listener; `None` if it is off. `listen` are the client addresses.
    pub(super) fn http(
        &self,
        name: ProgramName,
        listen: &[ListenAddr],
        certificate: (Option<PathBuf>, Option<PathBuf>),
    ) -> Result<Option<HttpConfig>, ConfigError> {
        let refuse = |text: String| Err(ConfigError::Usage(text));
        let (address, is_named) = self.http_address(name, listen)?;
        let tls = self.http_certificate(certificate)?;
        let insecure = self.http_insecure.unwrap_or(false);
        let Some(address) = address else {
            if tls.is_some() || self.tokens.is_some() || insecure || !self.http_host.is_empty() {
                return refuse(
                    "--http-tls, --http-host, --http-insecure and --tokens need the admin \
                     listener, which is off: add --http ADDR"
                        .to_owned(),
                );
            }
            if self.recorder.is_some_and(|bytes| bytes > 0) {
                return refuse(
                    "--recorder needs the admin listener, which is off: add --http ADDR".to_owned(),
                );
            }
            return Ok(None);
        };
        if !address.ip().is_loopback() && self.tokens.is_none() && !insecure {
            return refuse(format!(
                "--http {address}: other machines reach this address; add --tokens FILE, or \
                 --http-insecure to make everyone an admin"
            ));
        }
        Ok(Some(HttpConfig {
            address,
            is_named,
            tls,
            hosts: self.http_host.clone(),
            tokens: self.tokens.clone(),
            insecure,
            recorder_bytes: self.recorder.unwrap_or(RECORDER_BYTES),
        }))
    }

    /// The address, and whether the operator named it; `None` if the listener is off.
    fn http_address(
        &self,
        name: ProgramName,
        listen: &[ListenAddr],
    ) -> Result<(Option<SocketAddr>, bool), ConfigError> {
        let client_port = listen.first().map_or(0, |address| address.port);
        let default_port = match client_port {
            0 => None,
            port => port.checked_add(HttpConfig::PORT_ABOVE),
        };
        Ok(match (&self.http, default_port) {
            (Some(HttpAddr::At(address, Some(port))), _) => {
                (Some(SocketAddr::new(*address, *port)), true)
            }
            (Some(HttpAddr::At(address, None)), Some(port)) => {
                (Some(SocketAddr::new(*address, port)), true)
            }
            (Some(HttpAddr::At(address, None)), None) => {
                return Err(ConfigError::Usage(format!(
                    "--http {address}: there is no client port to count from; add a port"
                )));
            }
            (None, Some(port)) if name != ProgramName::Memcached && self.unix_socket.is_none() => {
                (Some(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)), false)
            }
            (Some(HttpAddr::Off) | None, _) => (None, false),
        })
    }

    /// The certificate, which only `--http-tls` uses.
    fn http_certificate(
        &self,
        certificate: (Option<PathBuf>, Option<PathBuf>),
    ) -> Result<Option<HttpTls>, ConfigError> {
        let refuse = |text: String| Err(ConfigError::Usage(text));
        Ok(match (self.http_tls.unwrap_or(false), certificate) {
            (true, (Some(certificates), Some(key))) => Some(HttpTls { certificates, key }),
            (true, _) => {
                return refuse(
                    "--http-tls needs a certificate: add -o ssl_chain_cert=FILE,ssl_key=FILE"
                        .to_owned(),
                );
            }
            (false, (None, None)) => None,
            (false, _) => {
                return refuse(
                    "ssl_chain_cert, ssl_key: TLS for clients is not built yet; with --http-tls \
                     they are the certificate of the admin listener"
                        .to_owned(),
                );
            }
        })
    }
}

impl Config {
    /// The files of the admin listener: certificate, key and tokens.
    pub(super) fn http_paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let (tls, tokens) = match &mut self.http {
            Some(http) => (http.tls.as_mut(), http.tokens.as_mut()),
            None => (None, None),
        };
        let files = tls.map(|tls| [&mut tls.certificates, &mut tls.key]);
        files.into_iter().flatten().chain(tokens)
    }
}
