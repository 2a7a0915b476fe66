//! Who is heard, and who is not heard by a majority.
//!
//! Here: when this node last heard each other one, and what the voters say about it. Not here: the
//! beats (`handle::heartbeat`), what follows from silence (`handle::leader`).
//!
//! Pure: the time comes in, since the start of the node. A voter's word counts while it is fresh:
//! one that is cut off says nothing about the others. So a bad link, even one at the leader, makes
//! nobody dead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::{Map, NodeState};

/// Who was not heard for so long is silent.
pub(crate) const SILENCE: Duration = Duration::from_millis(1500);
/// A node that is heard so long after it refused a connection lives.
const IN_FLIGHT: Duration = Duration::from_millis(250);
/// A voter's word counts for so long: three of its beats.
const FRESH: Duration = Duration::from_millis(750);

/// When a voter last heard a node: which life of it, and milliseconds ago.
pub(crate) type LastHeard = (NodeId, Incarnation, u32);

type VoterReport = BTreeMap<NodeId, (Incarnation, u32)>;

/// What one node knows about the others.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    /// Of the nodes of the map; from when each was first seen there.
    heard: BTreeMap<NodeId, (Incarnation, Duration)>,
    reports: BTreeMap<NodeId, (Duration, VoterReport)>,
    /// Who votes, and since when we know that.
    voters: (BTreeSet<NodeId>, Duration),
    /// Lives whose host refused a connection, since when.
    refused: BTreeMap<(NodeId, Incarnation), Duration>,
}

impl FailureDetector {
    /// Follows the map and the voters. A life that is new in the map counts as heard, for it had no
    /// time to speak; so do all when `me` becomes a voter, for nobody spoke to it before. Forgets who
    /// is not in the map any more.
    pub(crate) fn see(&mut self, map: &Map, voters: &BTreeSet<NodeId>, me: NodeId, now: Duration) {
        if self.voters.0 != *voters {
            if voters.contains(&me) && !self.voters.0.contains(&me) {
                self.heard.values_mut().for_each(|(_, at)| *at = now);
            }
            self.voters = (voters.clone(), now);
        }
        self.heard.retain(|node, _| map.nodes().contains_key(node));
        self.reports.retain(|node, _| map.nodes().contains_key(node));
        self.refused.retain(|(node, incarnation), _| {
            map.nodes().get(node).is_some_and(|node| {
                node.incarnation == *incarnation && node.state != NodeState::Dead
            })
        });
        for (&id, node) in map.nodes() {
            let heard = self.heard.entry(id).or_insert((node.incarnation, now));
            if heard.0 < node.incarnation {
                *heard = (node.incarnation, now);
            }
        }
    }

    /// A node said something.
    pub(crate) fn record(&mut self, node: NodeId, incarnation: Incarnation, now: Duration) {
        let heard = self.heard.entry(node).or_insert((incarnation, now));
        if incarnation >= heard.0 {
            *heard = (incarnation, now);
        }
        // What was on its way when the process ended does not count.
        let refused = self.refused.get(&(node, incarnation));
        if refused.is_some_and(|at| now.saturating_sub(*at) > IN_FLIGHT) {
            self.refused.remove(&(node, incarnation));
        }
    }

    /// A voter said whom it hears.
    pub(crate) fn take_report(&mut self, voter: NodeId, heard: Vec<LastHeard>, now: Duration) {
        let report = heard
            .into_iter()
            .map(|(id, incarnation, ago_ms)| (id, (incarnation, ago_ms)))
            .collect();
        self.reports.insert(voter, (now, report));
    }

    /// A life is known to be over: its host refuses connections to it.
    pub(crate) fn refuse(&mut self, node: NodeId, incarnation: Incarnation, now: Duration) {
        self.refused.insert((node, incarnation), now);
    }

    /// We did not run for `gap`, so we could hear nobody.
    pub(crate) fn slept(&mut self, gap: Duration, now: Duration) {
        for (_, at) in self.heard.values_mut() {
            *at = (*at + gap).min(now);
        }
        self.reports.clear();
    }

    /// Nodes of the map, and how long ago this one heard them.
    pub(crate) fn ages(&self, now: Duration) -> impl Iterator<Item = (NodeId, Duration)> + '_ {
        self.heard.iter().map(move |(&id, (_, at))| (id, now.saturating_sub(*at)))
    }

    /// What we say about the nodes of the map, as it was last seen.
    pub(crate) fn report(&self, now: Duration) -> Vec<LastHeard> {
        let one = |(&node, &(incarnation, at)): (&NodeId, &(Incarnation, Duration))| {
            let ago_ms = now.saturating_sub(at).as_millis();
            (node, incarnation, u32::try_from(ago_ms).unwrap_or(u32::MAX))
        };
        self.heard.iter().map(one).collect()
    }

    /// The nodes of the map that a majority of the voters, `me` among them, did not hear in time.
    ///
    /// While the voters are new nobody is silent: who was heard by a majority of those before was
    /// promised that long.
    pub(crate) fn silent(&self, map: &Map, me: NodeId, now: Duration) -> BTreeSet<NodeId> {
        let (voters, since) = &self.voters;
        let is_new = now.saturating_sub(*since) < SILENCE;
        let majority = voters.len() / 2 + 1;
        let ours = self
            .report(now)
            .into_iter()
            .map(|(id, incarnation, ago)| (id, (incarnation, ago)))
            .collect();
        let theirs = |voter: &NodeId| match self.reports.get(voter) {
            _ if *voter == me => Some(&ours),
            Some((at, report)) if now.saturating_sub(*at) <= FRESH => Some(report),
            _ => None,
        };
        let reports: Vec<&VoterReport> = voters.iter().filter_map(theirs).collect();
        let is_silent = |node: NodeId, incarnation: Incarnation| {
            // Whichever life was heard last: one that spoke and died before the map knew it ended the
            // one in the map.
            let missed = |report: &&&VoterReport| {
                report
                    .get(&node)
                    .is_some_and(|(_, ago_ms)| u128::from(*ago_ms) >= SILENCE.as_millis())
            };
            self.refused.contains_key(&(node, incarnation))
                || !is_new && reports.iter().filter(missed).count() >= majority
        };
        let nodes = map.nodes().iter().filter(|&(&id, _)| id != me);
        nodes.filter(|&(&id, node)| is_silent(id, node.incarnation)).map(|(&id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests;
