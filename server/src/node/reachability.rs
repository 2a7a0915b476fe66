//! The nodes that this one reaches: over its own link, through another node, or not at all.
//!
//! Here: decisions from signs of life and from time. Not here: signs of life on a link
//! (`crate::transport`), the path of each frame (`paths`).
//!
//! If the link to a peer is broken, this node pings the peer through several other nodes at once.
//! The node that delivers the first answer is the relay from then on, while answers come through it
//! and the link stays broken. A peer that neither path reaches is away after a while, and then
//! receives pings only.

use std::collections::BTreeMap;

use cluster::id::NodeId;

const MS: u64 = 1_000_000;
/// A link that takes longer to open counts as broken.
const OPENING_NS: u64 = 300 * MS;
/// Time from an answer through the relay to the next ping through it.
const PROBE_NS: u64 = 100 * MS;
/// A relay that delivers no answer within this time is dropped.
const SILENT_NS: u64 = 300 * MS;
/// Longest pause between two searches for a relay; it doubles from [`PROBE_NS`].
const SEARCH_NS_MAX: u64 = 1000 * MS;
/// Relays to a peer are searched only for this long after a frame for the peer.
const WANTED_NS: u64 = 2000 * MS;
/// An unreachable peer is away after this time if this node is cut off from most voters…
const AWAY_ALONE_NS: u64 = 1000 * MS;
/// …and after this time if it is not, because the map then soon names another owner.
const AWAY_NS: u64 = 1800 * MS;
/// Most nodes through which one peer is pinged.
const RELAYS_MAX: usize = 8;

/// The path of frames to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Path {
    /// Over the link to it.
    #[default]
    Direct,
    /// Through this node.
    Through(NodeId),
    /// No known path; this node tries to open the link.
    Broken,
    /// `Broken` for long enough that no operation should wait for the node.
    Away,
}

/// An action for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReachAction {
    /// Frames to a node take this path from now on.
    Take(NodeId, Path),
    /// Ping `peer` through `relay`.
    Ask { peer: NodeId, relay: NodeId, number: u64 },
    /// Try to open the link.
    Probe(NodeId),
}

/// The link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum LinkState {
    /// No link is up, and none is wanted.
    #[default]
    Idle,
    /// The link has been opening since this time.
    Opening(u64),
    Up,
    /// The link has been silent, or could not be opened, since this time.
    Broken(u64),
}

#[derive(Debug, Default)]
struct PeerReach {
    link: LinkState,
    relay: Option<NodeId>,
    /// The last ping through relays: its number, its time, and whether it was answered.
    number: u64,
    probed_ns: u64,
    is_answered: bool,
    pause_ns: u64,
    /// When a frame was last sent to the peer while its link was broken.
    wanted_ns: u64,
    path: Path,
    /// The silent data links, one bit each, and the start of the silence.
    silent_links: u16,
    silent_ns: u64,
}

/// The reachability of all peers.
#[derive(Debug, Default)]
pub(super) struct Reachability {
    peers: BTreeMap<NodeId, PeerReach>,
}

impl Reachability {
    /// Adds a node of the map and returns the path to it. Events of other nodes change nothing: the
    /// last events of a node may come after it has left the map.
    pub(super) fn path_to(&mut self, node: NodeId) -> Path {
        self.peers.entry(node).or_default().path
    }

    /// A link is being opened.
    pub(super) fn opening(&mut self, node: NodeId, now_ns: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.link == LinkState::Idle {
            peer.link = LinkState::Opening(now_ns);
        }
    }

    /// The link is up, or the peer answers on it again.
    pub(super) fn link_up(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.link = LinkState::Up;
        }
    }

    /// Records that the peer is alive, whether its link is up or not. `Away` becomes `Broken`
    /// again.
    pub(super) fn note_alive(&mut self, node: NodeId, now_ns: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if let LinkState::Broken(_) = peer.link {
            peer.link = LinkState::Broken(now_ns);
            peer.pause_ns = 0;
        }
    }

    /// The link ended in an orderly way, or the peer's process ended.
    pub(super) fn down(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if !matches!(peer.link, LinkState::Broken(_)) {
            peer.link = LinkState::Idle;
        }
    }

    /// The link has been silent, or could not be opened, for `for_ns`.
    pub(super) fn broken(&mut self, node: NodeId, now_ns: u64, for_ns: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let since_ns = now_ns.saturating_sub(for_ns);
        peer.link = match peer.link {
            LinkState::Broken(since_ns) => LinkState::Broken(since_ns),
            LinkState::Opening(opened_ns) => LinkState::Broken(opened_ns.min(since_ns)),
            LinkState::Idle | LinkState::Up => LinkState::Broken(since_ns),
        };
    }

    /// A data link is silent, although a ping was sent [`SILENT_NS`] ago.
    pub(super) fn data_link_silent(&mut self, node: NodeId, index: u16, now_ns: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if peer.silent_links == 0 {
            peer.silent_ns = now_ns.saturating_sub(SILENT_NS);
        }
        peer.silent_links |= 1 << index;
    }

    /// A data link is no longer silent, or has ended.
    pub(super) fn data_link_up(&mut self, node: NodeId, index: u16) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.silent_links &= !(1 << index);
        }
    }

    /// A frame was sent to a peer, or refused because the peer is away.
    pub(super) fn wanted(&mut self, node: NodeId, now_ns: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.wanted_ns = now_ns;
        }
    }

    /// An answer of a peer came through a relay.
    pub(super) fn answered(&mut self, node: NodeId, relay: NodeId, number: u64) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if number == peer.number && peer.relay.is_none_or(|known| known == relay) {
            peer.relay = Some(relay);
            peer.is_answered = true;
            peer.pause_ns = 0;
        }
    }

    /// Drops all nodes for which `is_known` is false.
    pub(super) fn retain(&mut self, is_known: impl Fn(NodeId) -> bool) {
        self.peers.retain(|node, _| is_known(*node));
        for peer in self.peers.values_mut() {
            peer.relay = peer.relay.filter(|relay| is_known(*relay));
        }
    }

    /// Whether this node can pass a frame on over its own link to `node`, as far as it knows.
    pub(super) fn is_direct(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_none_or(|peer| !matches!(peer.link, LinkState::Broken(_)))
    }

    /// Whether the passing of time alone may cause an action.
    pub(super) fn is_unsettled(&self) -> bool {
        self.peers.values().any(|peer| {
            peer.silent_links != 0
                || matches!(peer.link, LinkState::Opening(_) | LinkState::Broken(_))
        })
    }

    /// The number of peers whose link is broken.
    pub(super) fn broken_links(&self) -> usize {
        self.peers.values().filter(|peer| matches!(peer.link, LinkState::Broken(_))).count()
    }

    /// Advances the time and returns the resulting actions. `is_alone`: this node has no contact to
    /// most voters. Called after each of the other methods too, for the actions that follow at
    /// once.
    pub(super) fn tick(&mut self, now_ns: u64, is_alone: bool) -> Vec<ReachAction> {
        let mut actions = Vec::new();
        // The first frame opens an idle link.
        let relays: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.silent_links == 0)
            .filter(|(_, peer)| matches!(peer.link, LinkState::Up | LinkState::Idle))
            .map(|(node, _)| *node)
            .collect();
        for (&node, peer) in &mut self.peers {
            if let LinkState::Opening(since_ns) = peer.link
                && now_ns.saturating_sub(since_ns) >= OPENING_NS
            {
                peer.link = LinkState::Broken(since_ns);
            }
            let path = if let LinkState::Broken(mut since_ns) = peer.link {
                if peer.silent_links != 0 {
                    since_ns = since_ns.min(peer.silent_ns);
                }
                peer.look_for_relay(node, now_ns, &relays, &mut actions);
                match peer.relay {
                    Some(relay) => Path::Through(relay),
                    None => broken_for(now_ns.saturating_sub(since_ns), is_alone),
                }
            } else if peer.silent_links != 0 {
                peer.look_for_relay(node, now_ns, &relays, &mut actions);
                // The control link may still deliver frames.
                peer.relay.map_or(Path::Broken, Path::Through)
            } else {
                peer.relay = None;
                peer.pause_ns = 0;
                Path::Direct
            };
            if std::mem::replace(&mut peer.path, path) != path {
                actions.push(ReachAction::Take(node, path));
            }
        }
        actions
    }
}

fn broken_for(silence_ns: u64, is_alone: bool) -> Path {
    let away_ns = if is_alone { AWAY_ALONE_NS } else { AWAY_NS };
    if silence_ns >= away_ns { Path::Away } else { Path::Broken }
}

impl PeerReach {
    /// Pings the peer: through the relay, or without one through the nodes in reach.
    fn look_for_relay(
        &mut self,
        node: NodeId,
        now_ns: u64,
        relays: &[NodeId],
        actions: &mut Vec<ReachAction>,
    ) {
        if now_ns.saturating_sub(self.wanted_ns) >= WANTED_NS {
            self.relay = None;
            return;
        }
        let waited_ns = now_ns.saturating_sub(self.probed_ns);
        if self.relay.is_some_and(|relay| !relays.contains(&relay))
            || (!self.is_answered && waited_ns >= SILENT_NS)
        {
            self.relay = None;
        }
        let pause_ns = if self.relay.is_some() { PROBE_NS } else { self.pause_ns };
        let may_ask = self.relay.is_none() || self.is_answered;
        if !may_ask || waited_ns < pause_ns {
            return;
        }
        self.number += 1;
        self.probed_ns = now_ns;
        self.is_answered = false;
        let number = self.number;
        if let Some(relay) = self.relay {
            actions.push(ReachAction::Ask { peer: node, relay, number });
        } else {
            self.pause_ns = (self.pause_ns * 2).clamp(PROBE_NS, SEARCH_NS_MAX);
            // Each peer's search begins at another node, so that one node does not relay for all.
            let from = relays.iter().position(|other| *other > node).unwrap_or(0);
            let asked = relays.iter().cycle().skip(from).take(relays.len().min(RELAYS_MAX));
            actions.extend(asked.map(|&relay| ReachAction::Ask { peer: node, relay, number }));
        }
        // The link is tried all the while.
        actions.push(ReachAction::Probe(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(2);
    const OTHER: NodeId = NodeId(3);
    const THIRD: NodeId = NodeId(4);

    /// Three peers whose links are up.
    fn reach() -> Reachability {
        let mut reach = Reachability::default();
        for node in [PEER, OTHER, THIRD] {
            reach.path_to(node);
            reach.link_up(node);
        }
        assert_eq!(reach.tick(0, false), []);
        reach
    }

    fn asks(actions: &[ReachAction]) -> Vec<(NodeId, u64)> {
        let ask = |action: &ReachAction| match action {
            ReachAction::Ask { peer, relay, number } if *peer == PEER => Some((*relay, *number)),
            _ => None,
        };
        actions.iter().filter_map(ask).collect()
    }

    fn path(actions: &[ReachAction]) -> Option<Path> {
        actions.iter().find_map(|action| match action {
            ReachAction::Take(PEER, path) => Some(*path),
            _ => None,
        })
    }

    #[test]
    fn first_node_that_answers_is_the_relay() {
        let mut reach = reach();
        reach.broken(PEER, 5000 * MS, 300 * MS);
        reach.wanted(PEER, 5000 * MS);
        let actions = reach.tick(5000 * MS, false);
        assert_eq!(asks(&actions), [(OTHER, 1), (THIRD, 1)]);
        assert!(actions.contains(&ReachAction::Probe(PEER)));
        assert_eq!(path(&actions), Some(Path::Broken));
        reach.answered(PEER, THIRD, 1);
        reach.answered(PEER, OTHER, 1);
        assert_eq!(path(&reach.tick(5001 * MS, false)), Some(Path::Through(THIRD)));
        reach.wanted(PEER, 5100 * MS);
        assert_eq!(asks(&reach.tick(5100 * MS, false)), [(THIRD, 2)]);
        // The relay is silent: the others are asked.
        reach.wanted(PEER, 5400 * MS);
        let actions = reach.tick(5400 * MS, false);
        assert_eq!(asks(&actions), [(OTHER, 3), (THIRD, 3)]);
        assert_eq!(path(&actions), Some(Path::Broken));
        reach.answered(PEER, THIRD, 2);
        assert_eq!(path(&reach.tick(5410 * MS, false)), None, "that answer is too old");
        reach.answered(PEER, OTHER, 3);
        assert_eq!(path(&reach.tick(5411 * MS, false)), Some(Path::Through(OTHER)));
        reach.link_up(PEER);
        assert_eq!(path(&reach.tick(5412 * MS, false)), Some(Path::Direct));
    }

    #[test]
    fn peer_linked_before_the_map_had_it_is_a_relay() {
        let mut reach = Reachability::default();
        reach.link_up(OTHER);
        reach.retain(|node| node == PEER);
        for node in [PEER, OTHER] {
            reach.path_to(node);
        }
        reach.broken(PEER, 5000 * MS, 300 * MS);
        reach.wanted(PEER, 5000 * MS);
        assert_eq!(asks(&reach.tick(5000 * MS, false)), [(OTHER, 1)]);
    }

    #[test]
    fn last_events_of_a_node_that_left_change_nothing() {
        let mut reach = reach();
        reach.retain(|node| node != PEER);
        reach.opening(PEER, 5000 * MS);
        reach.broken(PEER, 5009 * MS, 0);
        reach.data_link_silent(PEER, 1, 5009 * MS);
        reach.link_up(PEER);
        reach.down(PEER);
        reach.note_alive(PEER, 5010 * MS);
        assert_eq!(reach.broken_links(), 0);
        assert!(!reach.is_unsettled());
        assert_eq!(reach.tick(9000 * MS, false), []);
    }

    #[test]
    fn peer_in_no_reach_is_away_sooner_without_majority() {
        for (is_alone, away_ms) in [(true, 1000), (false, 1800)] {
            let mut reach = reach();
            reach.broken(PEER, 5300 * MS, 300 * MS);
            let at = |ms: u64| (5000 + ms) * MS;
            assert_eq!(path(&reach.tick(at(300), is_alone)), Some(Path::Broken));
            assert_eq!(path(&reach.tick(at(away_ms - 1), is_alone)), None);
            assert_eq!(path(&reach.tick(at(away_ms), is_alone)), Some(Path::Away));
            reach.link_up(PEER);
            assert_eq!(path(&reach.tick(at(away_ms + 1), is_alone)), Some(Path::Direct));
        }
    }

    #[test]
    fn peer_that_opens_a_link_is_waited_for_again() {
        let mut reach = reach();
        reach.broken(PEER, 5000 * MS, 0);
        assert_eq!(path(&reach.tick(6800 * MS, false)), Some(Path::Away));
        reach.note_alive(PEER, 8000 * MS);
        assert_eq!(path(&reach.tick(8000 * MS, false)), Some(Path::Broken));
        assert_eq!(path(&reach.tick(9800 * MS, false)), Some(Path::Away));
        // A link that is up takes precedence.
        reach.link_up(PEER);
        reach.note_alive(PEER, 9900 * MS);
        assert_eq!(path(&reach.tick(9900 * MS, false)), Some(Path::Direct));
    }

    #[test]
    fn silent_data_link_is_gone_around_but_not_away() {
        let mut reach = reach();
        reach.data_link_silent(PEER, 3, 5300 * MS);
        reach.data_link_silent(PEER, 0, 5310 * MS);
        reach.wanted(PEER, 5300 * MS);
        let actions = reach.tick(5310 * MS, false);
        assert_eq!((path(&actions), asks(&actions).len()), (Some(Path::Broken), 2));
        assert!(reach.is_unsettled());
        assert_eq!(path(&reach.tick(9000 * MS, true)), None, "its lane is up");
        reach.wanted(PEER, 9100 * MS);
        let number = asks(&reach.tick(9100 * MS, false))[0].1;
        reach.answered(PEER, OTHER, number);
        assert_eq!(path(&reach.tick(9110 * MS, false)), Some(Path::Through(OTHER)));
        reach.data_link_up(PEER, 3);
        assert_eq!(path(&reach.tick(9120 * MS, false)), None);
        reach.data_link_up(PEER, 0);
        assert_eq!(path(&reach.tick(9130 * MS, false)), Some(Path::Direct));
        // The first silent link determines the start of the outage.
        reach.data_link_silent(PEER, 1, 20_300 * MS);
        reach.broken(PEER, 20_700 * MS, 300 * MS);
        assert_eq!(path(&reach.tick(21_799 * MS, false)), Some(Path::Broken));
        assert_eq!(path(&reach.tick(21_800 * MS, false)), Some(Path::Away));
    }

    #[test]
    fn unwanted_peer_is_not_searched_for() {
        let mut reach = reach();
        reach.broken(PEER, 5000 * MS, 0);
        assert_eq!(asks(&reach.tick(5000 * MS, false)), []);
        let mut count = 0;
        for ms in 5000..15_000 {
            reach.wanted(PEER, ms * MS);
            count += asks(&reach.tick(ms * MS, false)).len();
        }
        assert!((10..40).contains(&count), "{count} asks of two nodes in ten seconds");
    }

    #[test]
    fn link_that_does_not_open_is_broken() {
        let mut reach = Reachability::default();
        reach.path_to(PEER);
        reach.opening(PEER, 5000 * MS);
        assert_eq!(path(&reach.tick(5299 * MS, false)), None);
        assert_eq!(path(&reach.tick(5300 * MS, false)), Some(Path::Broken));
        reach.opening(PEER, 5500 * MS);
        reach.broken(PEER, 6000 * MS, 0);
        assert_eq!(path(&reach.tick(6800 * MS, false)), Some(Path::Away));
        assert!(!reach.is_direct(PEER));
        reach.link_up(PEER);
        reach.down(PEER);
        assert_eq!(path(&reach.tick(6900 * MS, false)), Some(Path::Direct));
    }
}
