//! The failure detector: finds the nodes from which a majority of the voters receives nothing.
//!
//! Here: when this node last received a message of each other node, and the reports of the voters.
//! Not here: heartbeats (`handle::heartbeat`), the consequences of silence (`handle::leader`).
//!
//! Pure: the time is an argument, counted from the start of the node. A voter's report counts while
//! it is fresh: a voter that is cut off reports nothing about the others. So a bad link, even one
//! at the leader, makes no node dead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::map::{Map, NodeState};

/// A node without a message for this time is silent.
pub(crate) const SILENCE: Duration = Duration::from_millis(1500);
/// A node that sends a message later than this after it refused a connection is alive. An earlier
/// message may have been in flight.
const IN_FLIGHT: Duration = Duration::from_millis(250);
/// A voter's report counts for this time: three of its heartbeats.
const FRESH: Duration = Duration::from_millis(768);

/// The last message of a node at a voter: the node, its incarnation, and the age in milliseconds.
pub(crate) type LastHeard = (NodeId, Incarnation, u32);

type VoterReport = BTreeMap<NodeId, (Incarnation, u32)>;

/// The observations of one node about the others.
#[derive(Debug, Default)]
pub(crate) struct FailureDetector {
    /// For the nodes of the map, when the last message arrived; at first, when the node appeared in
    /// the map.
    heard: BTreeMap<NodeId, (Incarnation, Duration)>,
    reports: BTreeMap<NodeId, (Duration, VoterReport)>,
    /// The voters, and when this node learned of them.
    voters: (BTreeSet<NodeId>, Duration),
    /// Incarnations that refused a connection, and when.
    refused: BTreeMap<(NodeId, Incarnation), Duration>,
}

impl FailureDetector {
    /// Updates from the map and the voters. An incarnation that is new in the map counts as heard,
    /// because it had no time to send. All nodes count as heard when `me` becomes a voter, because
    /// no node sent to it before. Nodes that left the map are dropped.
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

    /// Records a message of a node.
    pub(crate) fn record(&mut self, node: NodeId, incarnation: Incarnation, now: Duration) {
        let heard = self.heard.entry(node).or_insert((incarnation, now));
        if incarnation >= heard.0 {
            *heard = (incarnation, now);
        }
        // Messages in flight when the process ended do not count.
        let refused = self.refused.get(&(node, incarnation));
        if refused.is_some_and(|at| now.saturating_sub(*at) > IN_FLIGHT) {
            self.refused.remove(&(node, incarnation));
        }
    }

    /// Stores a voter's report.
    pub(crate) fn take_report(&mut self, voter: NodeId, heard: Vec<LastHeard>, now: Duration) {
        let report = heard
            .into_iter()
            .map(|(id, incarnation, ago_ms)| (id, (incarnation, ago_ms)))
            .collect();
        self.reports.insert(voter, (now, report));
    }

    /// Records that an incarnation is over: its host refuses connections to it.
    pub(crate) fn refuse(&mut self, node: NodeId, incarnation: Incarnation, now: Duration) {
        self.refused.insert((node, incarnation), now);
    }

    /// Moves the records on by `gap`, in which this process did not run and could receive nothing.
    pub(crate) fn slept(&mut self, gap: Duration, now: Duration) {
        for (_, at) in self.heard.values_mut() {
            *at = (*at + gap).min(now);
        }
        self.reports.clear();
    }

    /// The nodes of the map, and the time since the last message of each.
    pub(crate) fn ages(&self, now: Duration) -> impl Iterator<Item = (NodeId, Duration)> + '_ {
        self.heard.iter().map(move |(&id, (_, at))| (id, now.saturating_sub(*at)))
    }

    /// The nodes from which neither this voter nor another one, as far as it has reported, has
    /// received a message for `longest`.
    pub(crate) fn unheard(&self, now: Duration, longest: Duration) -> BTreeSet<NodeId> {
        let is_reported = |id: &NodeId| {
            self.reports.values().any(|(at, ages)| {
                let ago = ages.get(id).map(|(_, ago_ms)| Duration::from_millis((*ago_ms).into()));
                ago.is_some_and(|ago| now.saturating_sub(*at) + ago < longest)
            })
        };
        let is_old = |(id, age): &(NodeId, Duration)| *age >= longest && !is_reported(id);
        self.ages(now).filter(is_old).map(|(id, _)| id).collect()
    }

    /// This node's report about the nodes of the map.
    pub(crate) fn report(&self, now: Duration) -> Vec<LastHeard> {
        let one = |(&node, &(incarnation, at)): (&NodeId, &(Incarnation, Duration))| {
            let ago_ms = now.saturating_sub(at).as_millis();
            (node, incarnation, u32::try_from(ago_ms).unwrap_or(u32::MAX))
        };
        self.heard.iter().map(one).collect()
    }

    /// The nodes of the map from which a majority of the voters, `me` among them, received nothing
    /// in time.
    ///
    /// While the voters are new no node is silent: the voters before may have granted a lease that
    /// lasts as long.
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
            // The report counts for any incarnation: one that sent a message and died before the
            // map had it has ended the one in the map.
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
