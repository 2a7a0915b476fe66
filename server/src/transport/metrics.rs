//! Counters of the traffic with each peer.
//!
//! Here: counting and reading. Not here: printing.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};

use super::outbox::{FrameClass, Shed};

/// Counters of one peer. Updated by its links and by all threads that send.
#[derive(Debug, Default)]
pub(super) struct LinkMetrics {
    pub(super) frames_out: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) frames_in: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) batches_in: AtomicU64,
    pub(super) unsendable: AtomicU64,
    pub(super) dials: AtomicU64,
    pub(super) links: AtomicU64,
    pub(super) links_now: AtomicU64,
    /// The protocol version of the last link that came up.
    pub(super) version: AtomicU16,
    shed: [AtomicU64; 2],
    gone: AtomicU64,
    lost: AtomicU64,
}

/// Metrics of one peer at the time of the call. They count from the first sender or link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeerMetrics {
    /// Frames written.
    pub frames_out: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Batches written. `frames_out / writes` is the mean size of a batch.
    pub writes: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Batches of frames handed over.
    pub batches_in: u64,
    /// Frames refused because the window of their class was full, in the order of
    /// [`FrameClass::ALL`].
    pub shed: [u64; 2],
    /// Frames refused because the sender was closed.
    pub gone: u64,
    /// Frames dropped before they were written, because a link ended or none could be opened.
    /// Written frames may be lost too; those are not counted.
    pub lost: u64,
    /// Frames dropped because they cannot be encoded: too long, or a field out of range.
    pub unsendable: u64,
    /// Attempts to connect.
    pub dials: u64,
    /// Links that came up, opened by either side; one more than the reconnects.
    pub links: u64,
    /// Links that are up.
    pub links_now: u64,
    /// The protocol version of the last link that came up; 0 before the first.
    pub version: u16,
}

impl LinkMetrics {
    pub(super) fn note_shed(&self, why: Shed) {
        match why {
            Shed::Full(class) => self.shed[class as usize].fetch_add(1, Relaxed),
            Shed::Gone => self.gone.fetch_add(1, Relaxed),
        };
    }

    pub(super) fn note_lost(&self, frames: usize) {
        self.lost.fetch_add(frames as u64, Relaxed);
    }

    pub(super) fn read(&self) -> PeerMetrics {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        PeerMetrics {
            frames_out: get(&self.frames_out),
            bytes_out: get(&self.bytes_out),
            writes: get(&self.writes),
            frames_in: get(&self.frames_in),
            bytes_in: get(&self.bytes_in),
            batches_in: get(&self.batches_in),
            shed: FrameClass::ALL.map(|class| get(&self.shed[class as usize])),
            gone: get(&self.gone),
            lost: get(&self.lost),
            unsendable: get(&self.unsendable),
            dials: get(&self.dials),
            links: get(&self.links),
            links_now: get(&self.links_now),
            version: self.version.load(Relaxed),
        }
    }
}
