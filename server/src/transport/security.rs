//! Who may be a peer: nobody asks, a shared key, or certificates.
//!
//! Here: the settings, the rule that lanes off loopback are guarded, TLS around a stream. Not here:
//! the proof of a shared key (`cluster::message::handshake`).
//!
//! A shared key shows who is there when a lane begins. It neither hides nor seals what follows:
//! against whoever can read or change packets on the network only TLS helps.

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

use crate::files;
use crate::net::{DetachedStream, Stream};

/// TLS on a stream, without input and output.
pub(crate) type TlsConnection = rustls::Connection;

/// A shared key has so many bytes at least: what is shorter can be guessed from one overheard proof.
pub const KEY_BYTES_MIN: usize = 16;
/// And at most.
pub const KEY_BYTES_MAX: usize = 4096;
/// A longer file is refused before it is read: with its line end a key fits.
const KEY_FILE_BYTES_MAX: u64 = 2 * KEY_BYTES_MAX as u64;

/// What TLS says is spoken inside, so that no other server with the same certificates takes us for
/// one of its clients.
const PROTOCOL: &[u8] = b"tollgate-lane";

/// How peers show that they belong to the cluster.
pub enum PeerSecurity {
    /// Not at all. Off loopback only where the operator says so.
    Insecure,
    /// They have the same key.
    Key(Vec<u8>),
    /// Both sides have certificates of the same authority.
    Tls {
        /// Our certificate, then those between it and an authority.
        certificates: Vec<CertificateDer<'static>>,
        /// The private key of our certificate.
        key: PrivateKeyDer<'static>,
        /// Whose certificates are believed.
        authorities: Vec<CertificateDer<'static>>,
        /// The name that every peer's certificate bears. Without one it is the host that is dialled,
        /// and for peers that come to us any name does: the authority is then to be of the cluster
        /// alone.
        name: Option<String>,
    },
}

/// Why peers cannot be secured like that.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Neither key nor certificates, where others can reach us.
    #[error(
        "peers off loopback ({0}) must be secured by a shared key or by TLS; `insecure = true` says otherwise"
    )]
    Open(IpAddr),
    /// Lanes that are secured do not become insecure while they run.
    #[error("peers that are secured stay so until the next start")]
    Given,
    /// The key has the wrong length.
    #[error("a shared key has {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes, not {0}")]
    KeyLength(usize),
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {source}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{}: no certificate in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The name is no host's.
    #[error("{0:?} is no name that a certificate can bear")]
    Name(String),
    /// Certificates that do not fit together.
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
    /// The key that a file holds. One line end after it does not count.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or holds too little or too much.
    pub fn key_of(path: &Path) -> Result<Self, SecurityError> {
        let mut key = files::read(path, KEY_FILE_BYTES_MAX)
            .map_err(|source| SecurityError::Unreadable { path: path.to_owned(), source })?;
        for end in [b'\n', b'\r'] {
            key.pop_if(|last| *last == end);
        }
        check_key(&key)?;
        Ok(Self::Key(key))
    }

    /// Reads PEM files: our certificates, our key, the authorities.
    ///
    /// # Errors
    ///
    /// When a file cannot be read or is not what it should be.
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

    /// Whether lanes may be listened for on these addresses. `insecure_is_said`: the operator wrote
    /// `insecure = true`.
    ///
    /// # Errors
    ///
    /// [`SecurityError::Open`] with the first address that others can reach.
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

    /// Checks everything that can be wrong with it.
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

/// Security that was found to be sound.
pub(super) struct ValidatedSecurity {
    /// What proofs are made with; empty where there is nothing to prove, or TLS has proved it.
    pub(super) key: Vec<u8>,
    tls: Option<Tls>,
}

struct Tls {
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
        // A resumed session shows no certificate, so one that is no longer believed would go on.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        Ok(Self {
            connector: TlsConnector::from(Arc::new(client)),
            acceptor: TlsAcceptor::from(Arc::new(server)),
            name,
        })
    }
}

impl ValidatedSecurity {
    /// It guards nothing.
    pub(super) fn is_open(&self) -> bool {
        self.key.is_empty() && self.tls.is_none()
    }

    /// Wraps a stream that we opened to `address`.
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

    /// Wraps a stream that a peer opened.
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

/// What TLS has against a peer, if it was TLS.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// A peer's stream with what secures it.
#[derive(Debug)]
pub(super) enum SecuredStream {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

impl SecuredStream {
    /// Takes the stream off its runtime, with the TLS connection on it if there is one.
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
    fn off_loopback_somebody_has_to_say_insecure() {
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
