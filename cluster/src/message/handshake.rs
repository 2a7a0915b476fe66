//! How a lane begins: who is there, which version to speak, and the proof of a shared key.
//!
//! Here: the first frames, and what to make of them. Not here: TLS, which may lie below (`server`).
//!
//! ```text
//! connecting side                                   accepting side
//! Hello: versions, cluster, node, nonce  -->
//!                                        <--  Hello: versions, cluster, node, nonce
//! Proof: MAC over both hellos            -->
//!                                        <--  Proof: MAC over both hellos, the other way round
//! ```
//!
//! The proof shows that the other side has the key *now*, for these two nodes and lives, and that
//! nobody changed the versions on the way. It does not protect what follows: whoever can change
//! packets on the network is kept out by TLS only. Where TLS has shown who the peer is, the proof is
//! made with an empty key.

use std::ops::RangeInclusive;

use bytes::Bytes;
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use super::codec::{FrameReader, FrameWriter};
use super::{MessageError, VERSION_MAX, VERSION_MIN};
use crate::id::{Incarnation, NodeId};

/// What every lane begins with, in all versions.
const MAGIC: [u8; 8] = *b"tollgate";
/// A nonce has as many bytes.
pub const NONCE_BYTES: usize = 32;
/// A proof has as many bytes.
pub const PROOF_BYTES: usize = 32;

/// The first frame of each side. Its fields never change; later versions may add to them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The oldest version that the sender speaks.
    pub version_min: u16,
    /// The newest.
    pub version_max: u16,
    /// Which cluster; 0: in none yet.
    pub cluster: u128,
    /// Who; 0: in no cluster yet.
    pub node: NodeId,
    /// In which life.
    pub incarnation: Incarnation,
    /// Which of its cores the lane belongs to.
    pub core: u16,
    /// Drawn at random for this lane.
    pub nonce: [u8; NONCE_BYTES],
    /// The sender's number of workers; 0 if it opens no data links.
    pub workers: u16,
    /// The data link that the connection is; none for a lane.
    pub data_link: Option<DataLinkId>,
    /// What later versions add; ignored.
    pub more: Bytes,
}

/// The name of a connection that carries frames about partitions between the workers of two nodes. The node
/// with the lower id opens them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataLinkId {
    /// Which of the links of the two nodes, from 0; worker `index % workers` reads it at either end.
    pub index: u16,
    /// Counts the links that the opening process made, from 1. A higher number ends a lower one of the same index.
    pub number: u64,
}

/// Most data links of two nodes.
pub const DATA_LINKS_MAX: u16 = 16;

/// The number of data links of two nodes with these numbers of workers: the greater one, [`DATA_LINKS_MAX`] at
/// most, and none if either has none.
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

    /// What to speak with a peer that said `theirs`.
    ///
    /// # Errors
    ///
    /// The [`CloseReason`] to say instead.
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

/// The versions that we speak.
#[must_use]
pub fn versions() -> RangeInclusive<u16> {
    VERSION_MIN..=VERSION_MAX
}

/// The newest version that both speak.
#[must_use]
pub fn common_version(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> Option<u16> {
    let newest = *a.end().min(b.end());
    (a.contains(&newest) && b.contains(&newest)).then_some(newest)
}

/// Who proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who opened the connection.
    Connecting,
    /// Who took it.
    Accepting,
}

/// The second frame of each side: it has the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof(pub [u8; PROOF_BYTES]);

impl Proof {
    pub(super) fn encode(self, writer: &mut FrameWriter<'_>) {
        writer.array(&self.0);
    }

    pub(super) fn decode(reader: &mut FrameReader) -> Result<Self, MessageError> {
        reader.array().map(Self)
    }

    /// What one side proves, from the two hello frames as they went over the lane.
    #[must_use]
    pub fn new(key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> Self {
        Self(mac(key, side, connecting, accepting).finalize().into_bytes().into())
    }

    /// Whether it is what `side` has to prove. Takes the same time for each wrong proof.
    #[must_use]
    pub fn is_by(&self, key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> bool {
        mac(key, side, connecting, accepting).verify_slice(&self.0).is_ok()
    }
}

fn mac(key: &[u8], side: Side, connecting: &[u8], accepting: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    // Different for the two sides: a proof sent back to its maker proves nothing.
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

/// Why a lane ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CloseReason {
    /// Nothing was said for long.
    #[error("idle")]
    Idle,
    /// The node is going down.
    #[error("shutting down")]
    ShuttingDown,
    /// No version in common.
    #[error("no common version")]
    NoVersion,
    /// Of another cluster.
    #[error("another cluster")]
    OtherCluster,
    /// The proof is wrong.
    #[error("wrong key")]
    WrongKey,
    /// The node talks to itself, or to another that says it is the same.
    #[error("the same node")]
    Myself,
    /// The map knows a later life of the node, or has forgotten it.
    #[error("an old incarnation")]
    OldIncarnation,
    /// What was said is no frame.
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
