//! The traffic of a shop's API: logins, API keys of customers, tokens of a language model.
//!
//! Here: the limits and the requests, for pages that need both. Not here: the pages (`pages`).

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{TestedApi, limit_text};

/// The time between two batches of requests.
const TICK: Duration = Duration::from_millis(50);
/// Ticks of a wave of the traffic: two minutes.
const WAVE_TICKS: u64 = 2400;
/// Users who log in.
const USERS: u64 = 6400;
/// A key that is no plain text.
const MARKUP: &str = "login:<script>alert(1)</script>";

/// Creates the shop's limits, and overrides of two keys.
pub(crate) fn put_limits(api: &TestedApi) {
    let of = |name: &str, pattern: &str, policy: &str, more: &str| {
        api.put(name, &limit_text(name, pattern, policy, more), "*");
    };
    of("login", "login:{user}", "sliding:5/m,slices=60,strict", "owner = \"identity\"\n");
    of(
        "customer",
        "customer:{customer}",
        "bucket:48000/m,capacity=60000",
        "owner = \"platform\"\n",
    );
    let parent = "owner = \"platform\"\nparents = [\"customer:{customer}\"]\n";
    of("api-key", "api-key:{customer}:{key}", "bucket:900/m,capacity=1200", parent);
    of("llm-tokens", "llm-tokens:{user}", "sliding:90000/m", "owner = \"assistant\"\n");
    of("search", "search:{session}", "gcra:20/m,burst=10", "owner = \"shop\"\nshadow = true\n");
}

/// Requests until it is dropped, one thread for each address.
#[derive(Debug)]
pub(crate) struct ShopTraffic {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl ShopTraffic {
    /// Begins to send about 400 requests a second to each address.
    pub(crate) fn start(addresses: &[SocketAddr]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = addresses.iter().zip(1..).map(|(address, seed)| {
            let (stop, address) = (Arc::clone(&stop), *address);
            thread::spawn(move || send(address, seed, &stop))
        });
        let threads = threads.collect();
        Self { stop, threads }
    }
}

impl Drop for ShopTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Lets each user take two units, so that about a hundred of them are recorded.
pub(crate) fn log_users_in(address: SocketAddr) {
    let mut stream = connect(address);
    let users: Vec<String> =
        (0..USERS).map(|user| format!("take login:user{user} 2 -\r\n")).collect();
    for some in users.chunks(500) {
        exchange(&mut stream, some);
        // The rings of the workers are drained ten times a second.
        thread::sleep(Duration::from_millis(100));
    }
}

fn send(address: SocketAddr, seed: u64, stop: &AtomicBool) {
    let (mut stream, mut state) = (connect(address), seed);
    for tick in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        exchange(&mut stream, &batch(tick, &mut state));
        thread::sleep(TICK);
    }
}

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).expect("the server accepts");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket takes options");
    BufReader::new(stream)
}

/// Sends requests and reads a line for each.
fn exchange(stream: &mut BufReader<TcpStream>, lines: &[String]) {
    stream.get_mut().write_all(lines.concat().as_bytes()).expect("the server reads");
    let mut reply = String::new();
    for _ in lines {
        reply.clear();
        let length = stream.read_line(&mut reply).expect("the server answers");
        assert!(length > 0, "the server has closed the connection");
    }
}

/// The requests of a tick: more in the middle of a wave than at its ends.
fn batch(tick: u64, state: &mut u64) -> Vec<String> {
    let mut below = |bound: u64| {
        // xorshift64: any sequence serves, provided that it is the same each time.
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % bound
    };
    let place = tick % WAVE_TICKS;
    let height = 10 + 20 * place.min(WAVE_TICKS - place) / WAVE_TICKS;
    let mut lines = Vec::new();
    for _ in 0..height {
        // Small numbers are more frequent, so that some keys are busier than others.
        let customer = ["acme", "globex", "initech", "hooli"][(below(4) * below(4) / 4) as usize];
        let key = below(40) * below(40) / 20;
        lines.push(format!("take api-key:{customer}:{:04x} 1 -\r\n", 0x7f3a + key));
    }
    for _ in 0..3 {
        lines.push(format!("take login:user{} 1 -\r\n", below(USERS)));
        lines.push(format!("take search:s{} 1 -\r\n", below(30)));
    }
    lines.push(format!("take llm-tokens:user{} {} -\r\n", below(40), 200 + below(1800)));
    lines.push("take login:mallory 1 -\r\n".to_owned());
    if tick.is_multiple_of(4) {
        lines.push(format!("take {MARKUP} 1 -\r\n"));
        lines.push("take login:bob 1 -\r\n".to_owned());
    }
    lines
}
