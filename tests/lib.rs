//! Checks that hold for any bytes: used by the tests in `main.rs` on random conversations, and by
//! the fuzz targets in `fuzz/` on the fuzzer's input.
//!
//! Here: a client without a socket, and properties that hold for every input. Not here: the replies
//! to each command (the transcripts).

use engine::Now;
use protocol::Bounds;
use tollgate::commands::scratch::Scratch;
use tollgate::config::Config;
use tollgate::runtime::service::Service;
use tollgate::session::{Pause, Session, SessionContext};
use tollgate_limits::Limits;

/// The memory cap of the stores under test.
const MEMORY_BYTES: u64 = 8 << 20;
/// A key that random bytes do not contain.
const NEIGHBOUR: &str = "a-neighbour-that-nobody-else-touches";

/// A server without sockets, threads or clock.
pub struct Core {
    /// The state that its clients share.
    pub service: Service,
    /// The time, which only the test moves.
    pub now: Now,
}

impl Core {
    /// A new server with this configuration; the hash seeds are fixed.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let limits = config.limits_file.as_deref().map(Limits::load).transpose();
        let limits = limits.expect("a good limits file").unwrap_or_default();
        let service = Service::new(config, None, limits, [1, 2, 3, 4], Box::new(|_| {}));
        Self { service, now: Now::at_ms(1_000) }
    }
}

/// A client of a [`Core`].
#[derive(Default)]
pub struct CoreClient {
    session: Session,
    scratch: Scratch,
    pending: Vec<u8>,
    /// True once the server has closed the connection.
    pub is_closed: bool,
}

impl CoreClient {
    /// Sends bytes and appends the replies to `out`.
    pub fn send(&mut self, core: &Core, bytes: &[u8], out: &mut Vec<u8>) {
        if self.is_closed {
            return;
        }
        self.pending.extend_from_slice(bytes);
        let in_force = core.service.limits().load();
        loop {
            let service = &core.service;
            let mut round = SessionContext::new(
                service,
                service.counters(0),
                core.now,
                &in_force,
                &mut self.scratch,
            );
            round.requests = service.config().requests_per_event;
            let mut answers = Vec::new();
            let (done, pause) = self.session.run(&mut round, &self.pending, &mut answers);
            assert!(done <= self.pending.len(), "a session consumes what it was given");
            self.pending.drain(..done);
            out.extend_from_slice(&answers);
            match pause {
                Pause::Input(needed) => {
                    assert!(needed > self.pending.len(), "asking for what is here already");
                    return;
                }
                Pause::Peers => unreachable!("a server by itself waits for nobody"),
                Pause::Close => {
                    self.is_closed = true;
                    return;
                }
                Pause::Delay(_) => unreachable!("it has no passwords"),
                Pause::Replies | Pause::Turn => {}
            }
        }
    }
}

/// Decodes `wire` to its end: every step consumes bytes, and no prefix of a request is decided
/// otherwise than the whole.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn check_decoding(wire: &[u8]) {
    use protocol::{Decoded, ProtocolError, decode};
    let bounds = Bounds { item_bytes_max: 4096 };
    let mut rest = wire;
    loop {
        let decoded = decode(rest, 0, bounds);
        let half = decode(&rest[..rest.len() / 2], 0, bounds);
        if !matches!(half, Ok(Decoded::Incomplete { .. })) && !has_long_line(rest) {
            assert_eq!(half, decoded, "more bytes changed a decision");
        }
        let consumed = match decoded {
            Ok(Decoded::Incomplete { scanned, needed }) => {
                assert!(needed > rest.len() && scanned <= rest.len());
                return;
            }
            Ok(Decoded::Request { consumed, .. }) => consumed,
            Err(refusal) if refusal.error == ProtocolError::Close => return,
            Err(refusal) => refusal.consumed,
        };
        assert!(consumed > 0, "no step forward");
        rest = rest.get(consumed..).unwrap_or_default();
    }
}

/// Plays `wire` to a new server, once whole and once in pieces: the replies are the same, a
/// neighbour's counter is unchanged, and the memory cap holds.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn check_conversation(seed: u64, wire: &[u8]) {
    let whole = play(wire, &[wire.len()]);
    let mut state = seed | 1;
    let mut ends = Vec::new();
    let mut at = 0;
    while at < wire.len() {
        // xorshift64: any sequence serves, provided that the seed reproduces it.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        at += (state % 40) as usize + 1;
        ends.push(at.min(wire.len()));
    }
    let cut = play(wire, &ends);
    // `stats` reports processor time, which differs.
    if !contains(wire, b"stats") && !has_long_line(wire) {
        assert_eq!(whole, cut, "the answer depends on how the bytes were cut");
    }
}

fn play(wire: &[u8], ends: &[usize]) -> (Vec<u8>, bool) {
    let config = Config { memory_bytes: MEMORY_BYTES, threads: 1, ..Config::default() };
    let core = Core::new(config);
    let mut neighbour = CoreClient::default();
    let mut out = Vec::new();
    neighbour.send(&core, format!("set {NEIGHBOUR} 5 0 1\r\n7\r\n").as_bytes(), &mut out);
    assert_eq!(out, b"STORED\r\n");
    let (mut client, mut answers, mut start) = (CoreClient::default(), Vec::new(), 0);
    for end in ends {
        client.send(&core, &wire[start..*end], &mut answers);
        start = *end;
    }
    out.clear();
    neighbour.send(
        &core,
        format!("incr {NEIGHBOUR} 1\r\nget {NEIGHBOUR}\r\n").as_bytes(),
        &mut out,
    );
    if !contains(wire, b"flush_all") && !contains(wire, NEIGHBOUR.as_bytes()) {
        let expected = format!("8\r\nVALUE {NEIGHBOUR} 5 1\r\n8\r\nEND\r\n");
        assert_eq!(String::from_utf8_lossy(&out), expected, "a neighbour was touched");
    }
    let budget = core.service.shards().memory_cap();
    assert!(budget.used_bytes() <= budget.limit_bytes(), "over the memory cap");
    (answers, client.is_closed)
}

/// Whether a line exceeds the server's maximum: as in memcached it is answered when it arrives in
/// one piece, and closes the connection when its end arrives later.
fn has_long_line(wire: &[u8]) -> bool {
    wire.split(|byte| *byte == b'\n').any(|line| line.len() > protocol::LINE_BYTES_MAX)
}

fn contains(wire: &[u8], word: &[u8]) -> bool {
    wire.windows(word.len()).any(|window| window == word)
}
