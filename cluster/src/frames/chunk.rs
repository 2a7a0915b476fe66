//! `Chunk`: a part of a copy on its way to a learner, first keys, then results.
//!
//! The frame is part of the stream, as those in `copies` are. Not here: the request for a chunk
//! (`copies`), the choice of its keys (`replica`).

use super::copies::{put_cursor, read_cursor};
use super::fields::{Fields, put_copy, put_position, put_stream};
use super::records::{
    KEY_BYTES_MAX, KeyState, RecordResult, put_state, read_state, result_kind, state_kind,
};
use super::{FrameError, FrameKind, begin, end};
use crate::id::{CopyId, OpStreamId, Partition, Term};
use crate::position::Position;

/// The fields of a chunk before its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The partition.
    pub partition: Partition,
    /// The learner.
    pub to: CopyId,
    /// The primary.
    pub from: CopyId,
    /// The primary's term.
    pub term: Term,
    /// The number of the start that the chunk belongs to.
    pub start: u32,
    /// Whether it is the first chunk of this start.
    pub is_first: bool,
    /// The primary's last record.
    pub last: Position,
    /// The partition's time less the primary's monotonic clock; wraps.
    pub ahead_ns: u64,
    /// The primary's monotonic clock, in nanoseconds.
    pub time_ns: u64,
    /// The newest time of a record of the partition.
    pub pt_ns: u64,
}

/// A result within a chunk, with the operation's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportedResult<'a> {
    /// The operation's number in its op stream.
    pub number: u64,
    /// The result.
    pub result: RecordResult<'a>,
}

/// The results of one op stream in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamResults {
    /// The op stream.
    pub stream: OpStreamId,
    /// The op stream is done with all numbers below.
    pub done: u64,
    /// The number of results that follow.
    pub count: u32,
}

/// Writes a [`Chunk`]: first its keys, then the results.
#[derive(Debug)]
pub struct ChunkWriter<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
    keys_at: usize,
    keys: u32,
    streams_at: usize,
    streams: u32,
    results_at: usize,
    results: u32,
}

impl<'a> ChunkWriter<'a> {
    /// Begins the frame.
    pub fn new(chunk: &Chunk, out: &'a mut Vec<u8>) -> Self {
        let at = begin(out, FrameKind::Chunk);
        out.extend_from_slice(&chunk.partition.0.to_le_bytes());
        put_copy(out, chunk.to);
        put_copy(out, chunk.from);
        out.extend_from_slice(&chunk.term.0.to_le_bytes());
        out.extend_from_slice(&chunk.start.to_le_bytes());
        out.push(u8::from(chunk.is_first));
        put_position(out, chunk.last);
        out.extend_from_slice(&chunk.ahead_ns.to_le_bytes());
        out.extend_from_slice(&chunk.time_ns.to_le_bytes());
        out.extend_from_slice(&chunk.pt_ns.to_le_bytes());
        let keys_at = out.len();
        out.extend_from_slice(&[0; 4]);
        Self { out, at, keys_at, keys: 0, streams_at: 0, streams: 0, results_at: 0, results: 0 }
    }

    /// Adds a key. All keys come before the first op stream.
    pub fn key(&mut self, key: &[u8], state: &KeyState<'_>) {
        debug_assert!(!matches!(state, KeyState::Limit { .. }), "only records have a short form");
        self.keys += 1;
        self.out.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.out.push(state_kind(state));
        put_state(self.out, state);
        self.out.extend_from_slice(key);
    }

    fn begin_streams(&mut self) {
        if self.streams_at == 0 {
            self.out[self.keys_at..self.keys_at + 4].copy_from_slice(&self.keys.to_le_bytes());
            self.streams_at = self.out.len();
            self.out.extend_from_slice(&[0; 4]);
        }
    }

    fn end_stream(&mut self) {
        if self.results_at > 0 {
            let at = self.results_at;
            self.out[at..at + 4].copy_from_slice(&self.results.to_le_bytes());
        }
    }

    /// Begins the results of an op stream.
    pub fn stream(&mut self, stream: OpStreamId, done: u64) {
        self.begin_streams();
        self.end_stream();
        self.streams += 1;
        put_stream(self.out, stream);
        self.out.extend_from_slice(&done.to_le_bytes());
        self.results_at = self.out.len();
        self.results = 0;
        self.out.extend_from_slice(&[0; 4]);
    }

    /// Adds a result of the op stream.
    pub fn result(&mut self, result: &ExportedResult<'_>) {
        self.results += 1;
        self.out.extend_from_slice(&result.number.to_le_bytes());
        self.out.push(result_kind(&result.result));
        match result.result {
            RecordResult::Number(value) => self.out.extend_from_slice(&value.to_le_bytes()),
            RecordResult::Bytes(bytes) => {
                self.out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
                self.out.extend_from_slice(bytes);
            }
            RecordResult::None => {}
        }
    }

    /// The bytes of the frame up to now.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.out.len() - self.at
    }

    /// Ends the frame. `cursor` is where the next chunk begins; none for the last chunk.
    pub fn finish(mut self, cursor: Option<&[u8]>) {
        self.begin_streams();
        self.end_stream();
        self.out[self.streams_at..self.streams_at + 4].copy_from_slice(&self.streams.to_le_bytes());
        put_cursor(self.out, cursor);
        end(self.out, self.at);
    }
}

/// Reads a [`Chunk`]: its fields, then its keys, then the op streams with their results.
#[derive(Debug, Clone)]
pub struct ChunkReader<'a> {
    chunk: Chunk,
    fields: Fields<'a>,
    keys: u32,
    streams: Option<u32>,
    results: u32,
}

impl<'a> ChunkReader<'a> {
    /// Reads the fields before the keys.
    ///
    /// # Errors
    ///
    /// If the fields are malformed.
    pub fn new(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let chunk = Chunk {
            partition: fields.partition()?,
            to: fields.copy()?,
            from: fields.copy()?,
            term: fields.term()?,
            start: fields.u32()?,
            is_first: fields.flag()?,
            last: fields.position()?,
            ahead_ns: fields.u64()?,
            time_ns: fields.u64()?,
            pt_ns: fields.u64()?,
        };
        let keys = fields.u32()?;
        Ok(Self { chunk, fields, keys, streams: None, results: 0 })
    }

    /// The fields before the keys.
    #[must_use]
    pub fn chunk(&self) -> &Chunk {
        &self.chunk
    }

    /// The next key; none after the last.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn next_key(&mut self) -> Result<Option<(&'a [u8], KeyState<'a>)>, FrameError> {
        if self.keys == 0 {
            return Ok(None);
        }
        self.keys -= 1;
        let length = usize::from(self.fields.u16()?);
        if length > KEY_BYTES_MAX {
            return Err(FrameError::Range("key"));
        }
        let kind = self.fields.u8()?;
        let state = read_state(kind, &mut self.fields)?;
        if matches!(state, KeyState::Unchanged | KeyState::Deleted) {
            return Err(FrameError::Range("state of a piece"));
        }
        Ok(Some((self.fields.bytes(length)?, state)))
    }

    /// The next op stream, once all keys and all results of the op stream before are read; none
    /// after the last.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn next_stream(&mut self) -> Result<Option<StreamResults>, FrameError> {
        let streams = match self.streams {
            Some(streams) => streams,
            None => self.fields.u32()?,
        };
        self.streams = Some(streams);
        if streams == 0 {
            return Ok(None);
        }
        self.streams = Some(streams - 1);
        let stream = StreamResults {
            stream: self.fields.stream()?,
            done: self.fields.u64()?,
            count: self.fields.u32()?,
        };
        self.results = stream.count;
        Ok(Some(stream))
    }

    /// The next result of the op stream; none after the last.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn next_result(&mut self) -> Result<Option<ExportedResult<'a>>, FrameError> {
        if self.results == 0 {
            return Ok(None);
        }
        self.results -= 1;
        let number = self.fields.u64()?;
        let result = match self.fields.u8()? {
            0 => RecordResult::None,
            1 => RecordResult::Number(self.fields.u64()?),
            2 => {
                let length = self.fields.u16()?;
                RecordResult::Bytes(self.fields.bytes(usize::from(length))?)
            }
            _ => return Err(FrameError::Range("result")),
        };
        Ok(Some(ExportedResult { number, result }))
    }

    /// The cursor of the next chunk; none for the last chunk. Called once all op streams are read.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    pub fn finish(mut self) -> Result<Option<&'a [u8]>, FrameError> {
        let cursor = read_cursor(&mut self.fields)?;
        self.fields.end()?;
        Ok(cursor)
    }
}
