//! The fields that frames are made of.
//!
//! Here: numbers, bytes, lists, ids, each written and read. Not here: which frame has which.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::{Fault, KEY_BYTES_MAX, LIST_MAX};
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::map::TERM_MAX;
use crate::replica::{Position, SessionId};

/// Appends fields. The first that cannot be sent is remembered.
pub(super) struct Writer<'a> {
    out: &'a mut BytesMut,
    fault: Option<Fault>,
}

/// Takes fields off the front of a body.
pub(super) struct Reader {
    body: Bytes,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut BytesMut) -> Self {
        Self { out, fault: None }
    }

    pub(super) fn fault(self) -> Option<Fault> {
        self.fault
    }

    pub(super) fn check(&mut self, is_good: bool, what: &'static str) {
        if !is_good && self.fault.is_none() {
            self.fault = Some(Fault::Range(what));
        }
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.out.put_u8(byte);
    }

    pub(super) fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    /// Bytes of a length that both sides know.
    pub(super) fn array(&mut self, bytes: &[u8]) {
        self.out.put_slice(bytes);
    }

    pub(super) fn number(&mut self, number: impl Into<u64>) {
        let mut left: u64 = number.into();
        while left >= 0x80 {
            self.out.put_u8(left as u8 | 0x80);
            left >>= 7;
        }
        self.out.put_u8(left as u8);
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.put_slice(bytes);
    }

    pub(super) fn key(&mut self, key: &[u8]) {
        self.check(key.len() <= KEY_BYTES_MAX, "key");
        self.bytes(key);
    }

    pub(super) fn list<T>(&mut self, list: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.check(list.len() <= LIST_MAX, "list");
        self.number(list.len() as u64);
        for element in list {
            one(self, element);
        }
    }

    pub(super) fn option<T>(&mut self, value: Option<T>, some: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            some(self, value);
        }
    }

    pub(super) fn partition(&mut self, partition: Partition) {
        self.out.put_u16_le(partition.0);
    }

    pub(super) fn term(&mut self, term: Term) {
        self.check(term.0 <= TERM_MAX, "term");
        self.number(term.0);
    }

    pub(super) fn copy(&mut self, copy: CopyId) {
        self.number(copy.node.0);
        self.number(copy.incarnation.0);
        self.number(copy.assignment);
    }

    pub(super) fn session(&mut self, session: SessionId) {
        self.number(session.node.0);
        self.number(session.incarnation.0);
        self.number(session.core);
    }

    pub(super) fn position(&mut self, position: Position) {
        self.term(position.term);
        self.number(position.lsn);
    }
}

impl Reader {
    pub(super) fn new(body: Bytes) -> Self {
        Self { body }
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), Fault> {
        if self.body.is_empty() { Ok(()) } else { Err(Fault::Long(self.body.len())) }
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> Bytes {
        self.body.split_off(0)
    }

    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        if self.body.is_empty() { Err(Fault::Short) } else { Ok(self.body.get_u8()) }
    }

    pub(super) fn flag(&mut self) -> Result<bool, Fault> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Fault::Range("flag")),
        }
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let bytes = *self.body.first_chunk().ok_or(Fault::Short)?;
        self.body.advance(N);
        Ok(bytes)
    }

    pub(super) fn number(&mut self) -> Result<u64, Fault> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(Fault::Range("number"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                // The last byte is not zero: the shortest way is the only one.
                let is_shortest = byte > 0 || shift == 0;
                return is_shortest.then_some(number).ok_or(Fault::Range("number"));
            }
        }
        Err(Fault::Range("number"))
    }

    /// A number of a smaller type.
    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Fault> {
        T::try_from(self.number()?).map_err(|_| Fault::Range("number"))
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes, Fault> {
        let length = self.small::<usize>()?;
        if length > self.body.len() {
            return Err(Fault::Short);
        }
        Ok(self.body.split_to(length))
    }

    pub(super) fn key(&mut self) -> Result<Bytes, Fault> {
        let key = self.bytes()?;
        if key.len() > KEY_BYTES_MAX { Err(Fault::Range("key")) } else { Ok(key) }
    }

    pub(super) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let length = self.small::<usize>()?;
        if length > LIST_MAX {
            return Err(Fault::Range("list"));
        }
        // An element has a byte at least: a list that claims more reserves nothing.
        if length > self.body.len() {
            return Err(Fault::Short);
        }
        (0..length).map(|_| one(self)).collect()
    }

    pub(super) fn option<T>(
        &mut self,
        some: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.flag()?.then(|| some(self)).transpose()
    }

    pub(super) fn partition(&mut self) -> Result<Partition, Fault> {
        Ok(Partition(u16::from_le_bytes(self.array()?)))
    }

    pub(super) fn term(&mut self) -> Result<Term, Fault> {
        let term = self.small()?;
        if term > TERM_MAX { Err(Fault::Range("term")) } else { Ok(Term(term)) }
    }

    pub(super) fn copy(&mut self) -> Result<CopyId, Fault> {
        Ok(CopyId {
            node: NodeId(self.small()?),
            incarnation: Incarnation(self.number()?),
            assignment: self.small()?,
        })
    }

    pub(super) fn session(&mut self) -> Result<SessionId, Fault> {
        Ok(SessionId {
            node: NodeId(self.small()?),
            incarnation: Incarnation(self.number()?),
            core: self.small()?,
        })
    }

    pub(super) fn position(&mut self) -> Result<Position, Fault> {
        Ok(Position { term: self.term()?, lsn: self.number()? })
    }
}
