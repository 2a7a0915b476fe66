//! The start of a link: both sides identify themselves and prove that they belong to the cluster.
//!
//! Here: the exchange on a stream. Not here: the content of its frames and their checks
//! (`cluster::message::handshake`), the timeout (`dialer`, `acceptor`).

use std::io;

use bytes::BytesMut;
use cluster::message::handshake::{CloseReason, Hello, Proof, Side};
use cluster::message::{DecodedFrame, Frame, FrameBounds, MessageError, decode, frame_bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Size of one read before authentication.
const STRANGER_READ_BYTES: usize = 1024;

/// The peer after a successful handshake.
pub(super) struct AuthenticatedPeer {
    pub(super) theirs: Hello,
    /// The protocol version of the link.
    pub(super) version: u16,
    /// Bytes that the peer sent after its proof.
    pub(super) rest: BytesMut,
}

/// The reason why a handshake failed.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The stream failed.
    Lost(io::Error),
    /// This side refuses the link, and has sent the reason.
    Ours(CloseReason),
    /// The peer refuses the link.
    Theirs(CloseReason),
    /// The peer sent an invalid frame.
    Fault(MessageError),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// Runs the exchange as `side`. `vet` may refuse the identity that the peer claims.
pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side,
    ours: &Hello,
    key: &[u8],
    vet: impl FnOnce(&Hello) -> Result<(), CloseReason>,
) -> Result<AuthenticatedPeer, HandshakeError> {
    let outcome = exchange(stream, side, ours, key, vet).await;
    let reason = match &outcome {
        Err(HandshakeError::Ours(reason)) => *reason,
        Err(HandshakeError::Fault(_)) => CloseReason::BadFrame,
        _ => return outcome,
    };
    // Best effort: the peer may have closed the stream.
    let _ = write_frame(stream, &encoded(&Frame::Farewell(reason))).await;
    let _ = stream.shutdown().await;
    outcome
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side,
    ours: &Hello,
    key: &[u8],
    vet: impl FnOnce(&Hello) -> Result<(), CloseReason>,
) -> Result<AuthenticatedPeer, HandshakeError> {
    let mut input = BytesMut::new();
    let our_bytes = encoded(&Frame::Hello(ours.clone()));
    if side == Side::Connecting {
        write_frame(stream, &our_bytes).await?;
    }
    let (frame, their_bytes) = read_frame(stream, &mut input).await?;
    let Frame::Hello(theirs) = frame else {
        return Err(HandshakeError::Ours(CloseReason::BadFrame));
    };
    let version = ours.agree(&theirs).map_err(HandshakeError::Ours)?;
    vet(&theirs).map_err(HandshakeError::Ours)?;
    let (other_side, connecting, accepting) = match side {
        Side::Connecting => (Side::Accepting, &our_bytes, &their_bytes),
        Side::Accepting => (Side::Connecting, &their_bytes, &our_bytes),
    };
    let proof = encoded(&Frame::Proof(Proof::new(key, side, connecting, accepting)));
    write_frame(stream, if side == Side::Connecting { &proof } else { &our_bytes }).await?;
    let (frame, _) = read_frame(stream, &mut input).await?;
    let Frame::Proof(their_proof) = frame else {
        return Err(HandshakeError::Ours(CloseReason::BadFrame));
    };
    if !their_proof.is_by(key, other_side, connecting, accepting) {
        return Err(HandshakeError::Ours(CloseReason::WrongKey));
    }
    if side == Side::Accepting {
        // Sent last: a peer without the key must not obtain anything computed from the key.
        write_frame(stream, &proof).await?;
    }
    Ok(AuthenticatedPeer { theirs, version, rest: input })
}

fn encoded(frame: &Frame) -> BytesMut {
    let mut out = BytesMut::new();
    frame.encode(FrameBounds::unauthenticated(), &mut out).expect("what we say first is short");
    out
}

async fn write_frame<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Reads the next frame. Also returns its bytes as received. A farewell is an error.
async fn read_frame<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut BytesMut,
) -> Result<(Frame, BytesMut), HandshakeError> {
    loop {
        let bytes = frame_bytes(input);
        match decode(input, FrameBounds::unauthenticated()).map_err(HandshakeError::Fault)? {
            DecodedFrame::Frame(Frame::Farewell(reason)) => {
                return Err(HandshakeError::Theirs(reason));
            }
            DecodedFrame::Frame(frame) => {
                let bytes = bytes.map(BytesMut::from).unwrap_or_default();
                return Ok((frame, bytes));
            }
            DecodedFrame::Incomplete { .. } => {}
        }
        input.reserve(STRANGER_READ_BYTES);
        if stream.read_buf(input).await? == 0 {
            return Err(HandshakeError::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}
