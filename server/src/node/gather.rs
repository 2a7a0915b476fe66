//! Requests on one key that reach its owner as one operation.
//!
//! Here: what one worker's clients ask of a key in one round, gathered until the round ends or
//! something else is asked of the partition. Not here: how the owner does them, one after the other
//! and each with an answer of its own (`machine`), so that nothing but the cost is shared.

use bytes::{BufMut as _, Bytes, BytesMut};
use cluster::id::Partition;
use hashbrown::HashMap;
use protocol::{Algorithm, CasAsk, Command, Form, Native, Operation, PolicyWord};

use super::machine::Sort;
use crate::session::LookedUp;

/// Most requests in one operation; their number is a byte, and six bits of a cas unique.
const REQUESTS_MAX: usize = 64;
/// Most bytes of them.
const BYTES_MAX: usize = 16 << 10;
/// What stands before the requests of an operation: its sort and how many there are.
const HEAD_BYTES: usize = 2;

/// Requests on one key.
pub(super) struct Gather {
    hash: u64,
    /// Who waits for the first, and who for the others in their order: mostly there are none.
    first: u64,
    others: Vec<u64>,
    words: BytesMut,
}

/// What is gathered, by partition: of one key each, so that requests stay in their order.
#[derive(Default)]
pub(super) struct Gathers {
    all: HashMap<Partition, Gather>,
    /// In the order in which they came; some have left.
    order: Vec<Partition>,
}

impl Gathers {
    /// Whether something is gathered for a partition.
    pub(super) fn contains(&self, partition: Partition) -> bool {
        !self.all.is_empty() && self.all.contains_key(&partition)
    }

    /// Whether a request on a key of this hash has to wait until what is there has left.
    pub(super) fn is_full(&self, partition: Partition, hash: u64, words: &[u8]) -> bool {
        self.all.get(&partition).is_some_and(|gather| {
            gather.hash != hash
                || gather.requests() >= REQUESTS_MAX
                || gather.words.len() + words.len() > BYTES_MAX
        })
    }

    /// Adds a request; see [`Gathers::is_full`].
    pub(super) fn add(&mut self, partition: Partition, hash: u64, token: u64, words: &[u8]) {
        if let Some(gather) = self.all.get_mut(&partition) {
            gather.others.push(token);
            gather.words.put_slice(words);
            return;
        }
        self.order.push(partition);
        let mut all = BytesMut::with_capacity(HEAD_BYTES + words.len());
        all.put_bytes(0, HEAD_BYTES);
        all.put_slice(words);
        self.all.insert(partition, Gather { hash, first: token, others: Vec::new(), words: all });
    }

    /// What is to leave for a partition.
    pub(super) fn take(&mut self, partition: Partition) -> Option<Gather> {
        if self.all.is_empty() { None } else { self.all.remove(&partition) }
    }

    /// The partition that something was gathered for last; it is forgotten with that.
    pub(super) fn next(&mut self) -> Option<Partition> {
        self.order.pop()
    }
}

impl Gather {
    fn requests(&self) -> usize {
        1 + self.others.len()
    }

    /// Who waits, if it is one alone; else all, in the order of their requests.
    pub(super) fn waiting(&self) -> Result<u64, Box<[u64]>> {
        if self.others.is_empty() {
            return Ok(self.first);
        }
        Err(std::iter::once(self.first).chain(self.others.iter().copied()).collect())
    }

    /// The operation that does them all.
    pub(super) fn operation(mut self) -> Bytes {
        if self.others.is_empty() {
            self.words[1] = Sort::Plain as u8;
            return self.words.freeze().slice(1..);
        }
        self.words[0] = Sort::Several as u8;
        self.words[1] = self.requests() as u8;
        self.words.freeze()
    }
}

/// Whether a request may share an operation with others: all that they make gets one cas unique,
/// so it tells none, and it names no hold.
pub(super) fn may_gather(command: &Command<'_>, form: &Form<'_>, looked: &LookedUp<'_>) -> bool {
    let Ok(bound) = &looked.bound else { return false };
    let holds = bound
        .as_ref()
        .is_some_and(|found| matches!(found.policy().algorithm, Algorithm::Concurrency { .. }));
    match &command.operation {
        Operation::Arithmetic(_) => matches!(form, Form::Text { .. }) && !holds,
        Operation::Native(Native::Take(take)) => {
            let names_none = take.hold.is_none() && take.id.is_none() && take.cas == CasAsk::None;
            names_none
                && match take.policy {
                    PolicyWord::Bound => !holds,
                    PolicyWord::Written(token) => !token.starts_with(b"concurrency"),
                    PolicyWord::Named(_) => false,
                }
        }
        _ => false,
    }
}

/// Appends the answer to one request of several, which `write` writes.
pub(super) fn put_part(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_u32(0);
    let answer = out.len();
    write(out);
    let length = (out.len() - answer) as u32;
    out[start..answer].copy_from_slice(&length.to_be_bytes());
}

/// The answer to the next request of several; none if `rest` is not one of ours.
pub(super) fn take_part(rest: &mut Bytes) -> Option<Bytes> {
    let (length, _) = rest.split_first_chunk()?;
    let length = u32::from_be_bytes(*length) as usize;
    let mut part = rest.split_off(size_of::<u32>());
    if length > part.len() {
        return None;
    }
    *rest = part.split_off(length);
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_one_by_one() {
        let mut out = Vec::new();
        for answer in [&b"1\r\n"[..], b"", b"NOT_FOUND\r\n"] {
            put_part(&mut out, |out| out.put_slice(answer));
        }
        let mut rest = Bytes::from(out);
        assert_eq!(take_part(&mut rest), Some(Bytes::from_static(b"1\r\n")));
        assert_eq!(take_part(&mut rest), Some(Bytes::new()));
        assert_eq!(take_part(&mut rest), Some(Bytes::from_static(b"NOT_FOUND\r\n")));
        assert_eq!(take_part(&mut rest), None);
        let mut cut = Bytes::from_static(b"\0\0\0\x05abc");
        assert_eq!(take_part(&mut cut), None);
    }

    #[test]
    fn one_request_is_an_operation_as_any() {
        let partition = Partition(7);
        let mut gathers = Gathers::default();
        gathers.add(partition, 1, 10, b"incr a 1\r\n");
        assert!(gathers.contains(partition) && !gathers.contains(Partition(8)));
        let alone = gathers.take(partition).expect("it was added");
        assert_eq!(alone.waiting(), Ok(10));
        assert_eq!(alone.operation(), &b"\0incr a 1\r\n"[..]);
        gathers.add(partition, 1, 11, b"incr a 1\r\n");
        gathers.add(partition, 1, 12, b"incr a 2\r\n");
        assert!(gathers.is_full(partition, 2, b"") && !gathers.is_full(partition, 1, b""));
        let both = gathers.take(partition).expect("they were added");
        assert_eq!(both.waiting(), Err([11, 12].into()));
        assert_eq!(both.operation(), &b"\x04\x02incr a 1\r\nincr a 2\r\n"[..]);
        assert_eq!(gathers.next(), Some(partition));
        assert!(!gathers.contains(partition));
    }
}
