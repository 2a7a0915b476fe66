//! The command line, before and after `--quick` and defaults are filled in.
//!
//! Here: names, defaults, bounds. Not here: their use in a run (`compare`, `memory`).

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::cell::Pace;
use crate::error::LoadError;
use crate::limits_file::LIMITS_MAX;
use crate::lineup;
use crate::op::{DEFAULT_KINDS, KINDS, Kind};
use crate::rate::{Rate, RateOf};
use crate::server::Recipe;

/// memcached as distributions package it, on one thread.
const MEMCACHED: &str = "memcached=memcached:/usr/bin/memcached -u root -t 1 -m {memory} -c 20000 \
                         -l 127.0.0.1 -p {port} -U 0";
/// Tollgate with equivalent options.
const TOLLGATE: &str =
    "tollgate=target/release/tollgate -t 1 -m {memory} -c 20000 -l 127.0.0.1 -p {port}";

/// Tollgate with a limits file of `count` limits.
fn with_limits(name: &str, count: u32) -> String {
    let (_, command) = TOLLGATE.split_once('=').unwrap_or_default();
    format!("{name}={command} --limits {{limits:{count}}}")
}

/// Drives servers side by side in one run and compares them.
///
/// Every reply is checked. Exit codes: 0 all replies right; 1 some wrong; 2 the run could not
/// finish.
#[derive(Debug, Clone, Parser)]
#[command(name = "load", version, max_term_width = 100)]
pub struct Options {
    /// A server as NAME=COMMAND, once for each, or NAME=DIALECT:COMMAND, with the dialect
    /// memcached, redis, redis-cell, throttlecrab or, if none is named, tollgate; {port} in it is
    /// replaced by a free port, {memory} by 1024 (4096 with --memory), {limits:N} by the path of a
    /// generated limits file of N limits, and {admin} by the port of the admin listener, where the
    /// run then scrapes the metrics every second and reads an overview page and a tail. Default:
    /// memcached and tollgate; tollgate alone for cells of verbs that memcached does not have
    #[arg(long = "server", value_name = "NAME=COMMAND")]
    pub servers: Vec<Recipe>,
    /// The server that ratios refer to. Default: the one called memcached, else the first
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,
    /// Pin the servers to this core, and the generator to all others
    #[arg(long, value_name = "CORE", num_args = 0..=1, default_missing_value = "0")]
    pub pin: Option<usize>,
    /// Kinds of cells, or `all` that memcached has. Default:
    /// incr,incr-zipf,incr-hot,get,set,get10,get100
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub cells: Vec<String>,
    /// Instead of the default servers: tollgate, once for each of these numbers, with a limits file
    /// of that many limits; the last of them matches the keys of incr-bound and take-bound
    #[arg(long, value_delimiter = ',', value_name = "LIST", conflicts_with = "servers")]
    pub limits_count: Vec<u32>,
    /// Count the CPU of the servers' workers alone, not that of their other threads
    #[arg(long, conflicts_with_all = ["memory", "cluster", "peers"])]
    pub workers_cpu: bool,
    /// Let all kinds take turns within a round, and show the cost of each beside this kind on the
    /// same server
    #[arg(long, value_name = "KIND", conflicts_with = "rate")]
    pub beside: Option<String>,
    /// Numbers of connections. Default: 1,50
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub connections: Vec<u32>,
    /// Requests sent in one write before their replies are awaited. Default: 1,16,64
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    pub pipelines: Vec<u32>,
    /// Open loop: after each closed cell, this much load with Poisson arrivals. `70%` is a share of
    /// the closed loop's throughput in this run, a plain number is operations a second
    #[arg(long, value_delimiter = ',', value_name = "LIST", num_args = 0..=1,
          default_missing_value = "50%,70%,90%")]
    pub rate: Vec<Rate>,
    /// The closed loop that the percentages of --rate refer to: `slowest` gives all servers the
    /// same load, `own` brings each near its own maximum
    #[arg(long, default_value = "slowest", value_name = "slowest|own")]
    pub rate_of: RateOf,
    /// Measured seconds of a cell. Default: 2
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Turns of every server with a cell. Default: 3
    #[arg(long)]
    pub rounds: Option<u32>,
    /// Like --rounds, for the open loop; with --peers only at the loads of a target, where the
    /// default is
    /// 101. Default: --rounds
    #[arg(long, value_name = "ROUNDS")]
    pub open_rounds: Option<u32>,
    /// Keys. Default: 1000000, with --memory 5000000
    #[arg(long)]
    pub keys: Option<u32>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// The seed of random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Never sleep while waiting for replies, so that no server pays for waking the generator
    #[arg(long)]
    pub busy_poll: bool,
    /// A short run for CI: incr and get, 50 connections, pipelines 1 and 16, 100000 keys
    #[arg(long)]
    pub quick: bool,
    /// Measure the memory of a counter on each server instead of its speed
    #[arg(long)]
    pub memory: bool,
    /// Instead of one server, measure clusters of one to three nodes of target/release/tollgate:
    /// `incr` (or --cells) sent to a key's owner and to other nodes, for each --connections,
    /// --pipelines and --rate
    #[arg(long, conflicts_with_all = ["servers", "memory", "limits_count", "beside"])]
    pub cluster: bool,
    /// With --cluster: only the shapes of this name, once for each
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub shape: Vec<String>,
    /// Instead of the default servers: memcached, redis, redis-cell, throttlecrab and tollgate, as
    /// far as they are installed, in closed and open loop; writes a page with pictures into this
    /// folder
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = "docs/performance",
          conflicts_with_all = ["servers", "memory", "cluster", "rate", "cells", "limits_count",
                                "beside", "connections"])]
    pub peers: Option<PathBuf>,
    /// Also write the report to this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl Options {
    /// Fills in defaults, and refuses contradictory options.
    ///
    /// # Errors
    ///
    /// [`LoadError::Options`].
    pub fn resolve(mut self) -> Result<Self, LoadError> {
        let refuse = |what: &str| Err(LoadError::Options(what.to_owned()));
        if self.limits_count.iter().any(|count| !(1..=LIMITS_MAX).contains(count)) {
            return refuse("--limits-count is out of range");
        }
        if self.cluster && self.connections.is_empty() {
            self.connections = vec![48];
            self.pipelines.extend(if self.pipelines.is_empty() { &[1, 16][..] } else { &[] });
        }
        if self.peers.is_some() {
            self.beside_peers();
        }
        if self.connections.is_empty() {
            self.connections = if self.quick { vec![50] } else { vec![1, 50] };
        }
        if self.pipelines.is_empty() {
            self.pipelines = match (self.quick, self.rate.is_empty()) {
                (_, false) => vec![1],
                (true, true) => vec![1, 16],
                (false, true) => vec![1, 16, 64],
            };
        }
        if self.cells.is_empty() && self.cluster {
            self.cells = vec!["incr".to_owned()];
        }
        if self.cells.is_empty() && self.quick {
            self.cells = vec!["incr".to_owned(), "get".to_owned()];
        }
        let seconds = *self.seconds.get_or_insert(if self.quick { 0.5 } else { 2.0 });
        let rounds = *self.rounds.get_or_insert(if self.quick { 2 } else { 3 });
        let keys = *self.keys.get_or_insert(match (self.memory, self.quick || self.cluster) {
            (true, _) => 5_000_000,
            (false, true) => 100_000,
            (false, false) => 1_000_000,
        });
        let kinds = self.kinds()?;
        if self.servers.is_empty() {
            self.servers = self.default_servers(&kinds);
        }
        let has_beside = |name: &str| kinds.iter().any(|kind| kind.name == name);
        if self.beside.as_ref().is_some_and(|name| !has_beside(name)) {
            return refuse("--beside names no kind of this run");
        }
        let names: Vec<&str> = self.servers.iter().map(|s| s.name.as_str()).collect();
        if names.iter().enumerate().any(|(n, name)| names[..n].contains(name)) {
            return refuse("two servers have one name");
        }
        if self.reference.as_ref().is_some_and(|name| !names.contains(&name.as_str())) {
            return refuse("--reference names no server of this run");
        }
        if !(0.01..=3600.0).contains(&seconds) {
            return refuse("--seconds must be between 0.01 and 3600");
        }
        if rounds == 0
            || self.open_rounds() == 0
            || keys == 0
            || keys > 1 << 30
            || !(1..=64).contains(&self.threads)
        {
            return refuse("--rounds, --open-rounds, --keys or --threads is out of range");
        }
        let in_range = |numbers: &[u32], most| numbers.iter().all(|n| (1..=most).contains(n));
        if !in_range(&self.connections, 10_000) || !in_range(&self.pipelines, 10_000) {
            return refuse("--connections and --pipelines go from 1 to 10000");
        }
        Ok(self)
    }

    /// Fills in the options of a run beside the peers. Its quick form is for tests of the program.
    fn beside_peers(&mut self) {
        self.servers = lineup::servers().0;
        self.cells = lineup::cells();
        self.connections = vec![lineup::CONNECTIONS];
        self.rate = lineup::SHARES.map(Rate::Share).to_vec();
        if self.pipelines.is_empty() {
            self.pipelines = if self.quick { vec![1, 16] } else { vec![1, 16, 64] };
        }
        // The median of many short rounds varies less than that of few long ones.
        self.seconds.get_or_insert(if self.quick { 0.1 } else { 0.2 });
        self.rounds.get_or_insert(if self.quick { 1 } else { 15 });
        // A 99th percentile varies between rounds more than CPU time does.
        self.open_rounds.get_or_insert(if self.quick { 1 } else { 101 });
        if self.quick {
            self.keys.get_or_insert(20_000);
        }
    }

    fn default_servers(&self, kinds: &[Kind]) -> Vec<Recipe> {
        let needs_limits = kinds.iter().any(|kind| kind.op.needs_limits());
        let recipes = match self.limits_count.as_slice() {
            [] if needs_limits => vec![with_limits("tollgate", 1)],
            [] if kinds.iter().any(|kind| kind.op.is_ours()) => vec![TOLLGATE.to_owned()],
            [] => vec![MEMCACHED.to_owned(), TOLLGATE.to_owned()],
            counts => {
                let recipe = |count: &u32| with_limits(&format!("limits-{count}"), *count);
                counts.iter().map(recipe).collect()
            }
        };
        recipes.iter().filter_map(|recipe| recipe.parse().ok()).collect()
    }

    /// The requested kinds of cells.
    ///
    /// # Errors
    ///
    /// [`LoadError::Options`], if there is no such kind.
    pub fn kinds(&self) -> Result<Vec<Kind>, LoadError> {
        match self.cells.as_slice() {
            [] => Ok(KINDS[..DEFAULT_KINDS].to_vec()),
            [all] if all == "all" => {
                Ok(KINDS.iter().filter(|kind| !kind.op.is_ours()).copied().collect())
            }
            names => names.iter().map(|name| kind_of(name)).collect(),
        }
    }

    /// The index of the server that ratios refer to.
    #[must_use]
    pub fn reference_index(&self) -> usize {
        let name = self.reference.as_deref().unwrap_or("memcached");
        self.servers.iter().position(|server| server.name == name).unwrap_or(0)
    }

    /// The number of rounds, resolved.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(1)
    }

    /// The number of rounds of the open loop, resolved.
    #[must_use]
    pub fn open_rounds(&self) -> u32 {
        self.open_rounds.unwrap_or_else(|| self.rounds())
    }

    /// The number of keys, resolved.
    #[must_use]
    pub fn keys(&self) -> u32 {
        self.keys.unwrap_or(1)
    }

    /// The timing of each cell. Warm-up takes another fifth of the measured time.
    #[must_use]
    pub fn pace(&self) -> Pace {
        let measure = Duration::from_secs_f64(self.seconds.unwrap_or(1.0));
        Pace { warm_up: measure / 5, measure, busy_poll: self.busy_poll, seed: self.seed }
    }
}

fn kind_of(name: &str) -> Result<Kind, LoadError> {
    KINDS.iter().find(|kind| kind.name == name).copied().ok_or_else(|| {
        let names: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        LoadError::Options(format!(
            "no kind of cell is called {name}; there are {}",
            names.join(", ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;
    use crate::rate::Rate;

    fn parse(words: &str) -> Result<Options, String> {
        let words = std::iter::once("load").chain(words.split_whitespace());
        Options::try_parse_from(words)
            .map_err(|e| e.to_string())?
            .resolve()
            .map_err(|e| e.to_string())
    }

    #[test]
    fn defaults_are_the_design_s_cells() {
        let options = parse("").unwrap();
        assert_eq!(
            (options.connections.clone(), options.pipelines.clone()),
            (vec![1, 50], vec![1, 16, 64])
        );
        assert_eq!(
            (options.keys(), options.rounds(), options.reference_index()),
            (1_000_000, 3, 0)
        );
        assert_eq!(options.kinds().unwrap().len(), 7);
        assert_eq!(parse("--memory").unwrap().keys(), 5_000_000);
        assert_eq!(parse("--quick --keys 7").unwrap().keys(), 7);
        assert_eq!(parse("--pin").unwrap().pin, Some(0));
    }

    #[test]
    fn rates_are_shares_or_numbers() {
        let shares = [0.5, 0.7, 0.9].map(Rate::Share).to_vec();
        assert_eq!(parse("--rate").unwrap().rate, shares);
        let options = parse("--rate 50000,25%").unwrap();
        assert_eq!(options.rate, [Rate::PerSecond(50_000.0), Rate::Share(0.25)]);
        assert_eq!(options.pipelines, [1]);
        assert!(parse("--rate fast").is_err());
        assert_eq!(parse("--rate --rounds 5").unwrap().open_rounds(), 5);
        assert_eq!(parse("--rate --rounds 5 --open-rounds 9").unwrap().open_rounds(), 9);
    }

    #[test]
    fn beside_the_peers_all_is_given() {
        let options = parse("--peers --pin").unwrap();
        assert_eq!(options.peers.as_deref(), Some(std::path::Path::new("docs/performance")));
        assert_eq!((options.connections.clone(), options.rate.len()), (vec![50], 3));
        assert_eq!(options.pipelines, [1, 16, 64]);
        assert_eq!((options.rounds(), options.open_rounds()), (15, 101));
        assert_eq!(options.kinds().unwrap().len(), 7);
        assert_eq!(parse("--peers here --quick").unwrap().keys(), 20_000);
        assert!(parse("--peers --cells incr").is_err());
    }

    #[test]
    fn verbs_that_memcached_has_not_run_on_tollgate_alone() {
        let servers = |words: &str| -> Vec<String> {
            parse(words).unwrap().servers.into_iter().map(|server| server.name).collect()
        };
        assert_eq!(servers("--cells incr"), ["memcached", "tollgate"]);
        assert_eq!(servers("--cells all"), ["memcached", "tollgate"]);
        assert_eq!(servers("--cells incr,take-bucket"), ["tollgate"]);
        assert_eq!(servers("--limits-count 1,500"), ["limits-1", "limits-500"]);
        let bound = parse("--cells incr-bound").unwrap();
        assert!(bound.servers[0].command.ends_with("{limits:1}"), "{:?}", bound.servers);
    }

    #[test]
    fn impossible_runs_are_refused() {
        for poor in [
            "--cells nonsense",
            "--rounds 0",
            "--open-rounds 0",
            "--reference x",
            "--connections 0",
            "--seconds 0",
            "--threads 0",
            "--keys 0",
            "--server a=x",
            "--beside incr --cells get",
            "--limits-count 0",
        ] {
            assert!(parse(poor).is_err(), "{poor}");
        }
    }
}
