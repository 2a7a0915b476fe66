//! The listener: connections of HTTP/1.1, with or without TLS, and their bounds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, FutureExt as _, TryFutureExt as _};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::caller::ClientAddress;
use crate::streams::ListenerEnd;
use crate::tls::TlsSettings;

/// Most connections at once. Of more than these only probes are answered, all else gets 503.
pub const CONNECTIONS_MAX: usize = 64;
/// Most connections beyond [`CONNECTIONS_MAX`]. Each gets the answer to one probe, so that no
/// orchestrator restarts a server because its listener is full.
const PROBES_MAX: usize = 8;
/// Longest time for the head of a request, and for a TLS handshake.
const HEAD_MAX: Duration = Duration::from_secs(10);
/// The same for a connection beyond [`CONNECTIONS_MAX`].
const PROBE_HEAD_MAX: Duration = Duration::from_secs(1);
/// Longest time in which a client takes nothing of a reply or stream.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for requests under way when the listener ends.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Pause after a failed accept: the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\n\
    Connection: close\r\nContent-Length: 21\r\n\r\ntoo many connections\n";

/// The requests that a connection may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Anything.
    Open,
    /// One probe: the other places are taken.
    ProbeOnly,
}

impl Place {
    /// Returns the longest time for the head of a request, and for a TLS handshake.
    fn head_max(self) -> Duration {
        match self {
            Self::Open => HEAD_MAX,
            Self::ProbeOnly => PROBE_HEAD_MAX,
        }
    }
}

/// A bound address that does not serve yet.
#[derive(Debug)]
pub struct AdminListener(std::net::TcpListener);

impl AdminListener {
    /// Binds an address.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    /// Returns the bound address.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Serves `routes` on `listener` until `stop` completes; then ends requests under way.
///
/// The future is boxed because rustc compiles the body of an `async fn` in the package that polls
/// it, with all generic code that the body uses: the server would compile hyper a second time.
///
/// # Errors
///
/// The socket cannot be used.
#[must_use]
pub fn serve(
    listener: AdminListener,
    tls: Option<TlsSettings>,
    routes: Router,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
    Box::pin(serve_until(listener, tls, routes, stop))
}

async fn serve_until(
    listener: AdminListener,
    tls: Option<TlsSettings>,
    routes: Router,
    mut stop: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener.0)?;
    let tls = tls.map(|tls| (TlsAcceptor::from(tls.config), tls.figures));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let probe_places = Arc::new(Semaphore::new(PROBES_MAX));
    let (end, ended) = watch::channel(());
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, address)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let open = Arc::clone(&places).try_acquire_owned().map(|taken| (Place::Open, taken));
        let probe = || {
            let taken = Arc::clone(&probe_places).try_acquire_owned();
            taken.map(|taken| (Place::ProbeOnly, taken))
        };
        let Ok((place, taken)) = open.or_else(|_| probe()) else {
            tokio::spawn(refuse(stream));
            continue;
        };
        let (routes, tls, ended) = (routes.clone(), tls.clone(), ended.clone());
        let address = ClientAddress::new(address.ip());
        tokio::spawn(async move {
            let _taken = taken;
            // A broken connection concerns its client only.
            let _ = match tls {
                None => converse(stream, routes, address, (place, ended)).await,
                Some((tls, figures)) => {
                    let accepted = timeout(place.head_max(), tls.accept(stream)).await;
                    figures.count(matches!(accepted, Ok(Ok(_))));
                    match accepted {
                        Ok(Ok(stream)) => converse(stream, routes, address, (place, ended)).await,
                        Ok(Err(_)) | Err(_) => Ok(()),
                    }
                }
            };
        });
    }
    drop(listener);
    let _ = end.send(());
    // All places are free when all connections have ended.
    let _ = timeout(DRAIN_MAX, places.acquire_many(CONNECTIONS_MAX as u32)).await;
    Ok(())
}

/// Serves one connection until it or the listener ends.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    routes: Router,
    address: ClientAddress,
    (place, mut ended): (Place, watch::Receiver<()>),
) -> Result<(), hyper::Error> {
    let routes = TowerToHyperService::new(routes);
    let listener_end = ListenerEnd(Some(ended.clone()));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(address);
        request.extensions_mut().insert(place);
        request.extensions_mut().insert(listener_end.clone());
        // hyper drops a reply when the client hangs up, perhaps before the change has begun.
        let reply = if request.method().is_safe() {
            Either::Left(routes.call(request).map(Ok))
        } else {
            Either::Right(tokio::spawn(routes.call(request)))
        };
        reply.map_ok(infallible)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(place.head_max())
        .keep_alive(place == Place::Open)
        .serve_connection(TokioIo::new(patient(stream)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        result = &mut connection => result,
        _ = ended.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

fn infallible<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// Ends a connection whose client takes nothing for [`WRITE_MAX`], and so would keep its place.
fn patient<S: AsyncRead + AsyncWrite>(stream: S) -> Pin<Box<TimeoutStream<S>>> {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_MAX));
    Box::pin(stream)
}

async fn refuse(mut stream: TcpStream) {
    // The client may be gone.
    let _ = timeout(HEAD_MAX, stream.write_all(BUSY)).await;
    let _ = stream.shutdown().await;
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;
    use std::time::Instant;

    use tokio::io::AsyncReadExt as _;
    use tokio::sync::oneshot;

    use super::*;
    use crate::access::Access;
    use crate::fake_host::FakeHost;
    use crate::streams::STREAMS_MAX;
    use crate::tokens::{Tokens, new_token};

    /// Sends a request and returns the connection with the first bytes of the reply.
    async fn ask(address: SocketAddr, head: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(address).await.expect("the listener is bound");
        let request = format!("{head} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("the listener reads");
        let mut bytes = vec![0; 4096];
        let count = stream.read(&mut bytes).await.expect("the listener answers");
        bytes.truncate(count);
        (stream, String::from_utf8(bytes).expect("replies are UTF-8"))
    }

    /// Runs `test` against a listener with a fake host; returns when the listener has ended.
    fn with_listener<F: Future<Output = ()>>(
        access: impl Into<Arc<Access>>,
        test: impl FnOnce(SocketAddr) -> F,
    ) {
        let access = access.into();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let bound = AdminListener::bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
            let address = bound.address().expect("it is bound");
            let routes = crate::routes::router(Arc::new(FakeHost::default()), access);
            let (stop, stopped) = oneshot::channel::<()>();
            let stop_wait = Box::pin(async { drop(stopped.await) });
            let served = tokio::spawn(serve(bound, None, routes, stop_wait));
            test(address).await;
            drop(stop);
            served.await.expect("it does not panic").expect("the socket works");
        });
    }

    #[test]
    fn streams_end_with_the_listener() {
        let mut start = Instant::now();
        with_listener(Access::default(), |address| async move {
            let (stream, head) = ask(address, "GET /api/v1/live").await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            // The connection lives on beside the end of the listener.
            tokio::spawn(async move {
                let mut stream = stream;
                let mut bytes = Vec::new();
                let _ = stream.read_to_end(&mut bytes).await;
            });
            tokio::task::yield_now().await;
        });
        let took = start.elapsed();
        assert!(took < DRAIN_MAX, "{took:?}");
        start = Instant::now();
        with_listener(Access::default(), |_| async {});
        assert!(start.elapsed() < DRAIN_MAX);
    }

    #[test]
    fn probes_are_answered_while_all_places_are_taken() {
        with_listener(Access::default(), |address| async move {
            let mut taken = Vec::new();
            for _ in 0..CONNECTIONS_MAX {
                let (stream, head) = ask(address, "GET /api/v1/openapi.json").await;
                assert!(head.starts_with("HTTP/1.1 200"), "{head}");
                taken.push(stream);
            }
            // Nobody keeps the places of probes: each of these ends after its second.
            for _ in 0..PROBES_MAX {
                taken.push(TcpStream::connect(address).await.expect("the listener is bound"));
            }
            sleep(2 * PROBE_HEAD_MAX).await;
            for probe in ["/livez", "/readyz", "/healthz", "/livez?verbose"] {
                let (mut stream, head) = ask(address, &format!("GET {probe}")).await;
                assert!(head.starts_with("HTTP/1.1 200"), "{probe}: {head}");
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.expect("one request for each connection");
            }
            for path in ["/", "/metrics", "/api/v1/status", "/livez/"] {
                let (_, head) = ask(address, &format!("GET {path}")).await;
                assert!(head.starts_with("HTTP/1.1 503"), "{path}: {head}");
                assert!(head.contains("too many connections"), "{path}: {head}");
            }
        });
    }

    #[test]
    fn a_stream_without_its_reader_frees_its_place() {
        with_listener(Access::default(), |address| async move {
            for round in 0..2 {
                let mut open = Vec::new();
                for _ in 0..STREAMS_MAX {
                    let (stream, head) = ask(address, "GET /api/v1/live").await;
                    assert!(head.starts_with("HTTP/1.1 200"), "{round}: {head}");
                    open.push(stream);
                }
                let (_, head) = ask(address, "GET /api/v1/tail").await;
                assert!(head.starts_with("HTTP/1.1 503"), "{head}");
                drop(open);
                // The listener notices the ends of connections in its own time.
                sleep(Duration::from_millis(300)).await;
            }
        });
    }

    #[test]
    fn a_client_that_takes_nothing_loses_its_place() {
        const REQUESTS: usize = 2_000;
        let request = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
        with_listener(Access::default(), |address| async move {
            // From here on the clock runs ahead when there is nothing to do.
            tokio::time::pause();
            let mut stream = TcpStream::connect(address).await.expect("the listener is bound");
            let requests = request.repeat(REQUESTS);
            stream.write_all(requests.as_bytes()).await.expect("the listener reads");
            sleep(WRITE_MAX + HEAD_MAX).await;
            let (mut bytes, mut replies) = (vec![0; 1 << 20], 0);
            while let Ok(count @ 1..) = stream.read(&mut bytes).await {
                replies += bytes[..count].windows(9).filter(|at| *at == b"HTTP/1.1 ").count();
            }
            assert!((1..REQUESTS / 2).contains(&replies), "{replies}");
        });
    }

    #[test]
    fn a_stream_ends_with_its_token() {
        let (token, hex) = new_token([1; 32]);
        let tokens =
            |line: &str| Tokens::parse(Path::new("tokens"), line).expect("it is well formed");
        let viewer = tokens(&format!("a viewer {hex}\n"));
        let other = tokens(&format!("b admin {}\n", new_token([2; 32]).1));
        let access = Arc::new(Access::new(Vec::new(), Some(viewer), false));
        with_listener(Arc::clone(&access), |address| async move {
            let head = format!(
                "GET /api/v1/live HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\
                 Connection: close\r\nX: "
            );
            let (mut stream, head) = ask(address, &head).await;
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            access.set_tokens(other);
            let start = Instant::now();
            let mut rest = Vec::new();
            let ended = timeout(HEAD_MAX, stream.read_to_end(&mut rest)).await;
            ended.expect("it ends").expect("it ends well");
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        });
    }

    #[test]
    fn the_address_of_the_sender_reaches_the_handlers() {
        let line = format!("a viewer {}\n", new_token([1; 32]).1);
        let tokens = Tokens::parse(Path::new("tokens"), &line).expect("it is well formed");
        let access = Access::new(Vec::new(), Some(tokens), false);
        with_listener(access, |address| async move {
            let wrong = "GET /api/v1/status HTTP/1.1\r\nAuthorization: Bearer x\r\nX: ";
            for expected in [[401; 10].as_slice(), &[429]].concat() {
                let (_, head) = ask(address, wrong).await;
                assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{head}");
            }
        });
    }
}
