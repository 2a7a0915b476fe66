//! The conversation with the admin listener of a server: one request at a time over HTTP/1.1.
//!
//! Here: the address, the token, TLS, a request and its reply. Not here: the sub-commands that use
//! it (`api_limits`, `explain`), the socket (`server/src/net`).

use std::env;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};
use tollgate::config::ConfigError;
use tollgate::config::sub_commands::TOKEN_VARIABLE;
use tollgate::net::Stream;

use super::CliError;

/// Longest time for a request and its reply. A server gives up after 30 s.
const PATIENCE: Duration = Duration::from_secs(40);
/// Maximum size of a reply, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 20;
/// The name by which the server knows requests of the command line.
const AGENT: &str = concat!("tollgate-cli/", env!("CARGO_PKG_VERSION"));

/// The flags of every command that asks the admin listener.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub(super) struct AdminFlags {
    #[arg(
        long,
        global = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:31211",
        value_parser = admin_url,
        help = "Address of the server's admin listener (--http), http or https; a server with \
                --tokens needs a token in the environment variable TOLLGATE_TOKEN"
    )]
    admin: Uri,
    /// PEM file of the authority that signed the server's certificate, for https
    #[arg(long, global = true, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print the server's JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
}

impl AdminFlags {
    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// https without `--ca`, or `--ca` without https.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let wrong = match (&self.ca, self.admin.scheme_str() == Some("https")) {
            (None, true) => "https needs --ca FILE",
            (Some(_), false) => "--ca needs an address with https",
            _ => return Ok(()),
        };
        Err(ConfigError::Usage(wrong.to_owned()))
    }
}

fn admin_url(text: &str) -> Result<Uri, String> {
    let uri: Uri = text.parse().map_err(|_| WRONG_URL.to_owned())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_http && uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none() {
        return Ok(uri);
    }
    Err(WRONG_URL.to_owned())
}

const WRONG_URL: &str = "expected http://HOST:PORT or https://HOST:PORT";

/// Returns `text` as one segment of a path, or as a value of a query.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// A body and its media type.
#[derive(Debug, Clone)]
pub(super) enum AdminBody {
    Json(Value),
    Toml(String),
}

/// The version that a change replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdminVersion {
    /// None is compared.
    Any,
    /// This one; 0: there must be nothing yet.
    Is(u64),
}

/// A reply that is no error.
#[derive(Debug)]
pub(super) struct AdminReply {
    text: String,
}

impl AdminReply {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The reply as JSON; null if it is empty.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

/// The reason why a server did not do a request: its status and its sentence.
#[derive(Debug)]
struct AdminRefusal {
    status: u16,
    detail: String,
}

/// The admin listener of one server.
pub(super) struct AdminClient {
    base: Uri,
    token: Option<String>,
    tls: Option<TlsConnector>,
    runtime: tokio::runtime::Runtime,
}

impl AdminClient {
    /// Prepares requests with checked flags. Connects to nothing yet.
    pub(super) fn new(flags: &AdminFlags) -> Result<Self, CliError> {
        let base = flags.admin.clone();
        let is_tls = base.scheme_str() == Some("https");
        let tls = flags.ca.as_deref().filter(|_| is_tls).map(connector).transpose()?;
        let token = env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { base, token, tls, runtime })
    }

    pub(super) fn get(&self, path: &str) -> Result<AdminReply, CliError> {
        self.send(&Method::GET, path, AdminVersion::Any, None)
    }

    /// Returns the reply to a GET; `None` if the thing is not there.
    pub(super) fn find(&self, path: &str) -> Result<Option<AdminReply>, CliError> {
        match self.request(&Method::GET, path, AdminVersion::Any, None)? {
            Ok(reply) => Ok(Some(reply)),
            Err(AdminRefusal { status: 404, .. }) => Ok(None),
            Err(refusal) => Err(self.refused(refusal)),
        }
    }

    /// Sends a request to `path`, which begins with `/api/v1/`.
    pub(super) fn send(
        &self,
        method: &Method,
        path: &str,
        version: AdminVersion,
        body: Option<AdminBody>,
    ) -> Result<AdminReply, CliError> {
        self.request(method, path, version, body)?.map_err(|refusal| self.refused(refusal))
    }

    fn refused(&self, AdminRefusal { detail, .. }: AdminRefusal) -> CliError {
        CliError::Refused { server: self.name(), answer: detail }
    }

    fn name(&self) -> String {
        self.base.to_string().trim_end_matches('/').to_owned()
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        version: AdminVersion,
        body: Option<AdminBody>,
    ) -> Result<Result<AdminReply, AdminRefusal>, CliError> {
        let failed = |source| CliError::Unreachable { server: self.name(), source };
        let request = self.build(method, path, version, body).map_err(failed)?;
        let exchange = async {
            timeout(PATIENCE, self.exchange(request)).await.unwrap_or_else(|_| {
                Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in 40 s"))
            })
        };
        self.runtime.block_on(exchange).map_err(|error| failed(with_hint(error)))
    }

    fn build(
        &self,
        method: &Method,
        path: &str,
        version: AdminVersion,
        body: Option<AdminBody>,
    ) -> io::Result<Request<Full<Bytes>>> {
        let path = format!("{}{path}", self.base.path().trim_end_matches('/'));
        let host = self.base.authority().map_or("", |authority| authority.as_str());
        // A user in the address is no name of the host.
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let request = Request::builder().method(method).uri(path).header(header::HOST, host);
        let mut request = request.header(header::USER_AGENT, AGENT);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request = match version {
            AdminVersion::Any => request,
            AdminVersion::Is(0) => request.header(header::IF_NONE_MATCH, "*"),
            AdminVersion::Is(version) => request.header(header::IF_MATCH, format!("\"{version}\"")),
        };
        let (kind, bytes) = match body {
            None => (None, Bytes::new()),
            Some(AdminBody::Json(value)) => (Some("application/json"), value.to_string().into()),
            Some(AdminBody::Toml(text)) => (Some("application/toml"), text.into()),
        };
        if let Some(kind) = kind {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        request.body(Full::new(bytes)).map_err(io::Error::other)
    }

    async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> io::Result<Result<AdminReply, AdminRefusal>> {
        let host = self.base.host().unwrap_or_default();
        let port = self.base.port_u16().unwrap_or(if self.tls.is_some() { 443 } else { 80 });
        let stream = Stream::connect(&format!("{host}:{port}")).await?;
        match &self.tls {
            None => converse(stream, request).await,
            Some(tls) => {
                let name = host.trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(name).map_err(io::Error::other)?;
                converse(tls.connect(name, stream).await?, request).await
            }
        }
    }
}

/// Adds a hint to an error that means TLS on one side only, or the wrong `--ca`.
fn with_hint(error: io::Error) -> io::Error {
    use tokio_rustls::rustls::{CertificateError, Error, InvalidMessage};
    let Some(source) = error.get_ref() else { return error };
    let is_parse = source.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse);
    let hint = match source.downcast_ref::<Error>() {
        _ if is_parse => "does the server speak TLS there? Then write https and --ca FILE",
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "does the server speak TLS there? If not, write http and no --ca"
        }
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "--ca must be the authority that signed the server's certificate"
        }
        Some(Error::InvalidCertificate(CertificateError::Other(_))) => {
            "the server's certificate must not be an authority itself: give the server one that \
             an authority signed, and name that authority in --ca"
        }
        _ => return error,
    };
    io::Error::new(error.kind(), format!("{error}: {hint}"))
}

fn connector(ca: &std::path::Path) -> Result<TlsConnector, CliError> {
    let wrong =
        |error: &dyn std::fmt::Display| CliError::Input(format!("--ca {}: {error}", ca.display()));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).map_err(|error| wrong(&error))? {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    if roots.is_empty() {
        return Err(wrong(&"no certificate is in the file"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Sends a request over a new connection and reads the reply.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<Result<AdminReply, AdminRefusal>> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(io::Error::other)?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, REPLY_BYTES_MAX).collect().await.map_err(io::Error::other)?;
        let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
        if parts.status.is_success() {
            return Ok(Ok(AdminReply { text }));
        }
        Ok(Err(refusal(parts.status.as_u16(), &parts.headers, &text)))
    };
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        result = &mut exchange => result,
        // The reply may have come before the connection ended.
        _ = connection => exchange.await,
    }
}

/// The sentence of a reply that is an error.
fn refusal(status: u16, headers: &HeaderMap, text: &str) -> AdminRefusal {
    let problem: Value = serde_json::from_str(text).unwrap_or_default();
    let mut detail = match problem["detail"].as_str() {
        Some(detail) => detail.to_owned(),
        None => format!("HTTP status {status}"),
    };
    if let Some(line) = problem["line"].as_u64() {
        detail = format!("line {line}: {detail}");
    }
    if let Some(seconds) = headers.get(header::RETRY_AFTER).map(HeaderValue::to_str) {
        detail = format!("{detail} (after {} s)", seconds.unwrap_or("some"));
    }
    AdminRefusal { status, detail: super::api_show::clean(&detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_scheme_and_a_host() {
        for text in ["http://127.0.0.1:31211", "https://[::1]:1", "http://a.example/proxy/"] {
            assert!(admin_url(text).is_ok(), "{text}");
        }
        for text in ["127.0.0.1:31211", "ftp://a", "http://", "/x", "http://a/?b=c", ""] {
            assert!(admin_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_one_clean_sentence() {
        let problem = r#"{"status": 422, "detail": "no policy\u001b[2J", "line": 3}"#;
        let refusal = refusal(422, &HeaderMap::new(), problem);
        assert_eq!((refusal.status, refusal.detail.as_str()), (422, "line 3: no policy?[2J"));
        let other = super::refusal(502, &HeaderMap::new(), "<html>");
        assert_eq!(other.detail, "HTTP status 502");
    }

    #[test]
    fn a_protocol_or_certificate_mistake_has_a_hint() {
        use tokio_rustls::rustls::{CertificateError, Error, InvalidMessage};
        let hinted =
            |error: Error| with_hint(io::Error::new(io::ErrorKind::InvalidData, error)).to_string();
        let plain = hinted(Error::InvalidMessage(InvalidMessage::InvalidContentType));
        assert!(plain.ends_with("does the server speak TLS there? If not, write http and no --ca"));
        let signer = hinted(Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(signer.contains("the authority that signed"), "{signer}");
        let expired = Error::InvalidCertificate(CertificateError::Expired);
        assert_eq!(hinted(expired.clone()), expired.to_string());
        // A TLS listener answers a plain request with an alert.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let server = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().expect("the client comes");
            let _ = stream.read(&mut [0; 4096]).expect("the client asks");
            stream.write_all(b"\x15\x03\x03\x00\x02\x02\x46").expect("the client listens");
        });
        let flags = AdminFlags { admin: url.parse().expect("a URL"), ca: None, json: false };
        let client = AdminClient::new(&flags).expect("the flags fit");
        let error = client.get("/api/v1/limits").expect_err("no HTTP").to_string();
        assert!(error.ends_with("Then write https and --ca FILE"), "{error}");
        server.join().expect("the script was kept to");
    }

    #[test]
    fn ca_and_https_belong_together() {
        for (url, ca, expected) in [
            ("https://a", None, Some("https needs --ca FILE")),
            ("http://a", Some("ca"), Some("--ca needs an address with https")),
            ("https://a", Some("ca"), None),
            ("http://a", None, None),
        ] {
            let admin = url.parse().expect("a URL");
            let flags = AdminFlags { admin, ca: ca.map(PathBuf::from), json: false };
            let wrong = flags.check().err().map(|error| error.to_string());
            assert_eq!(wrong.as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn names_survive_a_path() {
        assert_eq!(encode("team-a/login *"), "team%2Da%2Flogin%20%2A");
    }
}
