//! The prerequisites of a node's start: the peer listeners, the control plane's data directory, and
//! the options of the transport.
//!
//! Not here: starting the tasks (`lifecycle`).

use std::io;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;

use cluster::id::{Incarnation, NodeId};
use control::{ControlOptions, ControlStore, StoreError};

use super::Node;
use crate::config::{ClusterConfig, Config, Seed};
use crate::net::{BoundListener, Listener};
use crate::runtime::listeners::{BindError, bind_each};
use crate::transport::{PeerIdentity, SecurityError, TransportOptions};

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The peer key or the certificates cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// An error of the operating system.
    #[error("peers: {0}")]
    Io(#[from] io::Error),
}

/// The listeners for other nodes, bound before there is a runtime.
pub(crate) struct PeerListeners {
    listeners: Vec<BoundListener>,
    client_port: u16,
}

impl PeerListeners {
    /// Binds the peer addresses.
    ///
    /// # Errors
    ///
    /// Those of binding client addresses.
    pub(crate) fn bind(
        cluster: &ClusterConfig,
        client_port: u16,
        backlog: u32,
    ) -> Result<Self, BindError> {
        let listeners = bind_each(&cluster.peer_listen, backlog)?;
        Ok(Self { listeners, client_port })
    }

    /// Opens the data directory and attaches the listeners to the current runtime.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(crate) fn setup(self, config: &Config, node: Arc<Node>) -> Result<Setup, NodeError> {
        let Some(cluster) = &config.cluster else {
            return Err(io::Error::other("the configuration has no cluster").into());
        };
        let port = self.listeners.iter().find_map(BoundListener::address);
        let port = port.map_or(0, |address| address.port());
        let listeners =
            self.listeners.into_iter().map(BoundListener::attach).collect::<io::Result<_>>()?;
        let store = match &cluster.data_dir {
            Some(directory) => ControlStore::open(directory)?,
            None => ControlStore::in_memory()?,
        };
        Setup::new(config, node, store, listeners, (self.client_port, port))
    }
}

impl Setup {
    /// Prepares the start of a node. `ports`: the bound ports for clients and for nodes.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(crate) fn new(
        config: &Config,
        node: Arc<Node>,
        store: ControlStore,
        listeners: Vec<Listener>,
        ports: (u16, u16),
    ) -> Result<Self, NodeError> {
        let Some(cluster) = &config.cluster else {
            return Err(io::Error::other("the configuration has no cluster").into());
        };
        let mut seed = [0; 16];
        crate::net::random::fill(&mut seed)?;
        let identity = PeerIdentity {
            cluster: 0,
            node: NodeId::default(),
            incarnation: Incarnation::default(),
            core: 0,
        };
        let mut transport = TransportOptions::new(identity, cluster.security()?);
        transport.insecure_confirmed = cluster.insecure;
        transport.grid = node.options.grid.clone();
        transport.workers = u16::try_from(config.threads).unwrap_or(u16::MAX);
        // A record may have an item's state twice; a chunk of a copy may have several answers.
        let least = 4 * config.item_bytes_max + (64 << 10);
        transport.bounds.frame_bytes_max = transport.bounds.frame_bytes_max.max(least);
        let control = ControlOptions {
            seed: u128::from_le_bytes(seed),
            description: cluster.description(ports.0, ports.1),
            placement: cluster.placement,
            begin: cluster.begin,
            seeds: resolve(&cluster.seeds),
            grid: node.options.grid.clone(),
        };
        Ok(Self { node, store, control, transport, listeners })
    }
}

/// The addresses of all seeds; a name that cannot be resolved now has none.
pub(super) fn resolve(seeds: &[Seed]) -> Vec<String> {
    let mut places = Vec::new();
    for seed in seeds {
        match seed {
            Seed::Place(place) => places.push(place.to_string()),
            Seed::Name(name) => match (name.host.as_str(), name.port).to_socket_addrs() {
                Ok(found) => places.extend(found.map(|address| address.to_string())),
                Err(error) => {
                    tracing::info!(%error, %name, "cannot resolve the seed's name; trying again");
                }
            },
        }
    }
    places
}

/// The prerequisites of a node's start.
pub(crate) struct Setup {
    pub(crate) node: Arc<Node>,
    pub(crate) store: ControlStore,
    pub(crate) control: ControlOptions,
    /// [`start`](super::lifecycle::start) fills in its identity.
    pub(crate) transport: TransportOptions,
    pub(crate) listeners: Vec<Listener>,
}
