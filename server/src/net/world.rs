//! The simulated world of a thread: its random numbers, its clocks, the links that are cut.
//!
//! Here: the replacements that sockets, clocks and random numbers use with the feature
//! `simulation`. Not here: the sockets (`simulated`), nodes that run in the world
//! (`crate::simulation`).
//!
//! A world belongs to one thread. Its seed determines all random numbers, and each host has its own
//! clock.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use cluster::{Bug, Rules};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::simulated::Sockets;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// The state that the hosts of a simulation share.
#[derive(Default)]
pub(crate) struct World {
    chance: u64,
    bug: Option<Bug>,
    /// The host of each runtime, by runtime id.
    hosts: BTreeMap<String, Host>,
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    pub(crate) sockets: Sockets,
}

#[derive(Clone)]
struct Host {
    address: IpAddr,
    clock: Arc<HostClock>,
}

impl World {
    fn draw(&mut self) -> u64 {
        // SplitMix64, as in `control`.
        self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.chance;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn here(&self) -> Option<&Host> {
        let id: Id = Handle::try_current().ok()?.id();
        self.hosts.get(&id.to_string())
    }

    /// Returns whether segments pass from the current host to `to` and back.
    pub(crate) fn is_in_reach(&self, to: IpAddr) -> bool {
        self.here().is_none_or(|here| {
            let from = here.address;
            !self.cuts.contains(&(from, to)) && !self.cuts.contains(&(to, from))
        })
    }
}

/// Runs `work` on the world of this thread; without a world, on an empty one that is dropped.
pub(crate) fn with_world<T>(work: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| match world {
        Some(world) => work(world),
        None => work(&mut World::default()),
    })
}

/// Returns whether this thread has a world.
pub(crate) fn is_on() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Fills `bytes` from the seed. Returns false without a world.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    WORLD.with_borrow_mut(|world| {
        let Some(world) = world else { return false };
        for chunk in bytes.chunks_mut(8) {
            let drawn = world.draw().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
        true
    })
}

/// Creates a world on this thread. `bug` names a rule that is disabled in it.
pub(crate) fn begin(seed: u64, bug: Option<Bug>) {
    WORLD.with_borrow_mut(|world| *world = Some(World { chance: seed, bug, ..World::default() }));
}

/// Returns the rules in force in this world.
pub(crate) fn rules() -> Rules {
    let bug = WORLD.with_borrow(|world| world.as_ref()?.bug);
    bug.map(Rules::without).unwrap_or_default()
}

/// Removes the world of this thread.
pub(crate) fn end() {
    let world = WORLD.with_borrow_mut(Option::take);
    drop(world);
}

/// Drops everything sent from `from` to `to` from now on; to be called together with turmoil's own
/// cut.
pub fn cut(from: IpAddr, to: IpAddr) {
    with_world(|world| world.cuts.insert((from, to)));
}

/// Repairs the links between two hosts. Streams that lost bytes end: call this before turmoil's own
/// repair.
pub fn mend(one: IpAddr, other: IpAddr) {
    with_world(|world| {
        world.cuts.remove(&(one, other));
        world.cuts.remove(&(other, one));
        world.sockets.break_between(one, other);
    });
}

/// Ends the streams between two hosts, as after a timeout.
pub fn break_streams(one: IpAddr, other: IpAddr) {
    with_world(|world| world.sockets.break_between(one, other));
}

/// The error of a host's clock. It outlives the host's processes.
#[derive(Debug, Default)]
pub struct Skew {
    /// Milliseconds by which the wall clock is ahead.
    pub ahead_ms: AtomicI64,
    /// Millionths by which time runs faster.
    pub fast_ppm: AtomicI64,
    /// The wall clock shows the true time, whatever the other fields contain.
    pub is_right: AtomicBool,
}

/// The clock of one process.
#[derive(Debug)]
pub(crate) struct HostClock {
    skew: Arc<Skew>,
    start_unix: Duration,
    shown: Mutex<(Instant, u64)>,
}

impl HostClock {
    fn new(skew: Arc<Skew>) -> Self {
        let start_unix = turmoil::since_epoch().unwrap_or_default();
        Self { skew, start_unix, shown: Mutex::new((Instant::now(), 0)) }
    }

    /// Returns the time since the start of the process.
    pub(crate) fn elapsed(&self) -> Duration {
        let mut shown = self.shown.lock();
        let now = Instant::now();
        let passed = i128::try_from(now.duration_since(shown.0).as_nanos()).unwrap_or_default();
        let fast = i128::from(self.skew.fast_ppm.load(Ordering::Relaxed));
        let passed = passed * (1_000_000 + fast) / 1_000_000;
        *shown = (now, shown.1 + u64::try_from(passed).unwrap_or_default());
        Duration::from_nanos(shown.1)
    }

    /// Returns the time since 1970.
    pub(crate) fn unix(&self) -> Duration {
        if self.skew.is_right.load(Ordering::Relaxed) {
            return turmoil::since_epoch().unwrap_or_default();
        }
        let ahead = self.skew.ahead_ms.load(Ordering::Relaxed);
        let right = self.start_unix + self.elapsed();
        let by = Duration::from_millis(ahead.unsigned_abs());
        if ahead < 0 { right.saturating_sub(by) } else { right + by }
    }
}

/// Returns the clock of the current host, if it is simulated.
pub(crate) fn clock() -> Option<Arc<HostClock>> {
    WORLD.with_borrow(|world| Some(Arc::clone(&world.as_ref()?.here()?.clock)))
}

/// Makes the current runtime a host of the world, with a clock of its own.
pub(crate) fn enter(address: IpAddr, skew: Arc<Skew>) {
    let clock = Arc::new(HostClock::new(skew));
    let id = Handle::current().id().to_string();
    with_world(|world| world.hosts.insert(id, Host { address, clock }));
}
