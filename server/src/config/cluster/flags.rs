//! The flags of a cluster, as written.
//!
//! Here: every flag with its help text, merging two sources. Not here: resolving them (`resolve`).
//! The doc comment of a field is its line in `--help`.

use std::path::PathBuf;

use cluster::map::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX, WEIGHT_MAX};
use cluster::placement::{COPIES_MAX, NODES_MAX, PARTITION_BITS_MAX, Scheme};
use tollgate_limits::OnUnavailable;

use super::super::listen::ListenList;
use super::super::raw::SWITCH;
use super::super::value;
use super::Ack;
use super::address::{AdvertisedAddr, SeedList};

const CLUSTER: &str = "Cluster";

/// Minimum of `--partition-bits`: with fewer partitions the nodes' shares would be too uneven.
const PARTITION_BITS_MIN: u64 = 4;
/// Maximum of `--drain-timeout` and `--lost-after`, in seconds: a year.
const SECONDS_MAX: u64 = 366 * 24 * 60 * 60;

/// The cluster flags of one source, or of several merged.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(in crate::config) struct ClusterFlags {
    /// Directory of the cluster's map and log; without --join and --seeds, start a cluster of one
    /// node
    #[arg(long, help_heading = CLUSTER, value_name = "DIR", value_parser = value::path)]
    pub(super) data_dir: Option<PathBuf>,
    /// Join the cluster of one of these peers, comma-separated: host, host:port, dns:NAME:PORT
    /// [default port: 21211]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = SeedList::parse)]
    pub(super) join: Vec<SeedList>,
    /// Like --join; with --expect, found a new cluster together with these peers
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = SeedList::parse)]
    pub(super) seeds: Vec<SeedList>,
    /// Found a cluster as soon as NUM nodes without a cluster see each other at --seeds
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<usize>(1..=NODES_MAX as u64))]
    pub(super) expect: Option<usize>,
    /// Addresses for other nodes to connect to, comma-separated [default: the client addresses,
    /// 10000 ports above]
    #[arg(long, help_heading = CLUSTER)]
    #[arg(value_name = "ADDR", value_parser = ListenList::parse_plain)]
    pub(super) peer_listen: Vec<ListenList>,
    /// Address at which clients reach this node, published to clients and nodes: host or host:port
    /// [default: the first of --listen]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = AdvertisedAddr::parse)]
    pub(super) advertise: Option<AdvertisedAddr>,
    /// Address at which other nodes reach this node [default: the first of --peer-listen]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = AdvertisedAddr::parse)]
    pub(super) advertise_peer: Option<AdvertisedAddr>,
    /// Name of this node in clients' server lists [default: the advertised host, with :port unless
    /// 11211]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = ring_name)]
    pub(super) ring_name: Option<String>,
    /// Share of keys of this node, relative to other nodes [default: 1]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u32>(1..=WEIGHT_MAX as u64))]
    pub(super) weight: Option<u32>,
    /// Failure zone of this node; copies of a key avoid sharing a zone [default: none]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = zone)]
    pub(super) zone: Option<String>,
    /// node, or witness, which votes and forwards but holds no keys [default: node]
    #[arg(long, help_heading = CLUSTER, value_name = "ROLE", value_parser = role)]
    pub(super) role: Option<NodeRole>,
    /// When founding: placement of keys on nodes, ketama or xxh3 [default: ketama]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = placement)]
    pub(super) placement: Option<Scheme>,
    /// When founding: number of partitions, as a power of two [default: 14]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u8>(PARTITION_BITS_MIN..=PARTITION_BITS_MAX as u64))]
    pub(super) partition_bits: Option<u8>,
    /// When founding: copies of each key [default: 2]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u8>(1..=COPIES_MAX as u64))]
    pub(super) replicas: Option<u8>,
    /// When founding: seconds without a reachable copy after which keys start empty, or never
    /// [default: 300]
    #[arg(long, help_heading = CLUSTER, value_name = "SECONDS", value_parser = lost_after)]
    pub(super) lost_after: Option<LostAfter>,
    /// Reply to a change when all in-sync copies hold it (replica), or when its owner does (owner)
    /// [default: replica]
    #[arg(long, help_heading = CLUSTER, value_name = "WHO", value_parser = ack)]
    pub(super) ack: Option<Ack>,
    /// Decision of limits while the owner of a key is unreachable: local, allow, deny or error
    /// [default: local]
    #[arg(long, help_heading = CLUSTER, value_name = "WHAT", value_parser = on_unavailable)]
    pub(super) on_unavailable: Option<OnUnavailable>,
    /// Maximum seconds that a stopping node spends on giving its copies away [default: 90]
    #[arg(long, help_heading = CLUSTER, value_name = "SECONDS")]
    #[arg(value_parser = value::number::<u64>(0..=SECONDS_MAX))]
    pub(super) drain_timeout: Option<u64>,
    /// File with the key that all nodes share
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_key_file: Option<PathBuf>,
    /// Certificate of this node for other nodes, a PEM file
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_cert: Option<PathBuf>,
    /// Private key of --peer-cert, a PEM file
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_key: Option<PathBuf>,
    /// Authorities that sign the certificates of all nodes, a PEM file
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_ca: Option<PathBuf>,
    /// Accept peers from other machines without key or certificate
    #[arg(long, help_heading = CLUSTER, value_name = SWITCH)]
    pub(super) insecure: Option<bool>,
}

/// The role of a node in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeRole {
    /// Holds its share of keys.
    Node,
    /// Votes and forwards, holds no keys.
    Witness,
}

/// The time after which lost keys start empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostAfter {
    /// After this number of seconds.
    Seconds(u64),
    /// Only by an operator's command.
    Never,
}

/// The values of `--placement`.
pub(super) const SCHEMES: [(&str, Scheme); 2] =
    [("ketama", Scheme::Ketama), ("xxh3", Scheme::Xxh3)];

fn placement(text: &str) -> Result<Scheme, String> {
    one_of(text, &SCHEMES)
}

fn ack(text: &str) -> Result<Ack, String> {
    one_of(text, &Ack::ALL)
}

fn on_unavailable(text: &str) -> Result<OnUnavailable, String> {
    one_of(text, &OnUnavailable::ALL)
}

fn role(text: &str) -> Result<NodeRole, String> {
    one_of(text, &[("node", NodeRole::Node), ("witness", NodeRole::Witness)])
}

fn one_of<T: Copy>(text: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| *name == text.trim());
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let (last, others) = names.split_last().unwrap_or((&"", &[]));
        format!("expected {} or {last}", others.join(", "))
    })
}

fn lost_after(text: &str) -> Result<LostAfter, String> {
    match text.trim() {
        "never" => Ok(LostAfter::Never),
        number => value::number(1..=SECONDS_MAX)(number)
            .map(LostAfter::Seconds)
            .map_err(|expected| format!("{expected}, or never")),
    }
}

fn ring_name(text: &str) -> Result<String, String> {
    name(text, ADDRESS_BYTES_MAX)
}

fn zone(text: &str) -> Result<String, String> {
    name(text, NAME_BYTES_MAX)
}

/// Accepts a name that fits into a line of `stats` and into a list.
fn name(text: &str, bytes_max: usize) -> Result<String, String> {
    let text = value::word(text)?;
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',' || c == '|';
    if text.len() > bytes_max || text.contains(odd) {
        return Err(format!("expected at most {bytes_max} bytes without blank, comma or |"));
    }
    Ok(text)
}

impl ClusterFlags {
    /// Fills the flags that `self` leaves unset from a source of lower precedence. Lists are
    /// replaced as a whole.
    pub(in crate::config) fn or(mut self, lower: Self) -> Self {
        macro_rules! fill {
            ($($field:ident)*) => { $(self.$field = self.$field.or(lower.$field);)* };
        }
        fill! {
            data_dir expect advertise advertise_peer ring_name weight zone role placement
            partition_bits replicas lost_after ack on_unavailable drain_timeout peer_key_file
            peer_cert peer_key peer_ca insecure
        }
        macro_rules! replace {
            ($($field:ident)*) => {
                $(if self.$field.is_empty() { self.$field = lower.$field; })*
            };
        }
        replace! { join seeds peer_listen }
        self
    }
}
