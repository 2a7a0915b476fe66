//! A client's connection: its unread bytes, and its replies in order.
//!
//! Not here: the requests between them (`node`).

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;

/// A part of the replies that cannot be sent yet.
#[derive(Debug)]
enum Held {
    /// A text that may leave once the copy has acknowledged this frame of records.
    Until(u64, Vec<u8>),
    /// The place of a text that the other node sends.
    Away(Option<Vec<u8>>),
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    held: VecDeque<Held>,
    /// Whether this round writes to it.
    pub(crate) is_due: bool,
}

impl Client {
    pub(crate) fn new(stream: TcpStream) -> Self {
        let (input, output, held) = Default::default();
        Self { stream, input, output, held, is_due: false }
    }

    /// Whether replies may be appended to `output` at once.
    pub(crate) fn has_nothing_held(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn hold(&mut self, until: u64, text: Vec<u8>) {
        self.held.push_back(Held::Until(until, text));
    }

    pub(crate) fn hold_place(&mut self) {
        self.held.push_back(Held::Away(None));
    }

    /// Puts a text of the other node into the first empty place.
    pub(crate) fn fill_place(&mut self, text: &[u8]) {
        if matches!(self.held.front(), Some(Held::Away(None))) {
            self.held.pop_front();
            self.output.extend_from_slice(text);
            return;
        }
        let mut places = self.held.iter_mut().filter_map(|held| match held {
            Held::Away(place @ None) => Some(place),
            _ => None,
        });
        if let Some(place) = places.next() {
            *place = Some(text.to_vec());
        }
    }

    /// Moves all that may leave into the output; the copy has acknowledged up to `acknowledged`.
    /// Emptied texts go to `spare`.
    pub(crate) fn release(&mut self, acknowledged: u64, spare: &mut Vec<Vec<u8>>) {
        while let Some(held) = self.held.pop_front() {
            match held {
                Held::Until(position, mut text) if position <= acknowledged => {
                    self.output.append(&mut text);
                    spare.push(text);
                }
                Held::Away(Some(text)) => self.output.extend_from_slice(&text),
                later => {
                    self.held.push_front(later);
                    break;
                }
            }
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        read(&mut self.stream, &mut self.input, buffer)
    }

    pub(crate) fn write(&mut self) -> io::Result<()> {
        write(&mut self.stream, &mut self.output)
    }
}

/// Appends what the socket has to `input`.
pub(crate) fn read(
    stream: &mut TcpStream,
    input: &mut Vec<u8>,
    buffer: &mut [u8],
) -> io::Result<()> {
    loop {
        match stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                input.extend_from_slice(&buffer[..bytes]);
                if bytes < buffer.len() {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Writes as much of the output as the socket accepts.
pub(crate) fn write(stream: &mut TcpStream, output: &mut Vec<u8>) -> io::Result<()> {
    let mut written = 0;
    while written < output.len() {
        match stream.write(&output[written..]) {
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    output.drain(..written);
    Ok(())
}
