//! People and programs that watch a server while it is measured: a scrape of the metrics every
//! second, an open overview page and a tail of denials.
//!
//! Here: the requests over HTTP, and their end. Not here: the server (`server`), what watching
//! costs (`compare`).

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two scrapes; Prometheus usually waits 15 s.
const SCRAPE_EVERY: Duration = Duration::from_secs(1);
/// The time between two looks at whether the run is over.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The streams that an open overview page and an open tail read.
const STREAMS: [&str; 2] = ["/api/v1/live?topics=status,rates,latency,denied,tail", "/api/v1/tail"];

/// Watchers of one server, which end when this value is dropped.
#[derive(Debug)]
pub struct Watch {
    is_over: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    streams: Vec<TcpStream>,
}

impl Watch {
    /// Begins to watch the admin listener at `address`.
    ///
    /// # Errors
    ///
    /// The listener does not accept a connection or answers with an error.
    pub fn begin(address: SocketAddr) -> io::Result<Self> {
        let (is_over, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut watch = Self {
            is_over: Arc::clone(&is_over),
            bytes: Arc::clone(&bytes),
            threads: Vec::new(),
            streams: Vec::new(),
        };
        scrape(address)?;
        for path in STREAMS {
            let mut stream = ask(address, path)?;
            watch.streams.push(stream.try_clone()?);
            let bytes = Arc::clone(&bytes);
            watch.threads.push(thread::spawn(move || {
                let mut buffer = [0; 16 << 10];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    bytes.fetch_add(read as u64, Ordering::Relaxed);
                }
            }));
        }
        watch.threads.push(thread::spawn(move || {
            let mut due = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                if Instant::now() >= due {
                    due += SCRAPE_EVERY;
                    // A scrape that fails is seen in the number of bytes.
                    bytes.fetch_add(scrape(address).unwrap_or(0), Ordering::Relaxed);
                }
                thread::sleep(LOOK_EVERY);
            }
        }));
        Ok(watch)
    }

    /// The number of bytes that were read so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for stream in &self.streams {
            // The server may have closed it.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Scrapes the metrics and returns the length of the answer in bytes.
fn scrape(address: SocketAddr) -> io::Result<u64> {
    let mut answer = Vec::new();
    ask(address, "/metrics")?.read_to_end(&mut answer)?;
    Ok(answer.len() as u64)
}

/// Sends a request and checks the first line of the answer.
fn ask(address: SocketAddr, path: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut front = [0; 12];
    stream.read_exact(&mut front)?;
    if &front == b"HTTP/1.1 200" {
        return Ok(stream);
    }
    Err(io::Error::other(format!("{path}: {}", String::from_utf8_lossy(&front))))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::Watch;

    /// Answers each request with `status` and keeps streams open until the client closes them.
    fn listener(status: &'static str) -> std::net::SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut line = String::new();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    // The whole request: what is not read resets the connection.
                    while !line.ends_with("\r\n\r\n") && reader.read_line(&mut line).unwrap() > 0 {}
                    write!(stream, "HTTP/1.1 {status}\r\n\r\ndata\n\n").unwrap();
                    if !line.contains("/metrics") {
                        while reader.read_line(&mut line).is_ok_and(|read| read > 0) {}
                    }
                });
            }
        });
        address
    }

    #[test]
    fn watchers_read_until_they_are_dropped() {
        let watch = Watch::begin(listener("200 OK")).unwrap();
        while watch.bytes() < 3 {
            thread::yield_now();
        }
        drop(watch);
    }

    #[test]
    fn an_error_of_the_listener_is_an_error() {
        let error = Watch::begin(listener("503 no")).unwrap_err().to_string();
        assert_eq!(error, "/metrics: HTTP/1.1 503");
    }
}
