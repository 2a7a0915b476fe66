//! One parked batch: its operations with their replies and lines, and the positions it needs.
//!
//! Not here: the queues of batches, and their release in order (`super`).

use super::Released;
use crate::id::{LinkIndex, Partition, Term};
use crate::replica::{OpenCause, Opening};
use crate::replica_set::LINKS_MAX;
use crate::rules::{Bug, Rules};

/// A position that a parked batch needs on a link.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// The link.
    pub link: LinkIndex,
    /// Everything before this position must be acknowledged.
    pub position: u64,
}

/// The most positions that a parked batch needs: one for each link that carried records of the
/// batch.
pub const NEEDS_MAX: usize = 8;

/// An operation of a parked batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParkedOp {
    /// The partition of its key.
    pub partition: Partition,
    /// The term in which the operation was done.
    pub term: Term,
    /// The index of the worker's op stream that counts its number; 0xffff if it has none.
    pub stream: u16,
    /// Its number in the op stream.
    pub number: u64,
    /// The operation's own needs, as bits into the needs of the batch.
    pub needs: u8,
    /// Flags for the server; see `frames::op_flags`.
    pub op_flags: u8,
    /// The index where its reply ends in the text.
    pub text_end: u32,
    /// The index where its line ends in the lines.
    pub line_end: u32,
    /// Whether it was released or sent again.
    is_over: bool,
}

impl ParkedOp {
    /// An operation without number, text and line.
    #[must_use]
    pub fn new(partition: Partition, term: Term, op_flags: u8) -> Self {
        Self {
            partition,
            term,
            stream: u16::MAX,
            number: 0,
            needs: 0,
            op_flags,
            text_end: 0,
            line_end: 0,
            is_over: false,
        }
    }
}

/// The replies of a batch. The memory is reused.
#[derive(Debug, Default)]
pub struct ParkedBatch {
    /// The server's key for the recipients of the replies.
    pub token: u64,
    /// When the operations were done, on the monotonic clock.
    pub(super) since_ns: u64,
    pub(super) ops: Vec<ParkedOp>,
    pub(super) needs: [Need; NEEDS_MAX],
    pub(super) needs_count: u8,
    /// The unmet needs, as bits.
    pub(super) left: u8,
    pub(super) is_opened: bool,
    /// The number of operations neither released nor sent again.
    pub(super) ops_left: u32,
    text: Vec<u8>,
    lines: Vec<u8>,
    /// Identifies this use of its index in `ParkedReplies`; 0 for none.
    pub(super) id: u64,
}

impl ParkedBatch {
    /// The operations.
    #[must_use]
    pub fn ops(&self) -> &[ParkedOp] {
        &self.ops
    }

    /// All replies, concatenated.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// The reply of the operation at index `place`.
    #[must_use]
    pub fn text_of(&self, place: usize) -> &[u8] {
        let from = place.checked_sub(1).map_or(0, |before| self.ops[before].text_end);
        &self.text[from as usize..self.ops[place].text_end as usize]
    }

    /// The line of the operation at index `place`.
    #[must_use]
    pub fn line_of(&self, place: usize) -> &[u8] {
        let from = place.checked_sub(1).map_or(0, |before| self.ops[before].line_end);
        &self.lines[from as usize..self.ops[place].line_end as usize]
    }

    /// Adds a need. Returns its bit.
    pub fn need(&mut self, need: Need) -> u8 {
        let count = usize::from(self.needs_count);
        if let Some(place) = self.needs[..count].iter().position(|known| known.link == need.link) {
            self.needs[place].position = self.needs[place].position.max(need.position);
            return 1 << place;
        }
        if count == NEEDS_MAX {
            // The caller must begin another parked batch before the needs exceed the maximum.
            debug_assert!(false, "a piece has {NEEDS_MAX} needs at most");
            return 0;
        }
        self.needs[count] = need;
        self.needs_count += 1;
        1 << count
    }

    /// Whether there is room for the needs of one more operation.
    #[must_use]
    pub fn has_room(&self) -> bool {
        usize::from(self.needs_count) + LINKS_MAX <= NEEDS_MAX
    }

    /// Whether the batch need not wait.
    #[must_use]
    pub fn needs_nothing(&self) -> bool {
        self.needs_count == 0
    }

    /// Adds an operation with its reply and its line.
    pub fn push(&mut self, op: ParkedOp, text: &[u8], line: &[u8]) {
        self.add_texts(text, line);
        let (text_end, line_end) = (self.text.len() as u32, self.lines.len() as u32);
        self.add(ParkedOp { text_end, line_end, ..op });
    }

    /// Adds the replies and the lines of operations that [`ParkedBatch::add`] adds.
    pub fn add_texts(&mut self, texts: &[u8], lines: &[u8]) {
        self.text.extend_from_slice(texts);
        self.lines.extend_from_slice(lines);
    }

    /// Adds an operation whose reply and line were added. Its `text_end` and `line_end` are set.
    #[inline]
    pub fn add(&mut self, op: ParkedOp) {
        self.ops.push(op);
    }

    /// The bit and the position of the need on a link.
    pub(super) fn position_on(&self, link: LinkIndex) -> Option<(u8, u64)> {
        let needs = &self.needs[..usize::from(self.needs_count)];
        let place = needs.iter().position(|need| need.link == link)?;
        Some((1 << place, needs[place].position))
    }

    pub(super) fn abandon(&mut self, each: &mut impl FnMut(&Self, usize)) {
        for place in 0..self.ops.len() {
            if !self.ops[place].is_over {
                self.ops[place].is_over = true;
                each(self, place);
            }
        }
        self.ops_left = 0;
    }

    pub(super) fn clear(&mut self) {
        self.ops.clear();
        self.text.clear();
        self.lines.clear();
        self.needs_count = 0;
        self.is_opened = false;
        self.id = 0;
    }
}

/// Opens a batch if the cause concerns one of its operations.
pub(super) fn open_batch(
    batch: &mut ParkedBatch,
    opening: &Opening,
    rules: Rules,
    each: &mut impl FnMut(Released<'_>),
) {
    let need = match opening.cause {
        OpenCause::Refused { link, from, .. } => {
            batch.position_on(link).filter(|&(_, position)| position >= from)
        }
        OpenCause::Removed { link, up_to } => {
            batch.position_on(link).filter(|&(_, position)| position <= up_to)
        }
        OpenCause::Deposed { .. } => Some((0, 0)),
    };
    let Some((bit, _)) = need else { return };
    for place in 0..batch.ops.len() {
        let op = &mut batch.ops[place];
        if op.is_over || op.partition != opening.partition {
            continue;
        }
        let is_again = match opening.cause {
            OpenCause::Refused { term, .. } => op.term == term && op.needs & bit != 0,
            OpenCause::Deposed { below } => op.term < below,
            OpenCause::Removed { .. } => false,
        };
        if matches!(opening.cause, OpenCause::Removed { .. }) && op.needs & bit != 0 {
            op.needs &= !bit;
            batch.is_opened = true;
            if rules.lack(Bug::RemovalFreesWholePiece) {
                batch.ops.iter_mut().for_each(|op| op.needs &= !bit);
            }
        } else if is_again {
            batch.is_opened = true;
            if rules.lack(Bug::DeposalReleases)
                && matches!(opening.cause, OpenCause::Deposed { .. })
            {
                batch.ops[place].needs = 0;
                continue;
            }
            batch.ops[place].is_over = true;
            batch.ops_left -= 1;
            each(Released::Again(batch, place));
        }
    }
}

/// Releases the operations of an opened batch that need nothing more.
pub(super) fn release_ready(batch: &mut ParkedBatch, each: &mut impl FnMut(Released<'_>)) {
    for place in 0..batch.ops.len() {
        let op = &mut batch.ops[place];
        if !op.is_over && op.needs & batch.left == 0 {
            op.is_over = true;
            batch.ops_left -= 1;
            each(Released::One(batch, place));
        }
    }
}
