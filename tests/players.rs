//! Plays transcripts, whole and byte by byte: to the core with a manual clock, to a live Tollgate,
//! and to a real memcached.
//!
//! Here: the players and the one director that compares the received bytes with the expected ones.
//! Not here: the format (`transcript.rs`) and the processes (`live.rs`). After each conversation a
//! fence, `mn`, must be answered at once by `MN`: no other output may be outstanding.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpStream},
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use engine::Nanos;
use tests::{Core, CoreClient};
use tollgate::config::{Config, Startup};

use crate::{
    live::{Program, Server},
    transcript::{Action, Conversation, Match, Names, show},
};

/// The longest that one conversation may wait on a real clock.
const REAL_WAIT_MAX: Duration = Duration::from_secs(3);

/// A party that receives bytes and returns bytes.
///
/// Fits a session without I/O as well as a socket: `send` passes bytes in, `receive` takes out the
/// available bytes, `advance` moves the session's clock.
pub(crate) trait Player {
    /// Starts over: no items, the command line `flags`, one connection. `alone`: no earlier
    /// conversation on this server, so that counters start at zero.
    fn open(&mut self, flags: &[String], alone: bool);
    /// A new connection to the same items.
    fn connect(&mut self);
    fn send(&mut self, bytes: &[u8]);
    fn receive(&mut self) -> Received;
    fn advance(&mut self, by: Duration);
    /// The time of day, in seconds.
    fn unix(&self) -> i64;
}

/// The available output of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes(Vec<u8>),
    /// No output, and none can follow.
    Silence,
    Closed,
}

/// The replies that are right where 1.6.18 differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Newest,
    Before,
}

/// Plays a conversation.
///
/// # Errors
///
/// `file:line: expected and received text`, for the first reply that is wrong.
pub(crate) fn play(
    conversation: &Conversation,
    dialect: Dialect,
    player: &mut dyn Player,
) -> Result<(), String> {
    let mut names = Names::new();
    let mut received = Vec::new();
    let mut closed = false;
    player.open(&conversation.flags, conversation.alone);
    for step in &conversation.steps {
        let at = format!("{}:{} ({})", conversation.file, step.line, conversation.name);
        match &step.action {
            Action::Send(text) => {
                if std::mem::take(&mut closed) {
                    player.connect();
                }
                player.send(&text.fill(&names, player.unix()));
            }
            Action::Expect { text, before } => {
                let text = match (before, dialect) {
                    (Some(before), Dialect::Before) => before,
                    _ => text,
                };
                let length = loop {
                    match text.compare(&received, &mut names) {
                        Match::Whole(length) => break length,
                        Match::Part => {}
                        Match::Not => {
                            return Err(format!("{at}\n  not  {text}\n  but  {}", show(&received)));
                        }
                    }
                    match player.receive() {
                        Received::Bytes(bytes) => received.extend(bytes),
                        end => {
                            let received = show(&received);
                            return Err(format!("{at}\n  not  {text}\n  but  {received} {end:?}"));
                        }
                    }
                };
                received.drain(..length);
            }
            Action::Close => {
                close(player, &mut received).map_err(|why| format!("{at}\n  {why}"))?;
                closed = true;
            }
            Action::Advance(by) => player.advance(*by),
        }
    }
    if closed || conversation.no_fence {
        return Ok(());
    }
    player.send(b"mn\r\n");
    while received.len() < 4 {
        match player.receive() {
            Received::Bytes(bytes) => received.extend(bytes),
            end => return Err(format!("{conversation}: {end:?} at the fence {}", show(&received))),
        }
    }
    let surplus = received.strip_suffix(b"MN\r\n").unwrap_or(&received);
    if surplus.is_empty() {
        return Ok(());
    }
    Err(format!("{conversation}: nothing more was expected, but came {}", show(&received)))
}

fn close(player: &mut dyn Player, received: &mut Vec<u8>) -> Result<(), String> {
    loop {
        match player.receive() {
            Received::Closed if received.is_empty() => return Ok(()),
            Received::Closed => return Err(format!("closes, but first said {}", show(received))),
            Received::Bytes(bytes) => received.extend(bytes),
            Received::Silence => return Err(format!("does not close; said {}", show(received))),
        }
    }
}

impl std::fmt::Display for Conversation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} ({})", self.file, self.line, self.name)
    }
}

/// The way in which bytes are split on their way to a live server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Whole,
    /// One byte per write; the middle of large data in uneven pieces.
    Bytes,
}

impl Cut {
    fn pieces(self, bytes: &[u8]) -> Vec<&[u8]> {
        match self {
            Self::Whole => vec![bytes],
            Self::Bytes if bytes.len() < 8_000 => bytes.chunks(1).collect(),
            Self::Bytes => {
                let (head, rest) = bytes.split_at(100);
                let (middle, tail) = rest.split_at(rest.len() - 100);
                head.chunks(1).chain(middle.chunks(40_093)).chain(tail.chunks(1)).collect()
            }
        }
    }
}

/// The core: no process, no socket, and a clock that the test moves.
struct Still {
    cut: Cut,
    core: Core,
    client: CoreClient,
    out: Vec<u8>,
}

impl Still {
    fn new(cut: Cut) -> Self {
        Self {
            cut,
            core: Core::new(Config::default()),
            client: CoreClient::default(),
            out: Vec::new(),
        }
    }
}

impl Player for Still {
    fn open(&mut self, flags: &[String], _alone: bool) {
        let words = ["tollgate"].into_iter().chain(flags.iter().map(String::as_str));
        let config = match Config::from_sources(words.map(Into::into), []) {
            Ok(Startup::Serve(config)) => *config,
            other => panic!("{flags:?} do not start a server: {other:?}"),
        };
        self.core = Core::new(config);
        self.connect();
    }

    fn connect(&mut self) {
        self.client = CoreClient::default();
        self.out.clear();
    }

    fn send(&mut self, bytes: &[u8]) {
        for piece in self.cut.pieces(bytes) {
            self.client.send(&self.core, piece, &mut self.out);
        }
    }

    fn receive(&mut self) -> Received {
        match std::mem::take(&mut self.out) {
            bytes if !bytes.is_empty() => Received::Bytes(bytes),
            _ if self.client.is_closed => Received::Closed,
            _ => Received::Silence,
        }
    }

    fn advance(&mut self, by: Duration) {
        let now = &mut self.core.now;
        let nanos = u64::try_from(by.as_nanos()).expect("a transcript takes no centuries");
        now.mono = Nanos(now.mono.0 + nanos);
        now.unix_ms += nanos / 1_000_000;
    }

    fn unix(&self) -> i64 {
        i64::try_from(self.core.now.unix_ms / 1_000).expect("seconds fit")
    }
}

/// A server process and one connection to it.
#[derive(Debug)]
struct Live {
    program: Program,
    cut: Cut,
    /// Serves every conversation without flags.
    shared: Server,
    own: Option<Server>,
    stream: TcpStream,
}

impl Live {
    fn new(program: Program, cut: Cut) -> Self {
        let shared = Server::start_as(program, &[]);
        let stream = shared.connect().stream;
        Self { program, cut, shared, own: None, stream }
    }
}

impl Player for Live {
    fn open(&mut self, flags: &[String], alone: bool) {
        self.own = (alone || !flags.is_empty()).then(|| {
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            Server::start_as(self.program, &flags)
        });
        if self.own.is_none() {
            self.shared.connect().ask("flush_all\r\n", "OK\r\n");
        }
        self.connect();
    }

    fn connect(&mut self) {
        self.stream = self.own.as_ref().unwrap_or(&self.shared).connect().stream;
    }

    fn send(&mut self, bytes: &[u8]) {
        for piece in self.cut.pieces(bytes) {
            // The server may have closed, as expected; its output before that is still to be read.
            if self.stream.write_all(piece).is_err() {
                break;
            }
        }
    }

    fn receive(&mut self) -> Received {
        let mut buffer = vec![0; 65_536];
        match self.stream.read(&mut buffer) {
            Ok(0) => Received::Closed,
            Ok(length) => {
                buffer.truncate(length);
                Received::Bytes(buffer)
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Received::Closed,
            // The read timed out: `PATIENCE` is over.
            Err(_) => {
                let _ = self.stream.shutdown(Shutdown::Both);
                Received::Silence
            }
        }
    }

    fn advance(&mut self, by: Duration) {
        thread::sleep(by);
    }

    fn unix(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        i64::try_from(since.as_secs()).expect("seconds fit")
    }
}

/// All conversations of `tests/transcripts`, in the order of their files' names.
pub(crate) fn conversations() -> Vec<Conversation> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("transcripts");
    let entries = fs::read_dir(&folder).expect("tests/transcripts is there");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a transcript is UTF-8");
        let name = file.file_name().expect("a file has a name").to_string_lossy().into_owned();
        all.extend(Conversation::parse(&name, &text).unwrap_or_else(|why| panic!("{why}")));
    }
    let only = std::env::var("TRANSCRIPT").unwrap_or_default();
    all.retain(|conversation| conversation.to_string().contains(&only));
    all
}

/// Plays all conversations that apply with several players at once, and lists the failures.
fn play_all<P: Player>(
    cut: Cut,
    dialect: Dialect,
    applies: impl Fn(&Conversation) -> bool,
    player: impl Fn() -> P + Sync,
) {
    let mut chosen = conversations();
    chosen.retain(|conversation| {
        applies(conversation) && !(conversation.only_whole && cut == Cut::Bytes)
    });
    // Conversations that wait go first: the others fill the time.
    chosen.sort_by_key(|conversation| std::cmp::Reverse(conversation.waits()));
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut player = player();
                while let Some(conversation) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = play(conversation, dialect, &mut player) {
                        wrong.lock().expect("no player panics with it").push(why);
                    }
                }
            });
        }
    });
    let mut wrong = wrong.into_inner().expect("no player panics with it");
    wrong.sort();
    let (all, bad) = (chosen.len(), wrong.len());
    assert!(wrong.is_empty(), "{bad} of {all} went wrong:\n\n{}", wrong.join("\n\n"));
    println!("{all} conversations");
}

fn play_live(program: Program, cut: Cut) {
    let dialect = if program.is_before_1_6_40() { Dialect::Before } else { Dialect::Newest };
    let applies = |conversation: &Conversation| {
        conversation.waits() <= REAL_WAIT_MAX
            && !conversation.not_live
            && !(conversation.not_oracle && program == Program::Memcached)
    };
    play_all(cut, dialect, applies, || Live::new(program, cut));
}

fn play_core(cut: Cut) {
    // Only a process reads the files that flags name; the core does not.
    let needs_file = |flag: &String| flag.contains('{');
    let applies = |conversation: &Conversation| !conversation.flags.iter().any(needs_file);
    play_all(cut, Dialect::Newest, applies, || Still::new(cut));
}

#[test]
fn core_agrees_with_the_transcripts() {
    play_core(Cut::Whole);
}

#[test]
fn core_agrees_byte_by_byte() {
    play_core(Cut::Bytes);
}

#[test]
fn tollgate_agrees_with_the_transcripts() {
    play_live(Program::Tollgate, Cut::Whole);
}

#[test]
fn tollgate_agrees_byte_by_byte() {
    play_live(Program::Tollgate, Cut::Bytes);
}

#[test]
fn oracle_agrees_with_the_transcripts() {
    play_live(Program::Memcached, Cut::Whole);
}

#[test]
fn oracle_agrees_byte_by_byte() {
    play_live(Program::Memcached, Cut::Bytes);
}
