//! The fields that frames are made of.

use super::Fault;
use crate::id::LaneId;
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::map::TERM_MAX;
use crate::replica::Position;

/// Takes fields off the front of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], Fault> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Fault::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn end(&self) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(Fault::Long(self.0.len())) }
    }

    pub(super) fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, Fault> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Fault::Range("flag")),
        }
    }

    pub(super) fn partition(&mut self) -> Result<Partition, Fault> {
        self.u16().map(Partition)
    }

    pub(super) fn term(&mut self) -> Result<Term, Fault> {
        term(self.u32()?)
    }

    pub(super) fn copy(&mut self) -> Result<CopyId, Fault> {
        Ok(CopyId {
            node: NodeId(self.u32()?),
            incarnation: Incarnation(self.u64()?),
            assignment: self.u32()?,
        })
    }

    pub(super) fn position(&mut self) -> Result<Position, Fault> {
        Ok(Position { term: self.term()?, lsn: self.u64()? })
    }

    pub(super) fn lane(&mut self) -> Result<LaneId, Fault> {
        Ok(LaneId {
            node: NodeId(self.u32()?),
            incarnation: Incarnation(self.u64()?),
            worker: self.u16()?,
            owner: NodeId(self.u32()?),
        })
    }
}

/// A term, if it is one.
pub(super) fn term(term: u32) -> Result<Term, Fault> {
    if term > TERM_MAX { Err(Fault::Range("term")) } else { Ok(Term(term)) }
}

pub(super) fn put_copy(out: &mut Vec<u8>, copy: CopyId) {
    out.extend_from_slice(&copy.node.0.to_le_bytes());
    out.extend_from_slice(&copy.incarnation.0.to_le_bytes());
    out.extend_from_slice(&copy.assignment.to_le_bytes());
}

pub(super) fn put_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.term.0.to_le_bytes());
    out.extend_from_slice(&position.lsn.to_le_bytes());
}

pub(super) fn put_lane(out: &mut Vec<u8>, lane: LaneId) {
    out.extend_from_slice(&lane.node.0.to_le_bytes());
    out.extend_from_slice(&lane.incarnation.0.to_le_bytes());
    out.extend_from_slice(&lane.worker.to_le_bytes());
    out.extend_from_slice(&lane.owner.0.to_le_bytes());
}
