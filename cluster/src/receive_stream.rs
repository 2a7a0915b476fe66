//! The receiving end of a link's stream: the processed position, and the refusals.

use crate::frames::{StreamAckWriter, StreamDone, StreamRefusal};
use crate::id::{Partition, Term};
use crate::rules::{Bug, Rules};

#[derive(Debug, Clone, Copy)]
struct Standing {
    refused: StreamRefusal,
    is_reported: bool,
}

/// The receiver's position in a stream, and the refusals to report. One for each link; only the
/// worker that reads the link has it.
#[derive(Debug, Default)]
pub struct ReceiveStream {
    /// All frames before this position were processed.
    held: u64,
    /// The refusals in force: at most one for each partition.
    standing: Vec<Standing>,
    /// Whether numbered frames arrived since the last ack.
    owes_ack: bool,
    /// The newest reading of the peer's monotonic clock.
    time_ns: u64,
    rules: Rules,
}

impl ReceiveStream {
    /// The receiver of a new stream.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// All frames before this position were processed.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The position where the next numbered frame ends, if it has `bytes` bytes.
    #[must_use]
    #[inline]
    pub fn end_of(&self, bytes: usize) -> u64 {
        self.held + bytes as u64
    }

    /// Records that the next numbered frame was processed: all of it was taken or refused.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        self.held += bytes as u64;
        self.owes_ack = true;
    }

    /// Records a reading of the peer's monotonic clock.
    #[inline]
    pub fn record_time(&mut self, time_ns: u64) {
        self.time_ns = self.time_ns.max(time_ns);
    }

    /// The newest reading of the peer's monotonic clock.
    #[must_use]
    pub fn time_ns(&self) -> u64 {
        self.time_ns
    }

    /// Records a refusal. `is_origin` means that the refused frame is an `Adopt` or a first
    /// `Chunk`, at which the sender begins to count anew. Of other frames only the first refusal is
    /// reported, because everything that follows it in its term is refused too.
    pub fn refuse(&mut self, refused: StreamRefusal, is_origin: bool) {
        self.owes_ack = true;
        let new = Standing { refused, is_reported: false };
        let mut known = self.standing.iter_mut();
        match known.find(|standing| standing.refused.partition == refused.partition) {
            Some(standing) => {
                let old = standing.refused;
                if is_origin || old.term != refused.term || old.copy_term != refused.copy_term {
                    // Within one origin the first refused position is kept.
                    let is_same = !is_origin && old.term == refused.term;
                    let end = if is_same { old.end } else { refused.end };
                    *standing = Standing { refused: StreamRefusal { end, ..refused }, ..new };
                }
            }
            None => self.standing.push(new),
        }
    }

    /// Ends a partition's refusal: an `Adopt` or a first `Chunk` of this stream was taken.
    pub fn taken(&mut self, partition: Partition) {
        self.standing.retain(|standing| standing.refused.partition != partition);
    }

    /// Whether an answer that follows its records in this stream counts: the records were
    /// installed. `term` is the term of the operation, `header_term` the newest term that this node
    /// has seen of its partition. In a later term an `Adopt` may have ended the refusal.
    #[must_use]
    #[inline]
    pub fn has_installed(&self, partition: Partition, term: Term, header_term: Term) -> bool {
        let is_refused =
            || self.standing.iter().any(|standing| standing.refused.partition == partition);
        self.rules.lack(Bug::AnswerDespiteRefusal) || (term == header_term && !is_refused())
    }

    /// The number of refusals in force.
    #[must_use]
    pub fn refusals(&self) -> usize {
        self.standing.len()
    }

    /// Begins a new connection. Its first ack reports all refusals in force.
    pub fn begin_link(&mut self) {
        self.owes_ack = true;
        if self.rules.lack(Bug::RefusalLostWithLink) {
            self.standing.clear();
        }
        self.standing.iter_mut().for_each(|standing| standing.is_reported = false);
    }

    /// Whether an ack is due.
    #[must_use]
    #[inline]
    pub fn owes_ack(&self) -> bool {
        self.owes_ack
    }

    /// Appends an ack of everything processed, at the end of each read and first on each
    /// connection.
    #[inline]
    pub fn ack(&mut self, done: &[StreamDone], out: &mut Vec<u8>) {
        if self.rules.lack(Bug::WordBeforeRefusal)
            && self.standing.iter().any(|one| !one.is_reported)
        {
            StreamAckWriter::new(out).finish(self.held, done);
        }
        let mut ack = StreamAckWriter::new(out);
        for standing in self.standing.iter_mut().filter(|standing| !standing.is_reported) {
            ack.refused(&standing.refused);
            standing.is_reported = true;
        }
        ack.finish(self.held, done);
        self.owes_ack = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{FrameKind, StreamAck, cut};
    use crate::position::Position;

    fn refused(partition: u16, term: u32, end: u64) -> StreamRefusal {
        StreamRefusal {
            partition: Partition(partition),
            term: Term(term),
            copy_term: Term(9),
            end,
            last: Position::default(),
        }
    }

    fn said(stream: &mut ReceiveStream) -> (Vec<StreamRefusal>, u64) {
        let mut out = Vec::new();
        stream.ack(&[], &mut out);
        let frame = cut(&out, usize::MAX).expect("it is a frame").expect("it is whole");
        assert_eq!(frame.kind, FrameKind::Ack);
        let ack = StreamAck::decode(frame.body).expect("it is a word");
        (ack.refused().collect(), ack.held)
    }

    #[test]
    fn refusal_is_reported_once_per_connection() {
        let mut stream = ReceiveStream::default();
        stream.advance(10);
        stream.refuse(refused(1, 2, 20), false);
        stream.advance(10);
        assert_eq!(said(&mut stream), (vec![refused(1, 2, 20)], 20));
        stream.refuse(refused(1, 2, 30), false);
        stream.advance(10);
        assert_eq!(said(&mut stream), (vec![], 30));
        stream.begin_link();
        assert_eq!(said(&mut stream), (vec![refused(1, 2, 20)], 30));
        let has_installed = |stream: &ReceiveStream, partition, header_term| {
            stream.has_installed(Partition(partition), Term(2), Term(header_term))
        };
        assert!(!has_installed(&stream, 1, 2) && has_installed(&stream, 2, 2));
        stream.taken(Partition(1));
        assert!(has_installed(&stream, 1, 2));
        assert!(!has_installed(&stream, 1, 3), "the refusal may have ended with a later term");
        stream.begin_link();
        assert_eq!(said(&mut stream), (vec![], 30));
    }

    #[test]
    fn refused_origin_replaces_an_earlier_refusal() {
        let mut stream = ReceiveStream::default();
        stream.refuse(refused(1, 2, 20), false);
        said(&mut stream);
        stream.refuse(refused(1, 2, 40), true);
        assert_eq!(said(&mut stream).0, [refused(1, 2, 40)]);
        stream.refuse(refused(1, 2, 50), false);
        assert_eq!(said(&mut stream).0, []);
        stream.refuse(refused(1, 3, 60), false);
        assert_eq!(said(&mut stream).0, [refused(1, 3, 60)]);
    }
}
