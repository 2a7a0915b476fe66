//! The flags of a cluster, as written.
//!
//! Here: every flag with its help text, merging two sources. Not here: what they add up to
//! (`resolve`). The doc comment of a field is its line in `--help`.

use std::path::PathBuf;

use cluster::map::{ADDRESS_BYTES_MAX, NAME_BYTES_MAX, WEIGHT_MAX};
use cluster::placement::{COPIES_MAX, NODES_MAX, PARTITION_BITS_MAX, Scheme};

use super::super::listen::ListenList;
use super::super::raw::SWITCH;
use super::super::value;
use super::Ack;
use super::address::{AdvertisedAddr, SeedList};
use crate::limits::OnUnavailable;

const CLUSTER: &str = "Cluster";

/// Fewest partitions are two to the power of this. Ours: below, shares of nodes are too uneven.
const PARTITION_BITS_MIN: u64 = 4;
/// Longest time of `--drain-timeout` and `--lost-after`, in seconds: a year.
const SECONDS_MAX: u64 = 366 * 24 * 60 * 60;

/// What one source, or several merged, says of a cluster.
#[derive(Debug, Clone, Default, PartialEq, clap::Args)]
pub(in crate::config) struct ClusterFlags {
    /// Keep the cluster's map and log in DIR; without --join and --seeds it is a cluster of one
    #[arg(long, help_heading = CLUSTER, value_name = "DIR", value_parser = value::path)]
    pub(super) data_dir: Option<PathBuf>,
    /// Join the cluster of one of these peers, by comma: host, host:port, dns:NAME:PORT
    /// [default port: 21211]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = SeedList::parse)]
    pub(super) join: Vec<SeedList>,
    /// The same, or with --expect found a cluster with these peers
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = SeedList::parse)]
    pub(super) seeds: Vec<SeedList>,
    /// Found a cluster when so many nodes without one see each other at --seeds
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<usize>(1..=NODES_MAX as u64))]
    pub(super) expect: Option<usize>,
    /// Where other nodes connect, by comma [default: as clients, 10000 ports above]
    #[arg(long, help_heading = CLUSTER)]
    #[arg(value_name = "ADDR", value_parser = ListenList::parse_plain)]
    pub(super) peer_listen: Vec<ListenList>,
    /// Where clients and nodes are told that clients reach this one: host or host:port
    /// [default: the first of --listen]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = AdvertisedAddr::parse)]
    pub(super) advertise: Option<AdvertisedAddr>,
    /// Where nodes are told to connect [default: the first of --peer-listen]
    #[arg(long, help_heading = CLUSTER, value_name = "ADDR", value_parser = AdvertisedAddr::parse)]
    pub(super) advertise_peer: Option<AdvertisedAddr>,
    /// Its name in clients' server lists [default: the advertised host, with :port unless 11211]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = ring_name)]
    pub(super) ring_name: Option<String>,
    /// Its share of keys, relative to others [default: 1]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u32>(1..=WEIGHT_MAX as u64))]
    pub(super) weight: Option<u32>,
    /// Copies of a key avoid sharing a zone [default: none]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = zone)]
    pub(super) zone: Option<String>,
    /// node, or witness: it votes, forwards and holds nothing [default: node]
    #[arg(long, help_heading = CLUSTER, value_name = "ROLE", value_parser = role)]
    pub(super) role: Option<NodeRole>,
    /// When founding: how keys find nodes, ketama or xxh3 [default: ketama]
    #[arg(long, help_heading = CLUSTER, value_name = "NAME", value_parser = placement)]
    pub(super) placement: Option<Scheme>,
    /// When founding: two to the power of NUM partitions [default: 14]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u8>(PARTITION_BITS_MIN..=PARTITION_BITS_MAX as u64))]
    pub(super) partition_bits: Option<u8>,
    /// When founding: copies of each counter [default: 2]
    #[arg(long, help_heading = CLUSTER, value_name = "NUM")]
    #[arg(value_parser = value::number::<u8>(1..=COPIES_MAX as u64))]
    pub(super) replicas: Option<u8>,
    /// When founding: seconds after which keys without a copy in reach begin anew, or never
    /// [default: 300]
    #[arg(long, help_heading = CLUSTER, value_name = "SECONDS", value_parser = lost_after)]
    pub(super) lost_after: Option<LostAfter>,
    /// Who has a change when it is answered: replica or owner [default: replica]
    #[arg(long, help_heading = CLUSTER, value_name = "WHO", value_parser = ack)]
    pub(super) ack: Option<Ack>,
    /// What limits do while their owner cannot be reached: local, allow, deny or error
    /// [default: local]
    #[arg(long, help_heading = CLUSTER, value_name = "WHAT", value_parser = on_unavailable)]
    pub(super) on_unavailable: Option<OnUnavailable>,
    /// Seconds that a node which ends may take to give its copies away [default: 90]
    #[arg(long, help_heading = CLUSTER, value_name = "SECONDS")]
    #[arg(value_parser = value::number::<u64>(0..=SECONDS_MAX))]
    pub(super) drain_timeout: Option<u64>,
    /// File with the key that all nodes have
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_key_file: Option<PathBuf>,
    /// Certificate that this node shows to others, in PEM
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_cert: Option<PathBuf>,
    /// Private key of that certificate
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_key: Option<PathBuf>,
    /// Authority that signed the certificates of all nodes
    #[arg(long, help_heading = CLUSTER, value_name = "FILE", value_parser = value::path)]
    pub(super) peer_ca: Option<PathBuf>,
    /// Let any peer off loopback in, without key or certificate
    #[arg(long, help_heading = CLUSTER, value_name = SWITCH)]
    pub(super) insecure: Option<bool>,
}

/// What a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeRole {
    /// It holds its share.
    Node,
    /// It votes only.
    Witness,
}

/// When lost keys may begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LostAfter {
    /// After so many seconds.
    Seconds(u64),
    /// An operator must say so.
    Never,
}

/// How keys find nodes, in the words of the flag.
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

/// A name that can stand in a line of `stats` and in a list.
fn name(text: &str, bytes_max: usize) -> Result<String, String> {
    let text = value::word(text)?;
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == ',' || c == '|';
    if text.len() > bytes_max || text.contains(odd) {
        return Err(format!("expected at most {bytes_max} bytes without blank, comma or |"));
    }
    Ok(text)
}

impl ClusterFlags {
    /// Fills what `self` leaves open from a source of less weight. Lists are replaced as a whole.
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
