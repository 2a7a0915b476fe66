//! The admin listener of a running server: binding it, and the thread on which it answers.
//!
//! Here: the settings' files, the thread, the reload of tokens. Not here: its answers (`host`), the
//! metrics (`metrics`, `memcached`), hot keys of all nodes (`cluster_query`), changes that outlive
//! their requests (`running`), HTTP itself (the package `tollgate-http`).

mod cluster_query;
mod explain;
mod host;
mod limits;
mod memcached;
mod metrics;
mod observations;
mod observer;
mod operator;
mod own_client;
mod process;
mod running;
mod try_limit;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;
use tokio_rustls::rustls::pki_types::pem;
use tollgate_http::{Access, AdminHost, AdminListener, TlsError, TlsSettings, Tokens, TokensError};
use tollgate_limits::files;

pub(crate) use self::cluster_query::ObservedAnswers;
pub(crate) use self::host::ServerHost;
use crate::config::{HttpConfig, HttpTls};
use crate::runtime::listeners::BindError;

/// The reason why the admin listener cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Its address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Its certificate cannot be used.
    #[error("--http-tls: {0}")]
    Tls(#[from] TlsError),
    /// The tokens file cannot be used.
    #[error("--tokens: {0}")]
    Tokens(#[from] TokensError),
}

/// Maximum size of the tokens file, in bytes.
const TOKENS_BYTES_MAX: u64 = 1 << 20;

fn load_tokens(path: &Path) -> Result<Tokens, TokensError> {
    let text = files::read(path, TOKENS_BYTES_MAX)
        .and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other))
        .map_err(|source| TokensError::File { path: path.to_owned(), source })?;
    Tokens::parse(path, &text)
}

fn load_certificate(tls: &HttpTls) -> Result<TlsSettings, TlsError> {
    for path in [&tls.certificates, &tls.key] {
        files::must_be_regular(path).map_err(|source| TlsError::Pem {
            path: path.clone(),
            source: pem::Error::Io(source),
        })?;
    }
    tollgate_http::tls_settings(&tls.certificates, &tls.key)
}

/// Reads the certificate and the tokens of an admin listener, if it has them.
///
/// # Errors
///
/// A file is unreadable or cannot be used.
pub fn load_files(
    config: &HttpConfig,
) -> Result<(Option<TlsSettings>, Option<Tokens>), AdminError> {
    let tls = config.tls.as_ref().map(load_certificate).transpose()?;
    let tokens = config.tokens.as_deref().map(load_tokens).transpose()?;
    Ok((tls, tokens))
}

/// A bound admin listener that does not serve yet.
pub(crate) struct BoundAdmin {
    listener: AdminListener,
    tls: Option<TlsSettings>,
    access: Arc<Access>,
}

impl BoundAdmin {
    /// Binds the listener of `config` and reads its files. `None`, with a warning, if the default
    /// address is taken.
    pub(crate) fn bind(config: &HttpConfig) -> Result<Option<Self>, AdminError> {
        let (tls, tokens) = load_files(config)?;
        let access = Access::new(config.hosts.clone(), tokens, tls.is_some());
        let access = Arc::new(match &tls {
            Some(tls) => access.with_tls(Arc::clone(&tls.figures)),
            None => access,
        });
        match AdminListener::bind(config.address) {
            Ok(listener) => Ok(Some(Self { listener, tls, access })),
            Err(source) if config.is_named => {
                let place = format!("--http {}", config.address);
                Err(BindError { place, source }.into())
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    address = %config.address,
                    "no health checks and metrics over HTTP: the default address is taken, so \
                     choose another with --http, or --http off"
                );
                Ok(None)
            }
        }
    }

    /// Starts the thread that serves the listener.
    ///
    /// # Errors
    ///
    /// The system refuses a thread or its runtime.
    pub(crate) fn start(self, host: Arc<ServerHost>) -> io::Result<AdminThread> {
        let Self { listener, tls, access } = self;
        let (end, ended) = oneshot::channel();
        let shown = Arc::clone(&host) as Arc<dyn AdminHost>;
        let routes = tollgate_http::router(shown, Arc::clone(&access));
        let address = listener.address()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(target: crate::LIFE, "health and metrics at {scheme}://{address}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            let stop = Box::pin(async {
                // An error means that the server has ended without a word: stop as well.
                let _ = ended.await;
            });
            let served = runtime.block_on(async {
                let served = tollgate_http::serve(listener, tls, routes, stop).await;
                host.running.end().await;
                served
            });
            if let Err(error) = served {
                tracing::error!(%error, "the admin listener has ended: restart the server");
            }
        })?;
        Ok(AdminThread { thread, end, access })
    }
}

/// The running admin listener.
pub(crate) struct AdminThread {
    thread: JoinHandle<()>,
    end: oneshot::Sender<()>,
    access: Arc<Access>,
}

impl AdminThread {
    /// Reads the tokens file again; a faulty one leaves the previous tokens in force.
    pub(crate) fn reload_tokens(&self, path: &Path) {
        match load_tokens(path) {
            Ok(tokens) => self.access.set_tokens(tokens),
            Err(error) => tracing::error!(
                %error,
                "tokens file refused, tokens kept as they were: correct the file"
            ),
        }
    }

    /// Ends the listener and waits for its thread.
    pub(crate) fn end(self) {
        let _ = self.end.send(());
        if self.thread.join().is_err() {
            tracing::error!("the thread http panicked: please report this log as a bug");
        }
    }
}
