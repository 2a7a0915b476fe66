//! The open-loop latencies that belong to the server: those while no thread waited for a core.
//!
//! Here: when a stretch of time counts as disturbed, and which latencies are kept. Not here: when
//! requests fall due (`worker`), how the two figures are shown (`peers`).
//!
//! A kernel thread that takes a core for eight milliseconds of a second delays one request in a
//! hundred, and so decides the 99th percentile of the server under test. The scheduler records how
//! long each thread was ready and had no core (`cpu`). It is read every `LOOK_NS`. If a thread of
//! the server or of the generator waited longer than `WAITED_NS_MAX` since the last look, all
//! replies since that look are dropped, and all later ones until no request is due or outstanding,
//! because they queued behind.
//!
//! The rule depends on no latency, but a longer queue takes longer to drain, so more is dropped
//! from a server near its limit. Time taken by interrupts, or by the host of a virtual machine, is
//! not seen. A server's wait for its own other threads, those of all nodes of a cluster, is part of
//! its latency and is kept, as far as a look can distinguish it: the time that its other threads
//! ran since the last look is subtracted. Therefore little is dropped from servers with several
//! busy threads, and much without `--pin`, where server and generator wait for each other.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use hdrhistogram::Histogram;

use crate::cpu::{CpuUse, is_gone, parse};
use crate::latency::{latencies, percentiles};

/// The time between two looks.
const LOOK_NS: u64 = 4_000_000;
/// Longer waits than this between two looks are a disturbance. A thread that wakes finds its core
/// busy with the kernel's own small work for tens of microseconds now and then.
const WAITED_NS_MAX: u64 = 250_000;
/// With fewer undisturbed replies no percentiles are given: only five replies lie above p99.9.
const REPLIES_MIN: u64 = 5_000;

/// The latencies of an open loop, without the disturbed ones.
#[derive(Debug)]
pub struct Sifted {
    /// Latencies of the replies since the last look, not yet judged.
    pub recent: Vec<u64>,
    /// Latencies of the kept replies.
    pub undisturbed: Histogram<u64>,
}

impl Default for Sifted {
    fn default() -> Self {
        Self { recent: Vec::new(), undisturbed: latencies() }
    }
}

impl Sifted {
    fn keep(&mut self) {
        for latency in self.recent.drain(..) {
            self.undisturbed.saturating_record(latency);
        }
    }

    /// Percentiles of the kept replies; `None` if there are too few.
    #[must_use]
    pub fn summary(&self) -> Option<Undisturbed> {
        let replies = self.undisturbed.len();
        let latency_ns = percentiles(&self.undisturbed);
        (replies >= REPLIES_MIN).then_some(Undisturbed { replies, latency_ns })
    }
}

/// Percentiles of the undisturbed replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undisturbed {
    /// The number of undisturbed replies.
    pub replies: u64,
    /// The percentiles of [`latency_ns`](crate::cell::Measurement::latency_ns).
    pub latency_ns: [u64; 3],
}

/// The threads of a server and the generator's thread.
#[derive(Debug)]
pub struct Watch {
    server: Vec<Thread>,
    own: Thread,
    sieve: Sieve,
}

/// A thread's `schedstat` and its last reading.
#[derive(Debug)]
struct Thread {
    file: File,
    used: CpuUse,
}

impl Thread {
    fn open(path: &str) -> io::Result<Self> {
        let mut thread = Self { file: File::open(path)?, used: CpuUse::default() };
        thread.look()?;
        Ok(thread)
    }

    /// The use since the last look; zero for a thread that has ended.
    fn look(&mut self) -> io::Result<CpuUse> {
        let mut text = [0; 64];
        let length = match self.file.read_at(&mut text, 0) {
            Ok(length) => length,
            Err(error) if is_gone(&error) => 0,
            Err(error) => return Err(error),
        };
        let now = std::str::from_utf8(&text[..length]).ok().and_then(parse).unwrap_or(self.used);
        Ok(now.since(std::mem::replace(&mut self.used, now)))
    }
}

impl Watch {
    /// Watches the threads that the processes of `server` have now, and the calling thread, from
    /// `now` on.
    ///
    /// # Errors
    ///
    /// If there is no such process, or the kernel keeps no `schedstat`.
    pub fn start(server: &[u32], now: u64) -> io::Result<Self> {
        let mut threads = Vec::new();
        for process in server {
            for entry in fs::read_dir(format!("/proc/{process}/task"))? {
                let path = entry?.path().join("schedstat");
                threads.extend(path.to_str().and_then(|path| Thread::open(path).ok()));
            }
        }
        let own = Thread::open("/proc/thread-self/schedstat")?;
        Ok(Self { server: threads, own, sieve: Sieve::new(now) })
    }

    /// Must be called in every turn of the loop, after its replies. `idle` means that no request is
    /// due or outstanding.
    ///
    /// # Errors
    ///
    /// The errors of reading `schedstat`.
    pub fn turn(&mut self, now: u64, idle: bool, sifted: &mut Sifted) -> io::Result<()> {
        let waited = (now >= self.sieve.next_look).then(|| self.waited_ns()).transpose()?;
        self.sieve.turn(now, idle, waited, sifted);
        Ok(())
    }

    /// Takes a last look, after all replies.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::turn`].
    pub fn end(mut self, now: u64, sifted: &mut Sifted) -> io::Result<()> {
        let waited = self.waited_ns()?;
        self.sieve.turn(now, true, Some(waited), sifted);
        Ok(())
    }

    /// The longest wait of a thread for threads of other processes.
    fn waited_ns(&mut self) -> io::Result<u64> {
        let own = self.own.look()?.waited_ns;
        let server: Vec<CpuUse> =
            self.server.iter_mut().map(Thread::look).collect::<Result<_, _>>()?;
        Ok(own.max(waited_for_others(&server)))
    }
}

/// The longest wait of a server's threads, less the time that its other threads ran meanwhile.
fn waited_for_others(threads: &[CpuUse]) -> u64 {
    let ran: u64 = threads.iter().map(|thread| thread.ran_ns).sum();
    let waits = threads.iter().map(|thread| thread.waited_ns.saturating_sub(ran - thread.ran_ns));
    waits.max().unwrap_or(0)
}

/// Keeps the replies of undisturbed stretches.
#[derive(Debug)]
struct Sieve {
    next_look: u64,
    disturbed: bool,
}

impl Sieve {
    fn new(now: u64) -> Self {
        Self { next_look: now + LOOK_NS, disturbed: false }
    }

    /// `waited` is the result of a look at this moment, if one is due. A thread that waited for a
    /// core sends no reply before it has one, and then its wait is on record. Therefore no delayed
    /// reply is kept before the look that reports the wait.
    fn turn(&mut self, now: u64, idle: bool, waited: Option<u64>, sifted: &mut Sifted) {
        if let Some(waited) = waited {
            self.next_look = now + LOOK_NS;
            self.disturbed |= waited > WAITED_NS_MAX;
            if !self.disturbed {
                sifted.keep();
            }
        }
        if self.disturbed {
            sifted.recent.clear();
            self.disturbed = !idle;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::{LOOK_NS, Sieve, Sifted, WAITED_NS_MAX, Watch, waited_for_others};
    use crate::cpu::CpuUse;

    /// Feeds turns of (latency, idle, result of a look) and returns the kept latencies.
    fn sifted(turns: &[(u64, bool, Option<u64>)]) -> Vec<u64> {
        let (mut sieve, mut sifted) = (Sieve::new(0), Sifted::default());
        for &(latency, idle, waited) in turns {
            sifted.recent.push(latency);
            sieve.turn(LOOK_NS, idle, waited, &mut sifted);
        }
        let kept = sifted.undisturbed.iter_recorded();
        kept.map(|bucket| bucket.value_iterated_to() / 1_000).collect()
    }

    #[test]
    fn undisturbed_latencies_are_kept() {
        let quiet = Some(WAITED_NS_MAX);
        assert_eq!(sifted(&[(1_000, false, None), (2_000, true, quiet)]), [1, 2]);
        assert_eq!(sifted(&[(1_000, true, None), (2_000, false, None)]), [0; 0]);
    }

    #[test]
    fn a_disturbance_lasts_until_nothing_is_under_way() {
        let (quiet, loud) = (Some(0), Some(WAITED_NS_MAX + 1));
        let turns = [
            (1_000, false, quiet),
            (2_000, false, None),
            (3_000, false, loud),
            (4_000, false, None),
            // Quiet since, but this reply queued behind the disturbed ones.
            (5_000, false, quiet),
            (6_000, true, None),
            (7_000, false, None),
            (8_000, false, quiet),
        ];
        assert_eq!(sifted(&turns), [1, 7, 8]);
        assert_eq!(sifted(&[(1_000, true, loud), (2_000, false, quiet)]), [2]);
    }

    #[test]
    fn a_process_that_waits_for_itself_is_not_disturbed() {
        let thread = |ran_ns, waited_ns| CpuUse { ran_ns, waited_ns };
        assert_eq!(waited_for_others(&[thread(3_000, 700), thread(700, 0)]), 0);
        assert_eq!(waited_for_others(&[thread(3_000, 700), thread(100, 0)]), 600);
        assert_eq!(waited_for_others(&[thread(3_000, 700)]), 700);
        assert_eq!(waited_for_others(&[]), 0);
    }

    /// Spins on more threads than there are cores, so that all of them wait.
    fn spin() {
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        let start = Instant::now();
        let spin = || while start.elapsed() < Duration::from_millis(300) {};
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(spin);
            }
            spin();
        });
    }

    #[test]
    fn a_thread_that_lost_its_core_is_seen() {
        let (mut watch, mut sifted) =
            (Watch::start(&[std::process::id()], 0).unwrap(), Sifted::default());
        spin();
        sifted.recent.push(1);
        watch.turn(LOOK_NS, false, &mut sifted).unwrap();
        assert_eq!((sifted.recent.len(), sifted.undisturbed.len()), (0, 0));
    }

    #[test]
    fn a_server_that_lost_its_core_is_seen() {
        let mut server = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let mut watch = Watch::start(&[server.id()], 0).unwrap();
        spin();
        let waited = watch.server[0].look().unwrap().waited_ns;
        server.kill().unwrap();
        server.wait().unwrap();
        assert!(waited > WAITED_NS_MAX, "{waited}");
    }
}
