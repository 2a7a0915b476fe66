//! `Records`: changes of keys, each with its position in the history of its partition and the
//! result of its operation.

use super::fields::{Fields, put_stream, term};
use super::{FrameError, FrameKind, begin, end};
use crate::id::OpStreamId;
use crate::id::{Partition, Term};
use crate::rules::{Bug, Rules};

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// The longest policy and the longest state of a [`KeyState::Limit`], in bytes.
pub const LIMIT_BYTES_MAX: usize = 255;
/// The length of a record's fixed-width fields, in bytes.
const FIXED_BYTES: usize = 18;
/// The length of a section's header, in bytes.
const SECTION_BYTES: usize = 36;
/// Marks a key of 255 bytes or more; its length follows in two bytes.
const LONG_KEY: u8 = 255;
/// The bits of a record's kind.
const STATE_BITS: u8 = 0b0000_0011;
const RESULT_BITS: u8 = 0b0000_1100;
const TIME_BIT: u8 = 0b0001_0000;
/// Beside the bits of an item: a limit state.
const LIMIT_BIT: u8 = 0b0010_0000;
/// The bits of an item and of a limit state.
const ITEM: u8 = 1;
const LIMIT: u8 = ITEM | LIMIT_BIT;

/// The state of a key after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState<'a> {
    /// A counter without flags and deadline. Its cas unique is the record's term and lsn.
    Counter(u64),
    /// A whole item, in the state machine's own encoding.
    Item(&'a [u8]),
    /// An item that is a limit state and has no more than these two parts, in the state machine's
    /// own encoding. Its cas unique is the record's term and lsn. Only in records, from peer
    /// version 6 on.
    Limit {
        /// The policy, 1 to [`LIMIT_BYTES_MAX`] bytes. A frame has it once for records that follow
        /// each other.
        policy: &'a [u8],
        /// The rest, at most [`LIMIT_BYTES_MAX`] bytes.
        state: &'a [u8],
    },
    /// The key was removed.
    Deleted,
    /// The key did not change; only the result is new.
    Unchanged,
}

/// The result of the operation that made a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordResult<'a> {
    /// A number. Only beside [`KeyState::Counter`], whose value it is, and [`KeyState::Limit`].
    Number(u64),
    /// Any other result.
    Bytes(&'a [u8]),
    /// No operation made the record, or its result need not be kept.
    None,
}

/// One change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The partition.
    pub partition: Partition,
    /// The operation's number less the first number of the section.
    pub place: u16,
    /// The term in which the record was made.
    pub term: Term,
    /// The record's number in its partition.
    pub lsn: u64,
    /// The partition's time, if it differs from the frame's time plus the partition's offset.
    pub pt_ns: Option<u64>,
    /// The key, at most [`KEY_BYTES_MAX`] bytes.
    pub key: &'a [u8],
    /// The key's new state.
    pub state: KeyState<'a>,
    /// The result for the operation's client.
    pub result: RecordResult<'a>,
}

/// The common fields of a section's records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// The op stream of the operations that made the records. Node 0: no operations made them.
    pub stream: OpStreamId,
    /// The number that a record's `place` is added to.
    pub first: u64,
    /// The op stream is done with all numbers below.
    pub done: u64,
    /// The number of records; not 0.
    pub count: u16,
}

/// Writes one frame of records after another, reusing its memory. One for each worker and link.
#[derive(Debug, Default)]
pub struct RecordsWriter {
    out: Vec<u8>,
    section: Section,
    /// The index of the section, if one was begun.
    section_at: Option<usize>,
    /// The policy of the frame's last limit state; empty if it has none yet.
    policy: Vec<u8>,
    rules: Rules,
}

impl RecordsWriter {
    /// A writer without a frame.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Begins a frame. `time_ns` is the sender's monotonic clock.
    #[inline]
    pub fn begin(&mut self, time_ns: u64) {
        self.out.clear();
        self.section_at = None;
        // A frame has every policy that its records need: the receiver may read it on another
        // connection than the frame before.
        if !self.rules.lack(Bug::PolicyOutlivesFrame) {
            self.policy.clear();
        }
        begin(&mut self.out, FrameKind::Records);
        self.out.extend_from_slice(&time_ns.to_le_bytes());
    }

    /// Whether the frame has no records yet.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.section_at.is_none() && self.out.len() <= super::HEADER_BYTES + 8
    }

    /// Begins a section: the records that follow belong to `stream`. A section without records is
    /// not sent.
    pub fn section(&mut self, stream: OpStreamId, first: u64, done: u64) {
        self.close();
        self.section = Section { stream, first, done, count: 0 };
    }

    /// Appends a record to the section. A key has at most [`KEY_BYTES_MAX`] bytes, a result 65,535.
    #[inline]
    pub fn record(&mut self, record: &Record<'_>) {
        debug_assert!(record.key.len() <= KEY_BYTES_MAX, "the protocol bounds keys");
        if self.section_at.is_none() || self.section.count == u16::MAX {
            self.open();
        }
        self.section.count += 1;
        let length = record.key.len();
        let (state, result) = (state_kind(&record.state), result_kind(&record.result));
        let time = if record.pt_ns.is_some() { TIME_BIT } else { 0 };
        let mut fixed = [0; FIXED_BYTES];
        fixed[..2].copy_from_slice(&record.partition.0.to_le_bytes());
        fixed[2] = u8::try_from(length).unwrap_or(LONG_KEY);
        fixed[3] = state | result << 2 | time;
        fixed[4..6].copy_from_slice(&record.place.to_le_bytes());
        fixed[6..10].copy_from_slice(&record.term.0.to_le_bytes());
        fixed[10..].copy_from_slice(&record.lsn.to_le_bytes());
        self.out.extend_from_slice(&fixed);
        if length >= usize::from(LONG_KEY) {
            self.out.extend_from_slice(&(length as u16).to_le_bytes());
        }
        if let Some(pt_ns) = record.pt_ns {
            self.out.extend_from_slice(&pt_ns.to_le_bytes());
        }
        match record.state {
            KeyState::Limit { policy, state } => self.limit(policy, state),
            _ => put_state(&mut self.out, &record.state),
        }
        match (record.result, record.state) {
            (RecordResult::Bytes(bytes), _) => {
                self.out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
                self.out.extend_from_slice(bytes);
            }
            (RecordResult::Number(number), KeyState::Limit { .. }) => {
                self.out.extend_from_slice(&number.to_le_bytes());
            }
            _ => {}
        }
        self.out.extend_from_slice(record.key);
    }

    /// Appends a limit state; without the policy, if it is that of the limit state before.
    #[inline]
    fn limit(&mut self, policy: &[u8], state: &[u8]) {
        debug_assert!(policy.len().max(state.len()) <= LIMIT_BYTES_MAX, "the caller bounds both");
        let policy = if self.policy == policy { &[][..] } else { policy };
        self.out.extend_from_slice(&[policy.len() as u8, state.len() as u8]);
        if !policy.is_empty() {
            self.policy.clear();
            self.policy.extend_from_slice(policy);
            self.out.extend_from_slice(policy);
        }
        self.out.extend_from_slice(state);
    }

    /// Ends the frame and returns its bytes, for the stream.
    #[inline]
    pub fn finish(&mut self) -> &[u8] {
        self.close();
        end(&mut self.out, 0);
        &self.out
    }

    fn open(&mut self) {
        self.close();
        self.section_at = Some(self.out.len());
        self.section.count = 0;
        let Section { stream, first, done, .. } = self.section;
        put_stream(&mut self.out, stream);
        self.out.extend_from_slice(&first.to_le_bytes());
        self.out.extend_from_slice(&done.to_le_bytes());
        self.out.extend_from_slice(&[0, 0]);
    }

    fn close(&mut self) {
        if let Some(at) = self.section_at.take() {
            let count = at + SECTION_BYTES - 2;
            self.out[count..count + 2].copy_from_slice(&self.section.count.to_le_bytes());
        }
    }
}

/// Reads the records of a frame one by one, without copying them.
#[derive(Debug, Clone)]
pub struct RecordsReader<'a> {
    fields: Fields<'a>,
    time_ns: u64,
    section: Section,
    /// Records of the section that were not read yet.
    left: u16,
    /// The policy of the last limit state; empty if there was none.
    policy: &'a [u8],
}

impl<'a> RecordsReader<'a> {
    /// Begins to read the body of a frame.
    ///
    /// # Errors
    ///
    /// If the body is too short.
    pub fn new(body: &'a [u8]) -> Result<Self, FrameError> {
        let mut fields = Fields(body);
        let time_ns = fields.u64()?;
        Ok(Self { fields, time_ns, section: Section::default(), left: 0, policy: &[] })
    }

    /// The sender's monotonic clock when it made the frame.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// The section of the record that was read last.
    #[must_use]
    pub fn section(&self) -> &Section {
        &self.section
    }

    /// The next record; none after the last.
    ///
    /// # Errors
    ///
    /// If the frame is malformed.
    #[inline]
    pub fn next_record(&mut self) -> Result<Option<Record<'a>>, FrameError> {
        if self.left == 0 {
            if self.fields.0.is_empty() {
                return Ok(None);
            }
            self.next_section()?;
        }
        self.left -= 1;
        let fixed = self.fields.array::<FIXED_BYTES>()?;
        let [p0, p1, length, kind, q0, q1, t0, t1, t2, t3, lsn @ ..] = fixed;
        let state_kind = kind & (STATE_BITS | LIMIT_BIT);
        if kind & !(STATE_BITS | RESULT_BITS | TIME_BIT | LIMIT_BIT) != 0 {
            return Err(FrameError::Range("kind of a record"));
        }
        let length = if length == LONG_KEY { self.long_key()? } else { usize::from(length) };
        let pt_ns = if kind & TIME_BIT == 0 { None } else { Some(self.fields.u64()?) };
        let state = match state_kind {
            LIMIT => self.limit()?,
            _ => read_state(state_kind, &mut self.fields)?,
        };
        let result = match ((kind & RESULT_BITS) >> 2, state) {
            (0, _) => RecordResult::None,
            (1, KeyState::Counter(value)) => RecordResult::Number(value),
            (1, KeyState::Limit { .. }) => RecordResult::Number(self.fields.u64()?),
            (2, _) => {
                let length = self.fields.u16()?;
                RecordResult::Bytes(self.fields.bytes(usize::from(length))?)
            }
            _ => return Err(FrameError::Range("result of a record")),
        };
        Ok(Some(Record {
            partition: Partition(u16::from_le_bytes([p0, p1])),
            place: u16::from_le_bytes([q0, q1]),
            term: term(u32::from_le_bytes([t0, t1, t2, t3]))?,
            lsn: u64::from_le_bytes(lsn),
            pt_ns,
            key: self.fields.bytes(length)?,
            state,
            result,
        }))
    }

    #[inline]
    fn limit(&mut self) -> Result<KeyState<'a>, FrameError> {
        let [policy_bytes, state_bytes] = self.fields.array()?;
        if policy_bytes > 0 {
            let policy = self.fields.bytes(usize::from(policy_bytes))?;
            if policy == self.policy {
                return Err(FrameError::Range("policy that is known"));
            }
            self.policy = policy;
        }
        if self.policy.is_empty() {
            return Err(FrameError::Range("policy that is not known"));
        }
        let state = self.fields.bytes(usize::from(state_bytes))?;
        Ok(KeyState::Limit { policy: self.policy, state })
    }

    /// Whether the section of the record that was read last has more records.
    #[must_use]
    #[inline]
    pub fn has_more_of_section(&self) -> bool {
        self.left > 0
    }

    fn long_key(&mut self) -> Result<usize, FrameError> {
        let length = usize::from(self.fields.u16()?);
        let is_right = (usize::from(LONG_KEY)..=KEY_BYTES_MAX).contains(&length);
        is_right.then_some(length).ok_or(FrameError::Range("key"))
    }

    fn next_section(&mut self) -> Result<(), FrameError> {
        self.section = Section {
            stream: self.fields.stream()?,
            first: self.fields.u64()?,
            done: self.fields.u64()?,
            count: self.fields.u16()?,
        };
        self.left = self.section.count;
        if self.left == 0 { Err(FrameError::Range("empty section")) } else { Ok(()) }
    }
}

/// The bits of a state in the kind of a record or of a key in a chunk.
pub(super) fn state_kind(state: &KeyState<'_>) -> u8 {
    match state {
        KeyState::Counter(_) => 0,
        KeyState::Item(_) => ITEM,
        KeyState::Limit { .. } => LIMIT,
        KeyState::Deleted => 2,
        KeyState::Unchanged => 3,
    }
}

pub(super) fn result_kind(result: &RecordResult<'_>) -> u8 {
    match result {
        RecordResult::None => 0,
        RecordResult::Number(_) => 1,
        RecordResult::Bytes(_) => 2,
    }
}

/// Appends a state; of a limit state, which only the writer of records knows, nothing.
#[inline]
pub(super) fn put_state(out: &mut Vec<u8>, state: &KeyState<'_>) {
    match state {
        KeyState::Counter(value) => out.extend_from_slice(&value.to_le_bytes()),
        KeyState::Item(bytes) => {
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        }
        KeyState::Limit { .. } | KeyState::Deleted | KeyState::Unchanged => {}
    }
}

#[inline]
pub(super) fn read_state<'a>(
    kind: u8,
    fields: &mut Fields<'a>,
) -> Result<KeyState<'a>, FrameError> {
    Ok(match kind {
        0 => KeyState::Counter(fields.u64()?),
        ITEM => {
            let length = fields.u32()?;
            KeyState::Item(fields.bytes(length as usize)?)
        }
        2 => KeyState::Deleted,
        3 => KeyState::Unchanged,
        _ => return Err(FrameError::Range("state")),
    })
}
