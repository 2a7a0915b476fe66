//! The other node: the bytes to it, and what waits for it.
//!
//! Here: the records and forwards that a round collects, the acknowledged position, texts that wait
//! for it. Not here: performing requests (`counts`), the round (`node`).

use std::collections::VecDeque;
use std::io;

use mio::net::TcpStream;

use crate::client::{read, write};
use crate::frame::{ACKNOWLEDGED, FORWARD, RECORDS, begin_frame, end_frame};

/// The link to the other node.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    /// The records of this round.
    pub(crate) records: Vec<u8>,
    /// The number of the last frame of records that was sent.
    sent: u64,
    pub(crate) acknowledged: u64,
    /// The number of a frame of records to acknowledge in this round.
    pub(crate) installed: Option<u64>,
    /// The clients of the segments that this round forwards, and the requests of each.
    segments: Vec<(usize, u16)>,
    partitions: Vec<u16>,
    lines: Vec<u8>,
    /// The clients of the forwards that are not answered, a list for each.
    away: VecDeque<Vec<(usize, u16)>>,
    /// Clients whose replies wait for an acknowledgement, in order of its number.
    waiting: VecDeque<(u64, usize)>,
    /// Frames of answers that wait for an acknowledgement, in order of its number.
    answers: VecDeque<(u64, Vec<u8>)>,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            records: Vec::new(),
            sent: 0,
            acknowledged: 0,
            installed: None,
            segments: Vec::new(),
            partitions: Vec::new(),
            lines: Vec::new(),
            away: VecDeque::new(),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// The frame of records that a reply of this round has to wait for.
    pub(crate) fn position(&self) -> u64 {
        self.sent + u64::from(!self.records.is_empty())
    }

    /// Adds requests of a client to the forward of this round.
    pub(crate) fn forward(
        &mut self,
        client: usize,
        partitions: impl ExactSizeIterator<Item = u16>,
        lines: &[u8],
    ) {
        self.segments.push((client, partitions.len() as u16));
        self.partitions.extend(partitions);
        self.lines.extend_from_slice(lines);
    }

    /// The segments of the oldest forward that is not answered.
    pub(crate) fn answered(&mut self) -> Option<Vec<(usize, u16)>> {
        self.away.pop_front()
    }

    pub(crate) fn wait(&mut self, client: usize) {
        self.waiting.push_back((self.position(), client));
    }

    /// Sends a frame of answers once all records so far are acknowledged.
    pub(crate) fn answer(&mut self, frame: Vec<u8>) {
        self.answers.push_back((self.position(), frame));
    }

    /// Notes an acknowledgement, releases answers, and passes the clients whose replies may leave
    /// to `release`. Emptied frames go to `spare`.
    pub(crate) fn acknowledge(
        &mut self,
        position: u64,
        spare: &mut Vec<Vec<u8>>,
        mut release: impl FnMut(usize),
    ) {
        self.acknowledged = position;
        while let Some((_, client)) = self.waiting.pop_front_if(|(until, _)| *until <= position) {
            release(client);
        }
        while let Some((_, mut frame)) = self.answers.pop_front_if(|(until, _)| *until <= position)
        {
            self.output.append(&mut frame);
            spare.push(frame);
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        read(&mut self.stream, &mut self.input, buffer)
    }

    /// Ends the frames of this round and writes them.
    pub(crate) fn write(&mut self) -> io::Result<()> {
        let out = &mut self.output;
        if !self.records.is_empty() {
            self.sent += 1;
            let start = begin_frame(out, RECORDS);
            out.extend_from_slice(&self.sent.to_le_bytes());
            out.append(&mut self.records);
            end_frame(out, start);
        }
        if let Some(number) = self.installed.take() {
            let start = begin_frame(out, ACKNOWLEDGED);
            out.extend_from_slice(&number.to_le_bytes());
            end_frame(out, start);
        }
        if !self.segments.is_empty() {
            let start = begin_frame(out, FORWARD);
            out.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
            out.extend_from_slice(&(self.partitions.len() as u32).to_le_bytes());
            let requests = self.segments.iter().map(|(_, requests)| *requests);
            for number in requests.chain(self.partitions.drain(..)) {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.append(&mut self.lines);
            end_frame(out, start);
            self.away.push_back(std::mem::take(&mut self.segments));
        }
        write(&mut self.stream, out)
    }
}
