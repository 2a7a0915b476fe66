//! The byte stream below a data link's connection.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::tunnel::Tunnel;
use crate::net::shared::SharedStream;

/// The two directions of a connection, as bytes.
#[derive(Debug, Clone)]
pub(super) enum LinkStream {
    /// A socket.
    Socket(Arc<SharedStream>),
    /// A connection through another node.
    Tunnel(Arc<Tunnel>),
}

impl LinkStream {
    /// See [`SharedStream::poll_recv`].
    pub(super) fn poll_recv(
        &self,
        context: &mut Context<'_>,
        room: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Socket(stream) => stream.poll_recv(context, room),
            Self::Tunnel(tunnel) => tunnel.poll_recv(context, room),
        }
    }

    /// See [`SharedStream::poll_readable`].
    pub(super) fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(stream) => stream.poll_readable(context),
            Self::Tunnel(tunnel) => tunnel.poll_readable(context),
        }
    }

    /// See [`SharedStream::try_send`].
    pub(super) fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Socket(stream) => stream.try_send(bytes),
            Self::Tunnel(tunnel) => tunnel.try_send(bytes),
        }
    }

    /// See [`SharedStream::poll_writable`].
    pub(super) fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Socket(stream) => stream.poll_writable(context),
            Self::Tunnel(tunnel) => tunnel.poll_writable(context),
        }
    }
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self, Self::Tunnel(_))
    }

    /// Checks again for room, where no event reports it.
    pub(super) fn retry(&self) {
        if let Self::Tunnel(tunnel) = self {
            tunnel.retry();
        }
    }

    /// Ends the connection. A socket ends with its last owner.
    pub(super) fn close(&self) {
        if let Self::Tunnel(tunnel) = self {
            tunnel.close();
        }
    }
}
