//! The fields that frames are made of.

use super::FrameError;
use crate::id::OpStreamId;
use crate::id::{CopyId, Incarnation, NodeId, Partition, Term};
use crate::map::TERM_MAX;
use crate::position::Position;

/// Removes fields from the front of a body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(FrameError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], FrameError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(FrameError::Short)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn end(&self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Long(self.0.len())) }
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn flag(&mut self) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Range("flag")),
        }
    }

    pub(super) fn partition(&mut self) -> Result<Partition, FrameError> {
        self.u16().map(Partition)
    }

    pub(super) fn term(&mut self) -> Result<Term, FrameError> {
        term(self.u32()?)
    }

    pub(super) fn copy(&mut self) -> Result<CopyId, FrameError> {
        Ok(CopyId {
            node: NodeId(self.u32()?),
            incarnation: Incarnation(self.u64()?),
            assignment: self.u32()?,
        })
    }

    pub(super) fn position(&mut self) -> Result<Position, FrameError> {
        Ok(Position { term: self.term()?, lsn: self.u64()? })
    }

    pub(super) fn stream(&mut self) -> Result<OpStreamId, FrameError> {
        Ok(OpStreamId {
            node: NodeId(self.u32()?),
            incarnation: Incarnation(self.u64()?),
            worker: self.u16()?,
            owner: NodeId(self.u32()?),
        })
    }
}

/// The term, if it is within [`TERM_MAX`].
pub(super) fn term(term: u32) -> Result<Term, FrameError> {
    if term > TERM_MAX { Err(FrameError::Range("term")) } else { Ok(Term(term)) }
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

pub(super) fn put_stream(out: &mut Vec<u8>, stream: OpStreamId) {
    out.extend_from_slice(&stream.node.0.to_le_bytes());
    out.extend_from_slice(&stream.incarnation.0.to_le_bytes());
    out.extend_from_slice(&stream.worker.to_le_bytes());
    out.extend_from_slice(&stream.owner.0.to_le_bytes());
}
