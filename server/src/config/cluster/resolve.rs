//! `ClusterFlags` → `ClusterConfig`: defaults, and rules that need more than one flag.
//!
//! Here: whether the node is in a cluster, its start mode, advertised addresses, refusals. Not
//! here: bounds of one value (`flags`), flags that contradict a cluster (`config::resolve`).

use std::path::PathBuf;
use std::time::Duration;

use cluster::placement::{Placement, Scheme};
use control::StartMode;

use super::super::{ConfigError, ListenAddr};
use super::address::{AdvertisedAddr, HostPort, is_every_interface, is_loopback};
use super::flags::{ClusterFlags, LostAfter, NodeRole};
use super::{ClusterConfig, PeerFiles};

/// memcached's port, the default for clients.
const CLIENT_PORT: u16 = 11211;
const PARTITION_BITS: u8 = 14;
const LOST_AFTER: Duration = Duration::from_mins(5);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(90);

fn refuse<T>(reason: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::Usage(reason.into()))
}

impl ClusterFlags {
    /// Resolves the flags. `listen` are the addresses for clients. `None`: the server runs alone.
    pub(in crate::config) fn resolve(
        self,
        listen: &[ListenAddr],
        warnings: &mut Vec<String>,
    ) -> Result<Option<ClusterConfig>, ConfigError> {
        let asked = [self.data_dir.is_some(), !self.join.is_empty(), !self.seeds.is_empty()];
        if !asked.contains(&true) && self.expect.is_none() {
            return match self.said() {
                Some(flag) => refuse(format!(
                    "{flag} is of a cluster: add --data-dir, --join, --seeds or --expect"
                )),
                None => Ok(None),
            };
        }
        let begin = self.begin()?;
        let weight = self.weight_in(begin)?;
        let advertise = self.client_address(listen)?;
        let peer_listen = self.peer_addresses(listen)?;
        let advertise_peer = self.peer_address(&peer_listen, &advertise);
        let peer_files = self.peer_files()?;
        let insecure = self.insecure.unwrap_or(false);
        let open = peer_listen.iter().find(|address| !is_loopback(&address.host));
        if let Some(open) = open {
            if peer_files == PeerFiles::None && !insecure {
                return refuse(format!(
                    "peers off loopback ({open}) must be secured: write --peer-key-file, or \
                     --peer-cert with --peer-key and --peer-ca, or --insecure to do without"
                ));
            }
            if is_loopback(&advertise_peer.host) {
                warnings.push(format!(
                    "nodes are told to find this one at {advertise_peer}, which no other machine \
                     reaches; --advertise-peer tells them another place"
                ));
            }
        }
        if self.data_dir.is_none() {
            let line = "no --data-dir: the cluster's map is kept in memory only, and after a \
                        restart this is a new node";
            warnings.push(line.to_owned());
        }
        let ring_name = self.name(&advertise)?;
        let founding = self.founding(begin, warnings);
        let seeds = if self.join.is_empty() { self.seeds } else { self.join };
        Ok(Some(ClusterConfig {
            data_dir: self.data_dir,
            begin,
            seeds: distinct(seeds.into_iter().flat_map(|list| list.0)),
            peer_listen,
            advertise,
            advertise_peer,
            ring_name,
            weight,
            zone: self.zone.unwrap_or_default(),
            placement: founding.placement,
            replicas: founding.replicas,
            lost_after: founding.lost_after,
            ack: self.ack.unwrap_or_default(),
            on_unavailable: self.on_unavailable.unwrap_or_default(),
            drain_timeout: self.drain_timeout.map_or(DRAIN_TIMEOUT, Duration::from_secs),
            peer_files,
            insecure,
        }))
    }

    /// The first flag that is set although it needs a cluster and does not start one.
    fn said(&self) -> Option<&'static str> {
        let flags = [
            (!self.peer_listen.is_empty(), "--peer-listen"),
            (self.advertise.is_some(), "--advertise"),
            (self.advertise_peer.is_some(), "--advertise-peer"),
            (self.ring_name.is_some(), "--ring-name"),
            (self.weight.is_some(), "--weight"),
            (self.zone.is_some(), "--zone"),
            (self.role.is_some(), "--role"),
            (self.placement.is_some(), "--placement"),
            (self.partition_bits.is_some(), "--partition-bits"),
            (self.replicas.is_some(), "--replicas"),
            (self.lost_after.is_some(), "--lost-after"),
            (self.ack.is_some(), "--ack"),
            (self.on_unavailable.is_some(), "--on-unavailable"),
            (self.drain_timeout.is_some(), "--drain-timeout"),
            (self.peer_key_file.is_some(), "--peer-key-file"),
            (self.peer_cert.is_some(), "--peer-cert"),
            (self.peer_key.is_some(), "--peer-key"),
            (self.peer_ca.is_some(), "--peer-ca"),
            (self.insecure == Some(true), "--insecure"),
        ];
        flags.into_iter().find(|(said, _)| *said).map(|(_, flag)| flag)
    }

    fn begin(&self) -> Result<StartMode, ConfigError> {
        match (self.join.is_empty(), self.seeds.is_empty(), self.expect) {
            (false, false, _) => {
                refuse("--join and --seeds: write one of them, --seeds if it may found a cluster")
            }
            (false, true, Some(_)) => {
                refuse("--expect founds a cluster, --join never does: write --seeds instead")
            }
            (false, true, None) | (true, false, None) => Ok(StartMode::Join),
            (true, false, Some(nodes)) => Ok(StartMode::Expect(nodes)),
            (true, true, None | Some(1)) => Ok(StartMode::Found),
            (true, true, Some(nodes)) => {
                refuse(format!("--expect {nodes}: write --seeds, where the others may be found"))
            }
        }
    }

    fn weight_in(&self, begin: StartMode) -> Result<u32, ConfigError> {
        match (self.role, self.weight) {
            (Some(NodeRole::Witness), Some(_)) => {
                refuse("--weight with --role witness: a witness holds nothing, so it has no share")
            }
            (Some(NodeRole::Witness), None) if begin == StartMode::Found => {
                refuse("--role witness needs --join or --seeds: alone it would hold nothing")
            }
            (Some(NodeRole::Witness), None) => Ok(0),
            (_, weight) => Ok(weight.unwrap_or(1)),
        }
    }

    /// The advertised address for clients.
    fn client_address(&self, listen: &[ListenAddr]) -> Result<HostPort, ConfigError> {
        match (&self.advertise, listen.first()) {
            (Some(AdvertisedAddr { host, port }), first) => {
                let port = port.or(first.map(|first| first.port)).unwrap_or(CLIENT_PORT);
                Ok(HostPort { host: host.clone(), port })
            }
            (None, None) => refuse(
                "nothing listens on TCP, and others must know where clients reach this node: \
                 write --advertise HOST:PORT",
            ),
            (None, Some(first)) if is_every_interface(&first.host) => refuse(format!(
                "-l {first} is every interface, and others must know where clients reach this \
                 node: write --advertise HOST"
            )),
            (None, Some(first)) => Ok(HostPort { host: first.host.clone(), port: first.port }),
        }
    }

    /// The addresses to listen on for other nodes.
    fn peer_addresses(&self, listen: &[ListenAddr]) -> Result<Vec<ListenAddr>, ConfigError> {
        let above = |port: u16| port.checked_add(ClusterConfig::PEER_PORT_ABOVE);
        if !self.peer_listen.is_empty() {
            let known = listen.first().map(|first| first.port).filter(|port| *port != 0);
            let port = known.and_then(above).unwrap_or(ClusterConfig::PEER_PORT);
            let lists = self.peer_listen.iter();
            return Ok(distinct(lists.flat_map(|list| list.resolve(port))));
        }
        let peers = listen.iter().map(|address| match address.port {
            0 => refuse(
                "the port for clients is any free one, so nobody knows the one for nodes: write \
                 --peer-listen ADDR:PORT",
            ),
            port => match above(port) {
                Some(port) => Ok(ListenAddr { host: address.host.clone(), port, label: None }),
                None => refuse(format!(
                    "nodes connect 10000 ports above clients, and {port} is too high for that: \
                     write --peer-listen ADDR:PORT"
                )),
            },
        });
        let peers: Vec<_> = peers.collect::<Result<_, _>>()?;
        if peers.is_empty() {
            return refuse("nothing listens on TCP: write where nodes connect, --peer-listen ADDR");
        }
        Ok(distinct(peers))
    }

    /// The advertised address for other nodes.
    fn peer_address(&self, listen: &[ListenAddr], client: &HostPort) -> HostPort {
        let port = listen.first().map_or(ClusterConfig::PEER_PORT, |first| first.port);
        if let Some(address) = &self.advertise_peer {
            return HostPort { host: address.host.clone(), port: address.port.unwrap_or(port) };
        }
        let host =
            listen.iter().map(|address| &address.host).find(|host| !is_every_interface(host));
        HostPort { host: host.unwrap_or(&client.host).clone(), port }
    }

    /// The ring name. Clients' server lists leave memcached's port out.
    fn name(&self, client: &HostPort) -> Result<String, ConfigError> {
        match (&self.ring_name, client.port) {
            (Some(name), _) => Ok(name.clone()),
            (None, 0) => refuse(
                "the port for clients is any free one, so it cannot be part of a name: write \
                 --ring-name NAME",
            ),
            (None, CLIENT_PORT) => Ok(client.host.clone()),
            (None, port) => Ok(format!("{}:{port}", client.host)),
        }
    }

    fn peer_files(&self) -> Result<PeerFiles, ConfigError> {
        let tls = [
            ("--peer-cert", &self.peer_cert),
            ("--peer-key", &self.peer_key),
            ("--peer-ca", &self.peer_ca),
        ];
        let said = tls.iter().find(|(_, path)| path.is_some());
        match (&self.peer_key_file, said) {
            (Some(_), Some((flag, _))) => {
                refuse(format!("--peer-key-file and {flag}: peers are secured in one way"))
            }
            (Some(path), None) => Ok(PeerFiles::Key(path.clone())),
            (None, None) => Ok(PeerFiles::None),
            (None, Some((flag, _))) => {
                let path = |(name, path): (&str, &Option<PathBuf>)| {
                    path.clone().ok_or_else(|| {
                        ConfigError::Usage(format!("{flag} without {name}: all three are needed"))
                    })
                };
                let [certificates, key, authorities] = tls.map(path);
                Ok(PeerFiles::Tls {
                    certificates: certificates?,
                    key: key?,
                    authorities: authorities?,
                })
            }
        }
    }

    /// The settings of a founder. A node that joins gets them from the cluster; its flags are
    /// ignored with a warning.
    fn founding(&self, begin: StartMode, warnings: &mut Vec<String>) -> Founding {
        let scheme = self.placement.unwrap_or(Scheme::Ketama);
        let bits = self.partition_bits.unwrap_or(PARTITION_BITS);
        let said = Founding {
            placement: Placement::new(scheme, bits).expect("the flag has its bound"),
            replicas: self.replicas.unwrap_or(ClusterConfig::REPLICAS),
            lost_after: match self.lost_after {
                None => Some(LOST_AFTER),
                Some(LostAfter::Never) => None,
                Some(LostAfter::Seconds(seconds)) => Some(Duration::from_secs(seconds)),
            },
        };
        if begin != StartMode::Join {
            return said;
        }
        let flags = [
            (self.placement.is_some(), "--placement"),
            (self.partition_bits.is_some(), "--partition-bits"),
            (self.replicas.is_some(), "--replicas"),
            (self.lost_after.is_some(), "--lost-after"),
        ];
        for (_, flag) in flags.iter().filter(|(said, _)| *said) {
            warnings
                .push(format!("{flag} has no effect: a node that joins is told by the cluster"));
        }
        Self::default().founding(StartMode::Found, warnings)
    }
}

/// The settings that are fixed when a cluster is founded.
struct Founding {
    placement: Placement,
    replicas: u8,
    lost_after: Option<Duration>,
}

/// Removes duplicates and keeps the order of first occurrence.
fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}
