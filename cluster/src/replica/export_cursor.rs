//! The cursor of a copy on its way to a learner, as the learner sends it back.
//!
//! Not here: the frames that carry it (`frames`), the chunks (`progress`).

use bytes::Bytes;

use crate::id::{Incarnation, NodeId, OpStreamId};

/// The position in an export: first come the keys, then the results.
#[derive(Debug, Clone)]
pub(super) enum ExportCursor {
    /// The state machine's cursor; none at the start.
    Keys(Option<Bytes>),
    Results(Option<(OpStreamId, u64)>),
}

impl ExportCursor {
    pub(super) fn encode(&self) -> Bytes {
        match self {
            Self::Keys(cursor) => [&[0], cursor.as_deref().unwrap_or_default()].concat().into(),
            Self::Results(None) => Bytes::from_static(&[1]),
            Self::Results(Some((stream, number))) => [
                &[1][..],
                &stream.node.0.to_be_bytes(),
                &stream.incarnation.0.to_be_bytes(),
                &stream.worker.to_be_bytes(),
                &stream.owner.0.to_be_bytes(),
                &number.to_be_bytes(),
            ]
            .concat()
            .into(),
        }
    }

    /// Returns none for an invalid cursor.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0, cursor @ ..] => Some(Self::Keys(Some(Bytes::copy_from_slice(cursor)))),
            [1] => Some(Self::Results(None)),
            [1, rest @ ..] => {
                let (node, rest) = rest.split_first_chunk()?;
                let (incarnation, rest) = rest.split_first_chunk()?;
                let (worker, rest) = rest.split_first_chunk()?;
                let (owner, rest) = rest.split_first_chunk()?;
                let number = u64::from_be_bytes(rest.try_into().ok()?);
                let stream = OpStreamId {
                    node: NodeId(u32::from_be_bytes(*node)),
                    incarnation: Incarnation(u64::from_be_bytes(*incarnation)),
                    worker: u16::from_be_bytes(*worker),
                    owner: NodeId(u32::from_be_bytes(*owner)),
                };
                Some(Self::Results(Some((stream, number))))
            }
            _ => None,
        }
    }
}
