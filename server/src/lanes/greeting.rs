//! How a link begins: both sides say who they are and prove that they belong.
//!
//! Here: the exchange on a stream. Not here: what is said and what to make of it
//! (`cluster::message::hello`), how long it may take (`dial`, `accept`).

use std::io;

use bytes::BytesMut;
use cluster::message::hello::{Farewell, Hello, Proof, Side};
use cluster::message::{Bounds, Decoded, Fault, Frame, decode, frame_bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Read at once from a stranger.
const STRANGER_READ_BYTES: usize = 1024;

/// Who the peer is.
pub(super) struct Greeted {
    pub(super) theirs: Hello,
    /// To be spoken from here on.
    pub(super) version: u16,
    /// What the peer said behind its proof.
    pub(super) rest: BytesMut,
}

/// Why there is no link.
#[derive(Debug)]
pub(super) enum Unwelcome {
    /// The stream failed.
    Lost(io::Error),
    /// We want no link, and said why.
    Ours(Farewell),
    /// The peer wants none.
    Theirs(Farewell),
    /// It is no peer.
    Fault(Fault),
}

impl From<io::Error> for Unwelcome {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// Goes through the exchange as `side`. `vet` may refuse who the peer says it is.
pub(super) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side,
    ours: &Hello,
    key: &[u8],
    vet: impl FnOnce(&Hello) -> Result<(), Farewell>,
) -> Result<Greeted, Unwelcome> {
    let outcome = exchange(stream, side, ours, key, vet).await;
    let farewell = match &outcome {
        Err(Unwelcome::Ours(farewell)) => *farewell,
        Err(Unwelcome::Fault(_)) => Farewell::BadFrame,
        _ => return outcome,
    };
    // Whether it is heard makes no difference.
    let _ = say(stream, &encoded(&Frame::Farewell(farewell))).await;
    let _ = stream.shutdown().await;
    outcome
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    side: Side,
    ours: &Hello,
    key: &[u8],
    vet: impl FnOnce(&Hello) -> Result<(), Farewell>,
) -> Result<Greeted, Unwelcome> {
    let mut input = BytesMut::new();
    let our_bytes = encoded(&Frame::Hello(ours.clone()));
    if side == Side::Connecting {
        say(stream, &our_bytes).await?;
    }
    let (frame, their_bytes) = hear(stream, &mut input).await?;
    let Frame::Hello(theirs) = frame else { return Err(Unwelcome::Ours(Farewell::BadFrame)) };
    let version = ours.agree(&theirs).map_err(Unwelcome::Ours)?;
    vet(&theirs).map_err(Unwelcome::Ours)?;
    let (other_side, connecting, accepting) = match side {
        Side::Connecting => (Side::Accepting, &our_bytes, &their_bytes),
        Side::Accepting => (Side::Connecting, &their_bytes, &our_bytes),
    };
    let proof = encoded(&Frame::Proof(Proof::new(key, side, connecting, accepting)));
    say(stream, if side == Side::Connecting { &proof } else { &our_bytes }).await?;
    let (frame, _) = hear(stream, &mut input).await?;
    let Frame::Proof(their_proof) = frame else {
        return Err(Unwelcome::Ours(Farewell::BadFrame));
    };
    if !their_proof.is_by(key, other_side, connecting, accepting) {
        return Err(Unwelcome::Ours(Farewell::WrongKey));
    }
    if side == Side::Accepting {
        // Last: who has not shown the key gets nothing made with it.
        say(stream, &proof).await?;
    }
    Ok(Greeted { theirs, version, rest: input })
}

fn encoded(frame: &Frame) -> BytesMut {
    let mut out = BytesMut::new();
    frame.encode(Bounds::of_strangers(), &mut out).expect("what we say first is short");
    out
}

async fn say<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// The next frame, and its bytes as they came. A farewell is the end.
async fn hear<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut BytesMut,
) -> Result<(Frame, BytesMut), Unwelcome> {
    loop {
        let bytes = frame_bytes(input);
        match decode(input, Bounds::of_strangers()).map_err(Unwelcome::Fault)? {
            Decoded::Frame(Frame::Farewell(farewell)) => return Err(Unwelcome::Theirs(farewell)),
            Decoded::Frame(frame) => {
                let bytes = bytes.map(BytesMut::from).unwrap_or_default();
                return Ok((frame, bytes));
            }
            Decoded::Incomplete { .. } => {}
        }
        input.reserve(STRANGER_READ_BYTES);
        if stream.read_buf(input).await? == 0 {
            return Err(Unwelcome::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}
