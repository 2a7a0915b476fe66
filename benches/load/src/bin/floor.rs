//! A bare counter server: the lower bound of counting over TCP, which `load` measures beside the
//! others.
//!
//! One thread. Each round reads all ready connections, finds the slots of all requested keys so
//! that their cache misses overlap, then counts, then writes once per connection. Here: the
//! requests that `load` sends for counters: `incr <key> 1`, `get <keys>`, `set` of a digit. Not
//! here: expiry, eviction, growth, statistics, locks, limits, keys of other lengths than 20 bytes;
//! any other request closes the connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::process::ExitCode;

use load::bare::{BareSlot, BareTable, write_count, write_value};
use load::keys::KEY_BYTES;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The most unanswered bytes of a connection: one read.
const INPUT_BYTES: usize = 64 << 10;
const EVENTS: usize = 1024;
const LISTENER: Token = Token(usize::MAX);

/// An operation on one key.
#[derive(Clone, Copy)]
enum Ask {
    Incr,
    Set(u8),
    /// True for the last key of its `get`.
    Get(bool),
}

struct Found {
    ask: Ask,
    key: [u8; KEY_BYTES],
    home: usize,
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    found: Vec<Found>,
    output: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, input: Vec::new(), found: Vec::new(), output: Vec::new() }
    }

    /// Reads once and decodes the requests. Returns a sum over the slots' contents: computing it
    /// reads the slots and so fetches them; the value has no use.
    fn read(&mut self, table: &BareTable, buffer: &mut [u8]) -> io::Result<u64> {
        let mut touched = 0;
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    self.input.extend_from_slice(&buffer[..bytes]);
                    touched ^= self.find(table)?;
                    if bytes < buffer.len() {
                        return Ok(touched);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(touched),
                Err(error) => return Err(error),
            }
        }
    }

    fn find(&mut self, table: &BareTable) -> io::Result<u64> {
        let (mut done, mut touched) = (0, 0);
        while let Some(length) = memchr::memchr(b'\n', &self.input[done..]) {
            let line = &self.input[done..done + length];
            let mut used = length + 1;
            let mut add = |ask, word: &[u8]| {
                let key = word.try_into().map_err(|_| ErrorKind::InvalidData)?;
                let home = BareTable::home(key);
                touched ^= table.touch(home);
                self.found.push(Found { ask, key, home });
                io::Result::Ok(())
            };
            if let Some(rest) = line.strip_prefix(b"incr ") {
                add(Ask::Incr, rest.strip_suffix(b" 1\r").ok_or(ErrorKind::InvalidData)?)?;
            } else if let Some(rest) = line.strip_prefix(b"get ") {
                // Each key is followed by a blank, the last one by the end of the line.
                let mut words = rest.chunks(KEY_BYTES + 1).peekable();
                while let Some(word) = words.next() {
                    let key = word.split_last().map_or(word, |(_, key)| key);
                    add(Ask::Get(words.peek().is_none()), key)?;
                }
            } else if let Some(rest) = line.strip_prefix(b"set ") {
                let key = rest.strip_suffix(b" 0 0 1\r").ok_or(ErrorKind::InvalidData)?;
                let Some(block) = self.input.get(done + used..done + used + 3) else { break };
                used += block.len();
                add(Ask::Set(block[0].wrapping_sub(b'0')), key)?;
            } else if line == b"version\r" {
                self.output.extend_from_slice(b"VERSION 0\r\n");
            } else {
                return Err(ErrorKind::InvalidData.into());
            }
            done += used;
        }
        self.input.drain(..done);
        if self.input.len() > INPUT_BYTES {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(touched)
    }

    /// Executes the requests and writes all replies.
    fn answer(&mut self, table: &mut BareTable) -> io::Result<()> {
        let output = &mut self.output;
        for Found { ask, key, home } in self.found.drain(..) {
            let slot = table.slot(home, key);
            match ask {
                Ask::Incr if slot.is_used => {
                    slot.count += 1;
                    write_count(output, slot.count);
                }
                Ask::Incr => output.extend_from_slice(b"NOT_FOUND\r\n"),
                Ask::Set(count) => {
                    let count = u64::from(count);
                    *slot = BareSlot { count, key, partition: 0, is_used: true };
                    output.extend_from_slice(b"STORED\r\n");
                }
                Ask::Get(is_last) => {
                    if slot.is_used {
                        write_value(output, key, slot.count);
                    }
                    if is_last {
                        output.extend_from_slice(b"END\r\n");
                    }
                }
            }
        }
        self.write()
    }

    /// Writes as much of the pending output as the socket accepts.
    fn write(&mut self) -> io::Result<()> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.write(&self.output[written..]) {
                Ok(bytes) => written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..written);
        Ok(())
    }
}

fn main() -> ExitCode {
    let port = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let Some(port) = port else {
        eprintln!("floor: one argument, the port");
        return ExitCode::FAILURE;
    };
    match serve(port) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("floor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(port: u16) -> io::Result<std::convert::Infallible> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port)))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut table = BareTable::default();
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = vec![0; INPUT_BYTES];
    let mut events = Events::with_capacity(EVENTS);
    loop {
        poll.poll(&mut events, None)?;
        let mut touched = 0;
        for event in &events {
            if event.token() == LISTENER {
                accept(&poll, &listener, &mut connections)?;
            } else if let Some(place) = connections.get_mut(event.token().0)
                && let Some(connection) = place
            {
                match connection.read(&table, &mut buffer) {
                    Ok(more) => touched ^= more,
                    Err(_) => *place = None,
                }
            }
        }
        std::hint::black_box(touched);
        for event in &events {
            if let Some(place) = connections.get_mut(event.token().0)
                && let Some(connection) = place
                && connection.answer(&mut table).is_err()
            {
                *place = None;
            }
        }
    }
}

fn accept(
    poll: &Poll,
    listener: &TcpListener,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nodelay(true)?;
                let place = connections.iter().position(Option::is_none);
                let place = place.unwrap_or(connections.len());
                let interest = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(place), interest)?;
                if place == connections.len() {
                    connections.push(None);
                }
                connections[place] = Some(Connection::new(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
