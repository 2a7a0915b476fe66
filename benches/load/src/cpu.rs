//! CPU time of a process in nanoseconds, and which cores it may use.
//!
//! Here: `/proc/<pid>/task/*/schedstat` summed over the threads, and affinity. Not here: memory and
//! the process itself (`server`).
//!
//! The first number of `schedstat` is the time a thread ran, the second the time it was ready to
//! run and had no core; both in nanoseconds (Linux, `Documentation/scheduler/sched-stats.rst`).
//! `stat` counts in ticks of 10 ms, which is too coarse for a cell of a second. A running thread's
//! number is brought up to date at the scheduler's tick only, so it is read while the server
//! sleeps. On loopback the receiving half of TCP runs in the sender's time: a server is charged for
//! delivering its replies into the generator's sockets, the generator for delivering its requests.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fs, io};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// Nanoseconds of CPU in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// Time on a core.
    pub ran_ns: u64,
    /// Time ready to run, while another thread had the core.
    pub waited_ns: u64,
}

impl CpuUse {
    /// The use between `earlier` and this reading.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(earlier.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(earlier.waited_ns),
        }
    }
}

/// The use of all threads of a process up to some moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuReading {
    threads: BTreeMap<u32, CpuUse>,
}

impl CpuReading {
    /// Reads the threads of the process `pid` whose names begin with `names`: all if it is empty.
    ///
    /// # Errors
    ///
    /// If there is no such process, or the kernel keeps no `schedstat`.
    pub fn take(pid: u32, names: &str) -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            let entry = entry?;
            let thread = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let read = |file| match fs::read_to_string(entry.path().join(file)) {
                Ok(text) => Ok(Some(text)),
                // A thread may end between the listing and the opening, or the reading.
                Err(e) if is_gone(&e) => Ok(None),
                Err(e) => Err(e),
            };
            if !names.is_empty() && !read("comm")?.is_some_and(|name| name.starts_with(names)) {
                continue;
            }
            let Some(text) = read("schedstat")? else { continue };
            let (Some(thread), Some(used)) = (thread, parse(&text)) else {
                return Err(io::Error::other(format!("schedstat says {text:?}")));
            };
            threads.insert(thread, used);
        }
        if threads.is_empty() {
            return Err(io::Error::other(format!("process {pid} has no thread {names}*")));
        }
        Ok(Self { threads })
    }

    /// The use between `earlier` and this reading. A thread that ended in between is missed.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> CpuUse {
        let mut sum = CpuUse::default();
        for (thread, used) in &self.threads {
            let before = earlier.threads.get(thread).copied().unwrap_or_default();
            let since = used.since(before);
            sum.ran_ns += since.ran_ns;
            sum.waited_ns += since.waited_ns;
        }
        sum
    }
}

/// The first two numbers of a `schedstat`.
pub(crate) fn parse(schedstat: &str) -> Option<CpuUse> {
    let mut words = schedstat.split_ascii_whitespace().map(|word| word.parse().ok());
    Some(CpuUse { ran_ns: words.next()??, waited_ns: words.next()?? })
}

/// CPU time of this process, in nanoseconds.
///
/// # Errors
///
/// If the system has no such clock.
pub fn own_cpu_ns() -> io::Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?;
    Ok(Duration::from(time).as_nanos() as u64)
}

/// The cores of the servers and those of the generator.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    server: CpuSet,
    generator: CpuSet,
}

impl Cores {
    /// Assigns `core` to the servers, and all other available cores to the generator.
    ///
    /// # Errors
    ///
    /// If this process may not use `core`, or no other core is left.
    pub fn split(core: usize) -> io::Result<Self> {
        let mut generator = sched_getaffinity(Pid::from_raw(0))?;
        if !generator.is_set(core)? {
            return Err(io::Error::other(format!("core {core} is not ours to use")));
        }
        let mut server = CpuSet::new();
        server.set(core)?;
        generator.unset(core)?;
        if generator == CpuSet::new() {
            return Err(io::Error::other("pinning needs a second core for the generator"));
        }
        Ok(Self { server, generator })
    }

    /// Calls `start` with this thread on the servers' core; processes that it starts stay there.
    /// This thread, and threads it starts later, then run on the generator's cores.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    pub fn start_pinned<T>(&self, start: impl FnOnce() -> T) -> io::Result<T> {
        sched_setaffinity(Pid::from_raw(0), &self.server)?;
        let started = start();
        sched_setaffinity(Pid::from_raw(0), &self.generator)?;
        Ok(started)
    }
}

/// Whether a file of `/proc` disappeared with its thread.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32)
}

#[cfg(test)]
mod tests {
    use super::{CpuReading, CpuUse, own_cpu_ns, parse};

    #[test]
    fn schedstat_is_two_numbers_and_a_third() {
        let used = CpuUse { ran_ns: 1_454_340, waited_ns: 7 };
        assert_eq!(parse("1454340 7 3\n"), Some(used));
        assert_eq!(parse("1454340\n"), None);
        assert_eq!(parse("x 7 3\n"), None);
    }

    #[test]
    fn new_threads_count_from_zero_ended_ones_not_at_all() {
        let reading = |threads: &[(u32, u64)]| CpuReading {
            threads: threads
                .iter()
                .map(|&(n, ran_ns)| (n, CpuUse { ran_ns, waited_ns: 1 }))
                .collect(),
        };
        let used = reading(&[(2, 50), (3, 7)]).since(&reading(&[(1, 1000), (2, 40)]));
        assert_eq!(used, CpuUse { ran_ns: 17, waited_ns: 1 });
    }

    #[test]
    fn our_own_work_is_seen() {
        let (clock, reading) =
            (own_cpu_ns().unwrap(), CpuReading::take(std::process::id(), "").unwrap());
        while own_cpu_ns().unwrap() < clock + 30_000_000 {}
        let used = CpuReading::take(std::process::id(), "").unwrap().since(&reading);
        assert!(used.ran_ns > 10_000_000, "{used:?}");
    }
}
