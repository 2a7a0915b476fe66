//! The load generator, which drives several servers in one run and compares them; and the accuracy
//! study, which is independent of speed.
//!
//! Here: the map of the package. `bin/load.rs` and `bin/accuracy.rs` are the programs, and
//! `bin/instructions`, which shares only [`table`]; criterion benches of single packages stand
//! beside this folder, not in it. The load generator, in reading order:
//!
//! - requests and their expected replies: [`keys`], [`op`], [`take`], [`reply`], [`ledger`],
//!   [`exchange`]
//! - the same in other protocols: [`dialect`], [`redis`], [`resp`]
//! - the choice of keys: [`rng`], [`zipf`], [`spread`]
//! - the loop that sends: [`connection`], [`worker`], [`cell`]; other users of the cores:
//!   [`disturbance`]
//! - the servers: [`server`], [`limits_file`], [`cpu`], [`machine`]
//! - the kinds of run: [`compare`], [`peers`], [`memory`], [`cluster`](mod@cluster), chosen in
//!   [`options`]
//! - output: [`progress`], [`table`], [`report`], [`chart`]
//!
//! The accuracy study is in [`accuracy`]; it shares [`rng`], [`table`], [`chart`] and [`progress`].

#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts and times become floats only to be averaged, compared and printed"
)]

pub mod accuracy;
pub mod cell;
pub mod chart;
pub mod cluster;
pub mod compare;
pub mod connection;
pub mod cpu;
pub mod dialect;
pub mod disturbance;
pub mod error;
pub mod exchange;
pub mod keys;
pub mod ledger;
pub mod limits_file;
pub mod local;
pub mod machine;
pub mod memory;
pub mod op;
pub mod options;
pub mod peers;
pub mod progress;
pub mod redis;
pub mod reply;
pub mod report;
pub mod resp;
pub mod rng;
pub mod server;
pub mod spread;
pub mod table;
pub mod take;
pub mod worker;
pub mod zipf;

pub use error::LoadError;
