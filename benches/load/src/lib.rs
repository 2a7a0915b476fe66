//! The load generator, which drives several servers in one run and compares them.
//!
//! Here: the map of the package. `main.rs` is its program, `bin/floor.rs` and `bin/cluster_floor`
//! are bare servers that it measures beside the others. In reading order:
//!
//! - requests and their expected replies: [`keys`], [`op`], [`take`], [`reply`], [`ledger`],
//!   [`exchange`]
//! - the same in other protocols: [`dialect`], [`redis`], [`resp`], [`wire`]
//! - the choice of keys: [`zipf`], [`spread`]
//! - the loop that sends: [`latency`], [`connection`], [`worker`], [`cell`]; other users of the
//!   cores: [`disturbance`]
//! - the servers: [`server`], [`limits_file`], [`cpu`], [`machine`]; the bare ones: [`bare`]
//! - the command line: [`rate`], [`lineup`], [`options`]
//! - the kinds of run: [`compare`], [`peers`], [`memory`], [`cluster`](mod@cluster)
//! - output: [`report`]
//!
//! Random numbers, tables, charts and progress lines are in `kit`.

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts and times become floats only to be averaged, compared and printed"
)]

pub mod bare;
pub mod cell;
pub mod cluster;
pub mod compare;
pub mod connection;
pub mod cpu;
pub mod dialect;
pub mod disturbance;
pub mod error;
pub mod exchange;
pub mod keys;
pub mod latency;
pub mod ledger;
pub mod limits_file;
pub mod lineup;
pub mod machine;
pub mod memory;
pub mod op;
pub mod options;
pub mod peers;
pub mod rate;
pub mod redis;
pub mod reply;
pub mod report;
pub mod resp;
pub mod server;
pub mod spread;
pub mod take;
pub mod watch;
pub mod wire;
pub mod worker;
pub mod zipf;

pub use error::LoadError;
