//! A network of namespaces whose links can be cut.
//!
//! Here: a namespace for each node, joined by two bridges; a node is on one of them, or on none.
//! Not here: nodes (`nodes`). Requires root and `ip`; where either is missing, [`Net::new`] returns
//! the reason, and a test without a network must report it too: [`Net::or_say_why`].
//!
//! ```text
//!   clients ── first bridge ── nodes 0 … n        cut: a node's link is down
//!          └── second bridge                      part: nodes change to the second bridge
//!                                                 lose: packets of one node to another vanish
//! ```
//!
//! Both bridges have the clients' address and the same hardware address, so a node notices the
//! change of its bridge only by the nodes that it no longer reaches.

use std::{
    net::Ipv4Addr,
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
};

/// A hardware address without an interface: packets to it vanish without an error.
const NOWHERE: &str = "02:00:00:00:00:01";
/// The address of both bridges.
const HARDWARE_ADDRESS: &str = "02:00:00:00:00:fe";

/// Some namespaces. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Net {
    /// The prefix of all names; an interface's name has at most 15 bytes.
    name: String,
    /// The second and third part of the addresses.
    net: (u8, u8),
    nodes: u8,
}

/// Runs `ip`; returns its error output if it fails.
fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(words.split_whitespace())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {words}: {}", said.trim()))
}

impl Net {
    /// A network without nodes.
    ///
    /// # Errors
    ///
    /// The reason that this machine cannot have one.
    fn new() -> Result<Self, String> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net = ((pid % 250 + 2) as u8, number as u8);
        let net = Self { name: format!("tg{}x{number}", pid % 100_000), net, nodes: 0 };
        for side in ["a", "b"] {
            let bridge = net.bridge(side);
            ip(&format!(
                "link add {bridge} address {HARDWARE_ADDRESS} type bridge forward_delay 0"
            ))?;
            ip(&format!("address add {}/32 dev {bridge}", net.address(254)))?;
            ip(&format!("link set {bridge} up"))?;
        }
        Ok(net)
    }

    /// A network; `None` where this machine cannot have one, which is then printed.
    pub(crate) fn or_say_why(test: &str) -> Option<Self> {
        let laid = Self::new().and_then(|mut net| net.add().map(|_| net));
        match laid {
            Ok(mut net) => {
                net.nodes = 0;
                Some(net)
            }
            Err(why) => {
                // Written directly, because the harness captures `eprintln` while tests pass.
                let message =
                    format!("\n*** SKIPPED {test}: no network namespaces here: {why} ***\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), message.as_bytes());
                None
            }
        }
    }

    fn bridge(&self, side: &str) -> String {
        format!("{}{side}", self.name)
    }

    fn link(&self, node: u8) -> String {
        format!("{}v{node}", self.name)
    }

    /// The namespace of a node.
    pub(crate) fn space(&self, node: u8) -> String {
        format!("{}n{node}", self.name)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.net.0, self.net.1, last)
    }

    /// The address of a node.
    pub(crate) fn host(&self, node: u8) -> Ipv4Addr {
        self.address(node + 1)
    }

    /// Adds the namespace of one more node, on the first bridge.
    pub(crate) fn add(&mut self) -> Result<u8, String> {
        let node = self.nodes;
        let (space, link, host) = (self.space(node), self.link(node), self.host(node));
        self.nodes += 1;
        if ip(&format!("netns add {space}")).is_err() {
            // The constructor's trial has created it.
            return ip(&format!("link show {link}")).map(|()| node);
        }
        ip(&format!("link add {link} type veth peer name eth0 netns {space}"))?;
        ip(&format!("-n {space} address add {host}/24 dev eth0"))?;
        ip(&format!("-n {space} link set lo up"))?;
        ip(&format!("-n {space} link set eth0 up"))?;
        self.put(node, "a")?;
        ip(&format!("link set {link} up"))?;
        Ok(node)
    }

    /// Connects a node to one of the bridges.
    fn put(&self, node: u8, side: &str) -> Result<(), String> {
        let bridge = self.bridge(side);
        ip(&format!("link set {} master {bridge}", self.link(node)))?;
        let (host, clients) = (self.host(node), self.address(254));
        ip(&format!("route replace {host}/32 dev {bridge} src {clients}"))
    }

    /// Separates nodes from the others; clients reach all of them as before.
    pub(super) fn part(&self, nodes: &[u8]) {
        for node in nodes {
            self.put(*node, "b").expect("the links are ours");
        }
    }

    /// Separates a node from all others and from clients.
    pub(super) fn cut(&self, node: u8) {
        ip(&format!("link set {} down", self.link(node))).expect("the links are ours");
    }

    /// Drops the packets of one node to another, in this direction only.
    pub(super) fn lose(&self, from: u8, to: u8) {
        let (space, host) = (self.space(from), self.host(to));
        let entry = format!("neigh replace {host} lladdr {NOWHERE} nud permanent dev eth0");
        ip(&format!("-n {space} {entry}")).expect("the spaces are ours");
    }

    /// Stops dropping the packets of one node to another.
    pub(super) fn find(&self, from: u8, to: u8) {
        // There is no entry if no packet was dropped.
        let _ = ip(&format!("-n {} neigh del {} dev eth0", self.space(from), self.host(to)));
    }

    /// Drops all packets between a node and all others; clients reach all of them as before.
    pub(super) fn isolate(&self, node: u8) {
        for other in (0..self.nodes).filter(|other| *other != node) {
            self.lose(node, other);
            self.lose(other, node);
        }
    }

    /// Connects all nodes to each other again.
    pub(super) fn heal(&self) {
        for (from, to) in (0..self.nodes).flat_map(|from| (0..self.nodes).map(move |to| (from, to)))
        {
            if from != to {
                self.find(from, to);
            }
        }
        for node in 0..self.nodes {
            ip(&format!("link set {} up", self.link(node))).expect("the links are ours");
            self.put(node, "a").expect("the links are ours");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // The link of the first may exist even without nodes.
        for node in 0..self.nodes.max(1) {
            let _ = ip(&format!("link del {}", self.link(node)));
            let _ = ip(&format!("netns del {}", self.space(node)));
        }
        for side in ["a", "b"] {
            let _ = ip(&format!("link del {}", self.bridge(side)));
        }
    }
}
