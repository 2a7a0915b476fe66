//! The handshake: the peer's identity, the version to speak, and the proof of a shared key.
//!
//! Here: the first frames of each side, and the checks on them. Not here: TLS, which may lie below
//! (`server`).
//!
//! ```text
//! connecting side                                   accepting side
//! Hello: versions, cluster, node, nonce  -->
//!                                        <--  Hello: versions, cluster, node, nonce
//! Proof: MAC over both hellos            -->
//!                                        <--  Proof: MAC over both hellos, the other way round
//! ```
//!
//! The proof shows that the other side has the key *now*, for these two nodes and incarnations, and
//! that the versions were not changed on the way. It does not protect the frames that follow: only
//! TLS keeps out an attacker that can change packets. If TLS has authenticated the peer, the proof
//! uses an empty key.

use std::ops::RangeInclusive;

use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::codec::{FrameReader, FrameWriter};
use super::{MessageError, VERSION_MAX, VERSION_MIN};
use crate::id::{Incarnation, NodeId};

/// The first bytes of every connection, in all versions.
const MAGIC: [u8; 8] = *b"tollgate";
/// The length of a nonce.
pub const NONCE_BYTES: usize = 32;
/// The length of a proof.
pub const PROOF_BYTES: usize = 32;

/// The first frame of each side. Its fields never change; later versions may add fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version that the sender speaks.
    pub version_min: u16,
    /// The newest version that the sender speaks.
    pub version_max: u16,
    /// The sender's cluster; 0 if it has none yet.
    pub cluster: u128,
    /// The sender's id; 0 if it has no cluster yet.
    pub node: NodeId,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The sender's core that the connection belongs to.
    pub core: u16,
    /// Drawn at random for this connection.
    pub nonce: [u8; NONCE_BYTES],
    /// The sender's number of workers; 0 if it opens no data links.
    pub workers: u16,
    /// The data link that this connection carries; none for a control link.
    pub data_link: Option<DataLinkId>,
    /// Additions of later versions; ignored.
    pub more: Bytes,
}

/// The name of a data link: a connection that carries partition frames between workers of two
/// nodes. The node with the lower id opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataLinkId {
    /// The index among the data links of the two nodes, from 0; worker `index % workers` reads it
    /// at either end.
    pub index: u16,
    /// Counts the links that the opening process made, from 1. A link ends the link of the same
    /// index with a lower number.
    pub number: u64,
}

/// The most data links between two nodes.
pub const DATA_LINKS_MAX: u16 = 16;

/// The number of data links between nodes with `ours` and `theirs` workers: the greater of the two,
/// at most [`DATA_LINKS_MAX`], and none if either is 0.
#[must_use]
pub fn data_links(ours: u16, theirs: u16) -> u16 {
    if ours == 0 || theirs == 0 { 0 } else { ours.max(theirs).min(DATA_LINKS_MAX) }
}

impl Hello {
    pub(super) fn encode(&self, writer: &mut FrameWriter<'_>) {
        writer.array(&MAGIC);
        writer.array(&self.version_min.to_le_bytes());
        writer.array(&self.version_max.to_le_bytes());
        writer.array(&self.cluster.to_le_bytes());
        writer.array(&self.node.0.to_le_bytes());
        writer.array(&self.incarnation.0.to_le_bytes());
        writer.array(&self.core.to_le_bytes());
        writer.array(&self.nonce);
        writer.array(&self.workers.to_le_bytes());
        let (index, number) = self.data_link.map_or((0, 0), |link| (link.index, link.number));
        writer.array(&index.to_le_bytes());
        writer.array(&number.to_le_bytes());
        writer.array(&self.more);
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        if reader.array()? != MAGIC {
            return Err(MessageError::Range("magic"));
        }
        Ok(Self {
            version_min: u16::from_le_bytes(reader.array()?),
            version_max: u16::from_le_bytes(reader.array()?),
            cluster: u128::from_le_bytes(reader.array()?),
            node: NodeId(u32::from_le_bytes(reader.array()?)),
            incarnation: Incarnation(u64::from_le_bytes(reader.array()?)),
            core: u16::from_le_bytes(reader.array()?),
            nonce: reader.array()?,
            workers: u16::from_le_bytes(reader.array()?),
            data_link: DataLinkId::decode(reader)?,
            more: reader.rest(),
        })
    }

    /// The version to speak with the sender of `theirs`.
    ///
    /// # Errors
    ///
    /// The [`CloseReason`] to send instead.
    pub fn agree(&self, theirs: &Self) -> Result<u16, CloseReason> {
        if self.cluster != theirs.cluster && self.cluster != 0 && theirs.cluster != 0 {
            return Err(CloseReason::OtherCluster);
        }
        if self.nonce == theirs.nonce || self.node == theirs.node && self.node != NodeId(0) {
            return Err(CloseReason::Myself);
        }
        let ours = self.version_min..=self.version_max;
        let theirs = theirs.version_min..=theirs.version_max;
        common_version(&ours, &theirs).ok_or(CloseReason::NoVersion)
    }
}

impl DataLinkId {
    fn decode(reader: &mut FrameReader) -> Result<Option<Self>, MessageError> {
        let index = u16::from_le_bytes(reader.array()?);
        let number = u64::from_le_bytes(reader.array()?);
        match (index, number) {
            (0, 0) => Ok(None),
            (DATA_LINKS_MAX.., _) | (_, 0) => Err(MessageError::Range("data link")),
            (index, number) => Ok(Some(Self { index, number })),
        }
    }
}

/// The range of versions that we speak.
#[must_use]
pub fn versions() -> RangeInclusive<u16> {
    VERSION_MIN..=VERSION_MAX
}

/// The newest version in both ranges.
#[must_use]
pub fn common_version(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> Option<u16> {
    let newest = *a.end().min(b.end());
    (a.contains(&newest) && b.contains(&newest)).then_some(newest)
}

/// The side of a connection that makes a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the connection.
    Connecting,
    /// The side that accepted it.
    Accepting,
}

/// The second frame of each side: proves that the side has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_BYTES]);

impl Proof {
    pub(super) fn encode(self, writer: &mut FrameWriter<'_>) {
        writer.array(&self.0);
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        reader.array().map(Self)
    }

    /// The proof of `side`, from the two hello frames as they were sent.
    #[must_use]
    pub fn new(key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> Self {
        Self(mac(key, side, connecting, accepting).finalize().into_bytes().into())
    }

    /// Whether this is the proof of `side`. Takes the same time for every wrong proof.
    #[must_use]
    pub fn is_by(&self, key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> bool {
        mac(key, side, connecting, accepting).verify_slice(&self.0).is_ok()
    }
}

fn mac(key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    // The text differs between the sides, so a proof that is sent back to its maker proves nothing.
    mac.update(match side {
        Side::Connecting => b"tollgate lane 1, connecting",
        Side::Accepting => b"tollgate lane 1, accepting ",
    });
    for frame in [connecting, accepting] {
        mac.update(&(frame.len() as u64).to_le_bytes());
        mac.update(frame);
    }
    mac
}

/// The reason for closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CloseReason {
    /// The peer sent nothing for too long.
    #[error("idle")]
    Idle,
    /// The node is shutting down.
    #[error("shutting down")]
    ShuttingDown,
    /// The two nodes have no common version.
    #[error("no common version")]
    NoVersion,
    /// The peer belongs to another cluster.
    #[error("another cluster")]
    OtherCluster,
    /// The proof is wrong.
    #[error("wrong key")]
    WrongKey,
    /// The node is connected to itself, or to another node with the same id.
    #[error("the same node")]
    Myself,
    /// The map has a later incarnation of the node, or has forgotten the node.
    #[error("an old incarnation")]
    OldIncarnation,
    /// The bytes were no valid frame.
    #[error("bad frame")]
    BadFrame,
}

impl CloseReason {
    const ALL: [Self; 8] = [
        Self::Idle,
        Self::ShuttingDown,
        Self::NoVersion,
        Self::OtherCluster,
        Self::WrongKey,
        Self::Myself,
        Self::OldIncarnation,
        Self::BadFrame,
    ];

    pub(super) fn byte(self) -> u8 {
        self as u8
    }

    pub(super) fn of_byte(byte: u8) -> Result<Self, MessageError> {
        Self::ALL.get(usize::from(byte)).copied().ok_or(MessageError::Range("farewell"))
    }
}
