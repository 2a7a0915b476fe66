//! The authentication of peers: none, a shared key, or certificates.
//!
//! Here: the settings, the rule that links off loopback need security, TLS around a stream. Not
//! here: the proof of a shared key (`cluster::message::handshake`).
//!
//! A shared key authenticates both sides when a link begins. It neither encrypts nor authenticates
//! the frames that follow: against an attacker that can read or change packets only TLS helps.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::rustls::client::{Resumption, verify_server_name};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::{
    NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier,
};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, version};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tollgate_limits::files;

use crate::net::{DetachedStream, Stream};

/// The state of a TLS connection, without its stream.
pub(crate) type TlsConnection = rustls::Connection;

/// Minimum length of a shared key. A shorter one can be guessed from one recorded proof.
pub const KEY_BYTES_MIN: usize = 16;
/// Maximum length of a shared key.
pub const KEY_BYTES_MAX: usize = 4096;
/// Maximum size of a key file, which may include a line end.
const KEY_FILE_BYTES_MAX: u64 = 2 * KEY_BYTES_MAX as u64;

/// ALPN protocol of links, so that no other server with the same certificates accepts this node as
/// a client.
const PROTOCOL: &[u8] = b"tollgate-lane";

/// The authentication of peers.
pub enum PeerSecurity {
    /// None. Accepted off loopback only with the operator's confirmation.
    Insecure,
    /// All nodes share this key.
    Key(Vec<u8>),
    /// Both sides have certificates of the same authority.
    Tls {
        /// This node's certificate, then its chain up to an authority.
        certificates: Vec<CertificateDer<'static>>,
        /// The private key of this node's certificate.
        key: PrivateKeyDer<'static>,
        /// The accepted authorities.
        authorities: Vec<CertificateDer<'static>>,
        /// The name in every peer's certificate. `None`: the name must be the host that is dialled,
        /// and inbound peers may have any name; the authority must then be used by this cluster
        /// only.
        name: Option<String>,
    },
}

/// The reason why security settings are refused.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Neither key nor certificates, although other machines can reach a listener.
    #[error(
        "peers off loopback ({0}) must be secured by a shared key or by TLS; `insecure = true` says otherwise"
    )]
    Open(IpAddr),
    /// Security cannot be turned off while the transport runs.
    #[error("peers that are secured stay so until the next start")]
    Given,
    /// The key has the wrong length.
    #[error("a shared key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, not {0}")]
    KeyLength(usize),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file is no valid PEM file.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The path of the file.
        path: PathBuf,
        /// The defect.
        source: pem::Error,
    },
    /// A file contains no certificate.
    #[error("{}: no certificate in it", path.display())]
    Empty {
        /// The path of the file.
        path: PathBuf,
    },
    /// The name is no valid host name.
    #[error("{0:?} is no name that a certificate can bear")]
    Name(String),
    /// The certificates do not match each other.
    #[error("certificates: {0}")]
    Certificates(String),
}

/// Keys stay out of logs.
impl fmt::Debug for PeerSecurity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Insecure => "Insecure",
            Self::Key(_) => "Key(..)",
            Self::Tls { .. } => "Tls { .. }",
        })
    }
}

impl PeerSecurity {
    /// Reads a key from a file, without one line end after it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the length of the key is out of range.
    pub fn key_of(path: &Path) -> Result<Self, SecurityError> {
        let mut key = files::read(path, KEY_FILE_BYTES_MAX)
            .map_err(|source| SecurityError::Unreadable { path: path.to_owned(), source })?;
        for end in [b'\n', b'\r'] {
            key.pop_if(|last| *last == end);
        }
        check_key(&key)?;
        Ok(Self::Key(key))
    }

    /// Reads PEM files: this node's certificates, its private key, the authorities.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is not valid.
    pub fn tls_of(
        certificates: &Path,
        key: &Path,
        authorities: &Path,
        name: Option<String>,
    ) -> Result<Self, SecurityError> {
        let regular = |path: &Path| {
            let error_of = |source| SecurityError::Unreadable { path: path.to_owned(), source };
            files::must_be_regular(path).map_err(error_of)
        };
        let read = |path: &Path| {
            regular(path)?;
            let error_of = |source| SecurityError::Pem { path: path.to_owned(), source };
            let found: Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(path).map_err(error_of)?.collect();
            let found = found.map_err(error_of)?;
            if found.is_empty() {
                return Err(SecurityError::Empty { path: path.to_owned() });
            }
            Ok(found)
        };
        Ok(Self::Tls {
            certificates: read(certificates)?,
            key: {
                regular(key)?;
                PrivateKeyDer::from_pem_file(key)
                    .map_err(|source| SecurityError::Pem { path: key.to_owned(), source })?
            },
            authorities: read(authorities)?,
            name,
        })
    }

    /// Checks whether the security allows listeners on `addresses`. `insecure_is_said`: the
    /// operator confirmed `insecure = true`.
    ///
    /// # Errors
    ///
    /// [`SecurityError::Open`] with the first address that other machines can reach.
    pub fn permit(
        &self,
        addresses: &[SocketAddr],
        insecure_is_said: bool,
    ) -> Result<(), SecurityError> {
        if !matches!(self, Self::Insecure) || insecure_is_said {
            return Ok(());
        }
        let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
        let open = addresses.iter().map(SocketAddr::ip).find(|ip| !is_loopback(*ip));
        open.map_or(Ok(()), |ip| Err(SecurityError::Open(ip)))
    }

    /// Validates all settings.
    pub(super) fn guard(self) -> Result<ValidatedSecurity, SecurityError> {
        match self {
            Self::Insecure => Ok(ValidatedSecurity { key: Vec::new(), tls: None }),
            Self::Key(key) => {
                check_key(&key)?;
                Ok(ValidatedSecurity { key, tls: None })
            }
            Self::Tls { certificates, key, authorities, name } => {
                let name = name.map(|name| server_name(&name)).transpose()?;
                let tls = Tls::new(certificates, key, authorities, name)
                    .map_err(|error| SecurityError::Certificates(error.to_string()))?;
                Ok(ValidatedSecurity { key: Vec::new(), tls: Some(tls) })
            }
        }
    }
}

fn check_key(key: &[u8]) -> Result<(), SecurityError> {
    let is_good = (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len());
    if is_good { Ok(()) } else { Err(SecurityError::KeyLength(key.len())) }
}

fn server_name(name: &str) -> Result<ServerName<'static>, SecurityError> {
    ServerName::try_from(name.to_owned()).map_err(|_| SecurityError::Name(name.to_owned()))
}

/// Validated security settings.
pub(super) struct ValidatedSecurity {
    /// The key of the proofs; empty without security, or when TLS authenticates the peers.
    pub(super) key: Vec<u8>,
    tls: Option<Tls>,
}

struct Tls {
    /// The end of the certificate, the earliest of its chain, in seconds since the Unix epoch.
    expiry_s: Option<u64>,
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    name: Option<ServerName<'static>>,
}

impl Tls {
    fn new(
        certificates: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        authorities: Vec<CertificateDer<'static>>,
        name: Option<ServerName<'static>>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let expiry_s = tollgate_http::chain_expiry_s(&certificates);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots.add(authority)?;
        }
        let roots = Arc::new(roots);
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()?;
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates.clone(), key.clone_key())?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&version::TLS13])?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates, key)?;
        // A resumed session shows no certificate, so it could outlive the trust in its certificate.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self {
            expiry_s,
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            name,
        })
    }
}

impl ValidatedSecurity {
    /// Whether there is no security.
    pub(super) fn is_open(&self) -> bool {
        self.key.is_empty() && self.tls.is_none()
    }

    /// Whether links use TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The end of the certificate, in seconds since the Unix epoch; `None` without TLS.
    pub(super) fn expiry_s(&self) -> Option<u64> {
        self.tls.as_ref()?.expiry_s
    }

    /// Secures a stream that this side opened to `address`.
    pub(super) async fn connect(&self, address: &str, stream: Stream) -> io::Result<SecuredStream> {
        let Some(tls) = &self.tls else { return Ok(SecuredStream::Plain(stream)) };
        let name = match &tls.name {
            Some(name) => name.clone(),
            None => server_name(host(address))
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
        };
        let stream = tls.connector.connect(name, stream).await?;
        Ok(SecuredStream::Tls(Box::new(stream.into())))
    }

    /// Secures a stream that a peer opened.
    pub(super) async fn accept(&self, stream: Stream) -> io::Result<SecuredStream> {
        let Some(tls) = &self.tls else { return Ok(SecuredStream::Plain(stream)) };
        let stream = tls.acceptor.accept(stream).await?;
        if let Some(name) = &tls.name {
            let certificates = stream.get_ref().1.peer_certificates();
            let first = certificates.and_then(<[_]>::first);
            let first = first.ok_or_else(|| bad(rustls::Error::NoCertificatesPresented))?;
            let parsed = ParsedCertificate::try_from(first).map_err(bad)?;
            verify_server_name(&parsed, name).map_err(bad)?;
        }
        Ok(SecuredStream::Tls(Box::new(stream.into())))
    }
}

fn bad(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The TLS error in `error`, if there is one.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A peer's stream, perhaps inside TLS.
#[derive(Debug)]
pub(super) enum SecuredStream {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

impl SecuredStream {
    /// Takes the stream off its runtime, with the TLS state if there is one.
    pub(super) fn detach(self) -> io::Result<(DetachedStream, Option<Box<TlsConnection>>)> {
        let (stream, tls) = match self {
            Self::Plain(stream) => (stream, None),
            Self::Tls(stream) => match *stream {
                TlsStream::Client(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(Box::new(tls.into())))
                }
                TlsStream::Server(stream) => {
                    let (stream, tls) = stream.into_inner();
                    (stream, Some(Box::new(tls.into())))
                }
            },
        };
        Ok((stream.detach()?, tls))
    }
}

impl AsyncRead for SecuredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for SecuredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insecure_off_loopback_needs_confirmation() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        let near =
            [at("127.0.0.1:1"), at("127.8.8.8:1"), at("[::1]:1"), at("[::ffff:127.0.0.1]:1")];
        assert!(PeerSecurity::Insecure.permit(&near, false).is_ok());
        for far in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "[::ffff:10.0.0.1]:1"] {
            let addresses = [near[0], at(far)];
            let refused = PeerSecurity::Insecure.permit(&addresses, false);
            assert!(matches!(refused, Err(SecurityError::Open(ip)) if ip == at(far).ip()), "{far}");
            assert!(PeerSecurity::Insecure.permit(&addresses, true).is_ok());
            assert!(PeerSecurity::Key(vec![7; KEY_BYTES_MIN]).permit(&addresses, false).is_ok());
        }
    }

    #[test]
    fn a_key_is_neither_short_nor_shown() {
        let refused = PeerSecurity::Key(b"0123456789abcde".to_vec()).guard();
        assert!(matches!(refused, Err(SecurityError::KeyLength(15))));
        let folder = tempfile::tempdir().expect("a folder for one file");
        let path = folder.path().join("key");
        std::fs::write(&path, "0123456789abcdef\r\n").expect("the folder is ours");
        let security = PeerSecurity::key_of(&path).expect("long enough");
        assert_eq!(format!("{security:?}"), "Key(..)");
        assert!(matches!(security, PeerSecurity::Key(key) if key == b"0123456789abcdef"));
        let missing = PeerSecurity::key_of(&folder.path().join("none"));
        assert!(matches!(missing, Err(SecurityError::Unreadable { .. })));
    }

    #[test]
    fn the_host_of_an_address_is_what_a_certificate_names() {
        assert_eq!(host("node-1.peers:7000"), "node-1.peers");
        assert_eq!(host("[2001:db8::1]:7000"), "2001:db8::1");
        assert_eq!(host("10.0.0.1:7000"), "10.0.0.1");
    }
}
