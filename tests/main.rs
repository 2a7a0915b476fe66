//! All integration tests of Tollgate, in one binary.
//!
//! Here: the map. `CONTROL=memcached` runs the tests of `clients` and `robustness` on a real
//! memcached instead, to distinguish our mistakes from theirs; `TRANSCRIPT=text` plays only the
//! conversations whose file, line or name contains the text.

mod api;
mod at_scale;
mod book_examples;
mod buffers;
mod clients;
mod clocks;
mod cluster;
mod crowd;
mod deploy;
mod doc_links;
mod doctor;
mod examples;
mod faketime;
mod garbage;
mod guesses;
mod http;
mod idle;
mod ids;
mod incident;
mod ketama;
mod lifecycle;
mod limits;
mod limits_crash;
mod live;
mod llm;
mod memory;
mod observe;
mod operators;
mod players;
mod policies;
mod pressed;
mod races;
mod readme;
mod reference;
mod robustness;
mod smuggling;
mod snapshots;
mod stats;
mod tidy;
mod top;
mod transcript;
mod ways;
mod workflows;
