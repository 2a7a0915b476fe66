//! One thread of the generator: an epoll loop over its share of the connections.
//!
//! Here: when requests are sent, closed loop and open loop. Not here: bytes (`connection`), threads
//! and the measurements around them (`cell`).
//!
//! Closed loop: a connection sends `pipeline` requests in one write, waits for all their replies,
//! and sends the next. Open loop: requests fall due by a Poisson clock regardless of the server,
//! each on a random connection, and their latency counts from that moment. Therefore a server that
//! pauses is charged for every request that fell due meanwhile.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use crate::connection::Connection;
use crate::dialect::Request;
use crate::disturbance::{Sifted, Watch};
use crate::error::LoadError;
use crate::exchange::Tally;
use crate::ledger::Ledger;
use crate::spread::Picker;
use kit::rng::Rng;

/// Bytes of replies per read, small enough for the core's own cache.
const SCRATCH_BYTES: usize = 64 * 1024;
/// The longest wait for replies before the run ends with an error.
const STALL: Duration = Duration::from_secs(20);
/// The most requests between two polls of the sockets in the open loop.
const DUE_MAX: usize = 256;

/// The rule by which requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals<'a> {
    /// When all of the connection's last batch is answered.
    Closed {
        /// Requests in a batch.
        pipeline: u32,
    },
    /// By a Poisson clock.
    Open {
        /// Requests a second of this worker.
        rate: f64,
        /// The server's processes, watched for [disturbances](crate::disturbance).
        server: &'a [u32],
    },
}

/// The condition that ends sending. Outstanding replies are always awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// After this time.
    After(Duration),
    /// After this many requests (closed loop only).
    Count(u64),
}

/// The loop and its state.
pub struct Worker {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    scratch: Box<[u8]>,
    request: Request,
    picker: Picker,
    /// The keys of a batch.
    picked: Vec<u32>,
    rng: Rng,
    clock: Instant,
    /// Never sleep in `epoll_wait`, so that no server pays for waking the generator.
    busy_poll: bool,
}

impl Worker {
    /// Opens `connections` connections.
    ///
    /// # Errors
    ///
    /// The errors of the sockets.
    pub fn open(
        address: SocketAddr,
        connections: usize,
        request: Request,
        picker: Picker,
        rng: Rng,
        busy_poll: bool,
    ) -> Result<Self, LoadError> {
        let poll = Poll::new()?;
        let mut opened = Vec::with_capacity(connections);
        for n in 0..connections {
            let mut connection = Connection::open(address, request)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(connection.stream(), Token(n), interest)?;
            opened.push(connection);
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            connections: opened,
            scratch: vec![0; SCRATCH_BYTES].into(),
            request,
            picker,
            picked: Vec::new(),
            rng,
            clock: Instant::now(),
            busy_poll,
        })
    }

    /// Sends until `stop`, awaits outstanding replies, and returns the tally and the elapsed time.
    ///
    /// # Errors
    ///
    /// A lost connection or a stalled server.
    pub fn run(
        &mut self,
        arrivals: Arrivals<'_>,
        stop: Stop,
        ledger: &mut Ledger,
    ) -> Result<(Tally, Duration), LoadError> {
        let mut tally = Tally::default();
        let start = Instant::now();
        match arrivals {
            Arrivals::Closed { pipeline } => self.run_closed(pipeline, stop, ledger, &mut tally)?,
            Arrivals::Open { rate, server } => {
                let watch = Watch::start(server, self.now())?;
                self.run_open(rate, stop, watch, ledger, &mut tally)?;
            }
        }
        Ok((tally, start.elapsed()))
    }

    fn run_closed(
        &mut self,
        pipeline: u32,
        stop: Stop,
        ledger: &mut Ledger,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        let (end, mut to_send) = match stop {
            Stop::After(time) => (self.now() + time.as_nanos() as u64, u64::MAX),
            Stop::Count(count) => (u64::MAX, count),
        };
        let mut busy = 0;
        for n in 0..self.connections.len() {
            busy += usize::from(self.send_batch(n, pipeline, &mut to_send, ledger)?);
        }
        let timeout = if self.busy_poll { Duration::ZERO } else { Duration::from_secs(1) };
        let mut last_event = self.now();
        while busy > 0 {
            self.wait(timeout)?;
            if self.events.is_empty() {
                self.give_up_if_stalled(last_event)?;
                continue;
            }
            let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
            for event in &events {
                let Token(n) = event.token();
                let connection = &mut self.connections[n];
                if event.is_writable() {
                    connection.flush()?;
                }
                if !event.is_readable() {
                    continue;
                }
                let was_busy = connection.outstanding() > 0;
                let clock = self.clock;
                let now = || {
                    last_event = nanos(clock);
                    last_event
                };
                connection.read(&mut self.scratch, now, ledger, tally)?;
                if was_busy && connection.outstanding() == 0 {
                    let more = last_event < end;
                    busy -= 1;
                    busy +=
                        usize::from(more && self.send_batch(n, pipeline, &mut to_send, ledger)?);
                }
            }
            self.events = events;
        }
        Ok(())
    }

    /// Sends up to `pipeline` requests in one write; returns false if none was left to send.
    fn send_batch(
        &mut self,
        n: usize,
        pipeline: u32,
        to_send: &mut u64,
        ledger: &mut Ledger,
    ) -> Result<bool, LoadError> {
        let batch = u64::from(pipeline).min(*to_send);
        *to_send -= batch;
        self.picked.clear();
        for _ in 0..batch * u64::from(self.request.op.keys()) {
            let index = self.picker.pick(&mut self.rng);
            if let Some(space) = self.request.op.space() {
                ledger.fetch(space, index);
            }
            self.picked.push(index);
        }
        let at = self.now();
        let connection = &mut self.connections[n];
        let mut picked = self.picked.iter();
        for _ in 0..batch {
            connection.issue(at, ledger, || *picked.next().expect("one for each that is named"));
        }
        if batch > 0 {
            connection.end_burst();
        }
        connection.flush()?;
        Ok(batch > 0)
    }

    fn run_open(
        &mut self,
        rate: f64,
        stop: Stop,
        mut watch: Watch,
        ledger: &mut Ledger,
        tally: &mut Tally,
    ) -> Result<(), LoadError> {
        tally.sifted = Some(Sifted::default());
        let Stop::After(time) = stop else {
            return Err(LoadError::Options("an open loop is stopped by time".to_owned()));
        };
        let mean = 1e9 / rate;
        let start = self.now();
        let end = (start + time.as_nanos() as u64) as f64;
        let mut due = start as f64 + self.rng.gap(mean);
        let mut last_event = start;
        let mut asked = Vec::with_capacity(DUE_MAX);
        let mut sent = 0u64;
        while due < end || tally.replies < sent {
            let now = self.now() as f64;
            while due <= now && due < end && asked.len() < DUE_MAX {
                let n = self.rng.below(self.connections.len() as u32) as usize;
                let connection = &mut self.connections[n];
                connection.issue(due as u64, ledger, || self.picker.pick(&mut self.rng));
                asked.push(n);
                sent += 1;
                due += self.rng.gap(mean);
            }
            for n in asked.drain(..) {
                self.connections[n].flush()?;
            }
            self.wait(Duration::ZERO)?;
            if self.events.is_empty() {
                if tally.replies < sent {
                    self.give_up_if_stalled(last_event)?;
                } else {
                    last_event = now as u64;
                }
            }
            for event in &self.events {
                let Token(n) = event.token();
                let connection = &mut self.connections[n];
                if event.is_writable() {
                    connection.flush()?;
                }
                if event.is_readable() {
                    let clock = self.clock;
                    let now = || {
                        last_event = nanos(clock);
                        last_event
                    };
                    connection.read(&mut self.scratch, now, ledger, tally)?;
                }
            }
            let now = self.now();
            // Requests that fell due meanwhile queue behind too, sent or not.
            let idle = tally.replies == sent && (due > now as f64 || due >= end);
            watch.turn(now, idle, tally.sifted.get_or_insert_default())?;
        }
        watch.end(self.now(), tally.sifted.get_or_insert_default())?;
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LoadError> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(e) if e.kind() != ErrorKind::Interrupted => Err(e.into()),
            _ => Ok(()),
        }
    }

    fn give_up_if_stalled(&self, last_event: u64) -> Result<(), LoadError> {
        if self.now().saturating_sub(last_event) > STALL.as_nanos() as u64 {
            return Err(LoadError::Stalled(STALL));
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        nanos(self.clock)
    }
}

fn nanos(clock: Instant) -> u64 {
    clock.elapsed().as_nanos() as u64
}
