//! Clusters of real processes, seen by clients while nodes join, leave, stop and die.
//!
//! Each cluster has loopback addresses of its own, so that every node listens on memcached's port
//! and standard clients find it by its name. Not here: the same under a simulated network
//! (`tests/sim`), the copies by themselves (`tests/model`).

mod aligned;
mod alone;
mod bans;
mod clocks;
mod cut;
mod data_links;
mod degraded;
mod directory;
mod disks;
mod faults;
mod figures;
mod five;
mod holders;
mod ids;
mod large;
mod last;
mod leases;
mod limits;
mod links;
mod llm;
mod mixed;
pub(crate) mod net;
mod nodes;
mod operator;
mod overload;
mod overridden;
mod pairs;
mod pictures;
mod plain;
mod promises;
mod rest;
mod rolling;
mod several;
mod shared;
mod starting;
mod steered;
mod system_calls;
mod update;
mod work;
