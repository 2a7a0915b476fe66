//! A node: its sockets and its rounds.
//!
//! Here: reading, placing requests, performing or forwarding them, writing. Not here: one request
//! (`counts`), the frames of the link (`frame`).

use std::convert::Infallible;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, ErrorKind};

use cluster::id::NodeId;
use cluster::placement::ketama::ring_name;
use cluster::placement::{Member, Placement, Scheme};
use load::bare::BareTable;
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::NodeOptions;
use crate::client::Client;
use crate::counts::{Ask, Counts, PARTITION_BITS};
use crate::frame::{
    ACKNOWLEDGED, ANSWERS, FORWARD, RECORD_BYTES, RECORDS, Record, begin_frame, end_frame,
    first_frame, u16_at, u32_at, u64_at,
};
use crate::peer::Peer;
use crate::request::{Decoded, decode};

const EVENTS: usize = 1024;
/// The most bytes of one read.
const READ_BYTES: usize = 256 << 10;
const LISTENER: Token = Token(usize::MAX);
const LINK: Token = Token(usize::MAX - 1);
/// Keys that are placed at once.
const PLACED: usize = 16;

/// A request of a client, with the end of its line in the client's input.
struct Line {
    ask: Ask,
    end: usize,
}

/// The requests of one client in a round.
struct ClientBatch {
    client: usize,
    /// The position behind its last request in the list of lines.
    end: usize,
    wants_sums: bool,
}

/// A node.
pub(crate) struct Node {
    poll: Poll,
    listener: TcpListener,
    placement: Placement,
    /// Whether this node owns each partition.
    owned: Vec<bool>,
    copies: u8,
    counts: Counts,
    peer: Peer,
    /// Numbers are never used again, because an answer may still come.
    clients: Vec<Option<Client>>,
    /// Clients to write to in this round.
    due: Vec<usize>,
    lines: Vec<Line>,
    batches: Vec<ClientBatch>,
    /// The requests of a forward.
    forwarded: Vec<Ask>,
    /// Emptied texts.
    spare: Vec<Vec<u8>>,
}

impl Node {
    pub(crate) fn new(options: &NodeOptions, link: TcpStream) -> io::Result<Self> {
        let poll = Poll::new()?;
        let own = options.clients[usize::from(options.node)];
        let mut listener = TcpListener::bind(own)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let mut peer = Peer::new(link);
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut peer.stream, LINK, both)?;
        let placement = Placement::new(Scheme::Ketama, PARTITION_BITS)
            .ok_or_else(|| io::Error::from(ErrorKind::InvalidInput))?;
        let members: Vec<Member> = (0..)
            .zip(&options.clients)
            .map(|(number, address)| Member {
                node: NodeId(number),
                ring_name: ring_name(&address.ip().to_string(), address.port()),
                weight: 1,
                zone: String::new(),
            })
            .collect();
        let owner = Some(NodeId(options.node.into()));
        let owners = placement.targets(&members, 1);
        Ok(Self {
            poll,
            listener,
            placement,
            owned: owners.iter().map(|owners| owners.primary() == owner).collect(),
            copies: options.copies,
            counts: Counts::new(options.copies),
            peer,
            clients: Vec::new(),
            due: Vec::new(),
            lines: Vec::new(),
            batches: Vec::new(),
            forwarded: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// Runs rounds until the link breaks.
    pub(crate) fn run(mut self) -> io::Result<Infallible> {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            self.poll.poll(&mut events, None)?;
            for event in &events {
                self.read(event, &mut buffer)?;
            }
            self.place();
            self.perform_all();
            self.peer.write()?;
            let mut due = std::mem::take(&mut self.due);
            for client in due.drain(..) {
                self.write(client);
            }
            self.due = due;
        }
    }

    fn read(&mut self, event: &Event, buffer: &mut [u8]) -> io::Result<()> {
        match event.token() {
            LISTENER => self.accept(),
            LINK => {
                self.peer.read(buffer)?;
                self.hear()
            }
            Token(number) => {
                let Some(client) = &mut self.clients[number] else { return Ok(()) };
                let decoded = client.read(buffer).and_then(|()| self.decode(number));
                if decoded.is_err() {
                    self.clients[number] = None;
                }
                Ok(())
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) => {
                    stream.set_nodelay(true)?;
                    let token = Token(self.clients.len());
                    let both = Interest::READABLE | Interest::WRITABLE;
                    self.poll.registry().register(&mut stream, token, both)?;
                    self.clients.push(Some(Client::new(stream)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Decodes the requests in a client's input.
    fn decode(&mut self, number: usize) -> io::Result<()> {
        let Some(client) = &self.clients[number] else { return Ok(()) };
        let (mut end, mut wants_sums) = (0, false);
        loop {
            match decode(&client.input[end..]) {
                Decoded::Request(verb, key, bytes) => {
                    end += bytes;
                    let ask = Ask { verb, key, partition: 0, home: BareTable::home(key) };
                    self.lines.push(Line { ask, end });
                }
                Decoded::Stats => {
                    wants_sums = true;
                    break;
                }
                Decoded::Part => break,
                Decoded::Unknown => return Err(ErrorKind::InvalidData.into()),
            }
        }
        self.batches.push(ClientBatch { client: number, end: self.lines.len(), wants_sums });
        Ok(())
    }

    /// Finds the partition of each request and fetches its memory.
    fn place(&mut self) {
        let mut touched = 0;
        for lines in self.lines.chunks_mut(PLACED) {
            let mut keys: [&[u8]; PLACED] = [&[]; PLACED];
            for (key, line) in keys.iter_mut().zip(lines.iter()) {
                *key = &line.ask.key;
            }
            let mut partitions = [0; PLACED];
            self.placement.partitions_of(&keys[..lines.len()], &mut partitions);
            for (line, partition) in lines.iter_mut().zip(partitions) {
                line.ask.partition = partition as u16;
                touched ^= self.counts.touch(line.ask.home, line.ask.partition);
            }
        }
        black_box(touched);
    }

    /// Performs the requests of this round on own keys and forwards the others.
    fn perform_all(&mut self) {
        let batches = std::mem::take(&mut self.batches);
        let mut first = 0;
        for ClientBatch { client, end, wants_sums } in &batches {
            self.perform_batch(*client, first, *end);
            if *wants_sums {
                self.write_sums(*client);
            }
            first = *end;
        }
        self.lines.clear();
        self.batches = batches;
        self.batches.clear();
    }

    fn perform_batch(&mut self, number: usize, mut first: usize, end: usize) {
        let Some(client) = &mut self.clients[number] else { return };
        let mut start = 0;
        while first < end {
            let owned = |line: &Line| self.owned[usize::from(line.ask.partition)];
            let is_own = owned(&self.lines[first]);
            let run = &self.lines[first..end];
            let run = &run[..run.iter().take_while(|line| owned(line) == is_own).count()];
            let stop = run[run.len() - 1].end;
            if is_own {
                let is_direct = self.copies == 1 && client.has_nothing_held();
                let mut text = self.spare.pop().unwrap_or_default();
                let out = if is_direct { &mut client.output } else { &mut text };
                for line in run {
                    self.counts.perform(&line.ask, false, out, &mut self.peer.records);
                }
                if is_direct {
                    self.spare.push(text);
                } else {
                    client.hold(self.peer.position(), text);
                    self.peer.wait(number);
                }
            } else {
                let partitions = run.iter().map(|line| line.ask.partition);
                self.peer.forward(number, partitions, &client.input[start..stop]);
                client.hold_place();
            }
            first += run.len();
            start = stop;
        }
        client.input.drain(..start);
        note_due(client, number, &mut self.due);
    }

    /// Writes the sums that prove a run.
    fn write_sums(&mut self, number: usize) {
        let Some(client) = &mut self.clients[number] else { return };
        // The request is the rest of the input.
        client.input.clear();
        let mut text = String::new();
        for (name, are_owned) in [("owned", true), ("copied", false)] {
            let sums = self.counts.sums(&self.owned, are_owned);
            // Writing to a String cannot fail.
            let _ = write!(text, "STAT {name}_counts {}\r\n", sums.counts);
            let _ = write!(text, "STAT {name}_digest {}\r\n", sums.digest);
        }
        client.output.extend_from_slice(text.as_bytes());
        client.output.extend_from_slice(b"END\r\n");
    }

    fn write(&mut self, number: usize) {
        let Some(client) = &mut self.clients[number] else { return };
        client.is_due = false;
        client.release(self.peer.acknowledged, &mut self.spare);
        if client.write().is_err() {
            self.clients[number] = None;
        }
    }

    /// Handles all whole frames of the other node.
    fn hear(&mut self) -> io::Result<()> {
        let mut input = std::mem::take(&mut self.peer.input);
        let mut start = 0;
        while let Some((kind, body, end)) = first_frame(&input[start..]) {
            match kind {
                RECORDS => self.install(body)?,
                ACKNOWLEDGED => {
                    let (clients, due) = (&mut self.clients, &mut self.due);
                    self.peer.acknowledge(u64_at(body, 0), &mut self.spare, |number| {
                        if let Some(client) = &mut clients[number] {
                            note_due(client, number, due);
                        }
                    });
                }
                FORWARD => self.perform_forward(body)?,
                ANSWERS => self.take_answers(body)?,
                _ => return Err(ErrorKind::InvalidData.into()),
            }
            start += end;
        }
        input.drain(..start);
        self.peer.input = input;
        Ok(())
    }

    fn install(&mut self, body: &[u8]) -> io::Result<()> {
        let (records, _) = body[8..].as_chunks::<RECORD_BYTES>();
        let mut touched = 0;
        for group in records.chunks(PLACED) {
            let mut homes = [0; PLACED];
            for (home, record) in homes.iter_mut().zip(group) {
                let Record { key, partition, .. } = Record::read(record);
                *home = BareTable::home(key);
                touched ^= self.counts.touch(*home, partition);
            }
            for (home, record) in homes.iter().zip(group) {
                if !self.counts.install(&Record::read(record), *home) {
                    return Err(io::Error::other("a record is missing"));
                }
            }
        }
        black_box(touched);
        self.peer.installed = Some(u64_at(body, 0));
        Ok(())
    }

    fn perform_forward(&mut self, body: &[u8]) -> io::Result<()> {
        let (segments, requests) = (u32_at(body, 0) as usize, u32_at(body, 4) as usize);
        let partitions = 8 + 2 * segments;
        let mut lines = &body[partitions + 2 * requests..];
        let mut touched = 0;
        self.forwarded.clear();
        for number in 0..requests {
            let Decoded::Request(verb, key, bytes) = decode(lines) else {
                return Err(ErrorKind::InvalidData.into());
            };
            let partition = u16_at(body, partitions + 2 * number);
            let home = BareTable::home(key);
            touched ^= self.counts.touch(home, partition);
            self.forwarded.push(Ask { verb, key, partition, home });
            lines = &lines[bytes..];
        }
        black_box(touched);
        let is_held = self.copies > 1;
        let mut frame = self.spare.pop().unwrap_or_default();
        let out = if is_held { &mut frame } else { &mut self.peer.output };
        let start = begin_frame(out, ANSWERS);
        let lengths = out.len();
        out.resize(lengths + 4 * segments, 0);
        let mut asks = self.forwarded.iter();
        for segment in 0..segments {
            let before = out.len();
            for ask in asks.by_ref().take(usize::from(u16_at(body, 8 + 2 * segment))) {
                self.counts.perform(ask, true, out, &mut self.peer.records);
            }
            let length = (out.len() - before) as u32;
            out[lengths + 4 * segment..][..4].copy_from_slice(&length.to_le_bytes());
        }
        end_frame(out, start);
        if is_held {
            self.peer.answer(frame);
        } else {
            self.spare.push(frame);
        }
        Ok(())
    }

    fn take_answers(&mut self, body: &[u8]) -> io::Result<()> {
        let segments = self.peer.answered().ok_or(ErrorKind::InvalidData)?;
        let mut start = 4 * segments.len();
        for (position, (number, _)) in segments.iter().enumerate() {
            let end = start + u32_at(body, 4 * position) as usize;
            if let Some(client) = &mut self.clients[*number] {
                client.fill_place(&body[start..end]);
                note_due(client, *number, &mut self.due);
            }
            start = end;
        }
        Ok(())
    }
}

fn note_due(client: &mut Client, number: usize, due: &mut Vec<usize>) {
    if !client.is_due {
        client.is_due = true;
        due.push(number);
    }
}
