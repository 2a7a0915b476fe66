//! Replicas with work under way: which are ticked, and which advance when a link acknowledges
//! bytes.
//!
//! Not here: the work itself (`cluster::replica`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cluster::LinkIndex;
use cluster::id::Partition;
use cluster::partition_header::PartitionHeader;
use cluster::replica::Role;
use cluster::replica_set::{ReplicaSet, SetIndex};
use crossbeam::queue::SegQueue;
use parking_lot::Mutex;

use super::super::links::PeerLink;
use super::super::state_machine::range_of;
use super::{ReplicaContext, ReplicaSlot, Replicas};

/// The partitions that wait for a link, by the position they wait for: the lowest one first.
type LinkWaiters = BinaryHeap<Reverse<(u64, Partition)>>;

/// The waiting replicas.
pub(super) struct LinkWatch {
    /// Replicas with work under way, which are ticked often.
    busy: SegQueue<Partition>,
    is_busy: Box<[AtomicBool]>,
    links: Mutex<BTreeMap<LinkIndex, LinkWaiters>>,
    /// The number of entries in `links`.
    waiting: AtomicUsize,
}

impl LinkWatch {
    pub(super) fn new(partitions: usize) -> Self {
        Self {
            busy: SegQueue::new(),
            is_busy: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            links: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    fn await_link(&self, link: LinkIndex, position: u64, partition: Partition) {
        self.links.lock().entry(link).or_default().push(Reverse((position, partition)));
        self.waiting.fetch_add(1, Ordering::AcqRel);
    }

    /// Removes and returns the partitions whose position the link has reached.
    fn take_due(&self, link: LinkIndex, acked: u64) -> Vec<Partition> {
        let mut due = Vec::new();
        if self.waiting.load(Ordering::Acquire) == 0 {
            return due;
        }
        let mut links = self.links.lock();
        let Some(waiting) = links.get_mut(&link) else { return due };
        while let Some(Reverse((_, partition))) =
            waiting.peek().filter(|Reverse((position, _))| *position <= acked)
        {
            due.push(*partition);
            waiting.pop();
        }
        if waiting.is_empty() {
            links.remove(&link);
        }
        self.waiting.fetch_sub(due.len(), Ordering::AcqRel);
        due
    }
}

impl Replicas {
    /// Records, after a call, whether a replica is busy and which links it waits for.
    pub(super) fn note_busy(
        &self,
        replica_ctx: &ReplicaContext<'_>,
        partition: Partition,
        (header, slot): (&PartitionHeader, &mut ReplicaSlot),
    ) {
        let Some(replica) = slot.replica.as_ref().filter(|replica| replica.is_busy()) else {
            return;
        };
        if !self.watch.is_busy[partition.index()].swap(true, Ordering::AcqRel) {
            self.watch.busy.push(partition);
            replica_ctx.node.want_ticks();
        }
        if replica.role() != Role::Primary {
            return;
        }
        let (me, incarnation) = replica_ctx.node.me();
        let shard =
            replica_ctx.service.shards().first_shard(range_of(partition, replica_ctx.node.bits()));
        let set = self.set_table.get(header.set());
        for copy in replica.entry().copies() {
            let is_here = copy.node == me && copy.incarnation == incarnation;
            let links = replica_ctx.node.links();
            let link = links.link_to(copy.node, copy.incarnation, shard).filter(|_| !is_here);
            let Some(link) = link.filter(|link| !slot.awaits.contains(link)) else { continue };
            let Some(peer_link) = links.get(link) else { continue };
            let place = set.links().iter().position(|known| *known == link);
            let position = place.map_or(0, |place| header.position(place));
            if slot.awaits.try_push(link).is_ok() {
                self.watch.await_link(link, useful_position(&peer_link, position), partition);
            }
        }
    }

    /// Advances the replicas that waited for the bytes that a link has now acknowledged.
    pub(crate) fn acknowledged(&self, replica_ctx: &mut ReplicaContext<'_>, link: LinkIndex) {
        if self.watch.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let acked = replica_ctx.node.links().get(link).map_or(u64::MAX, |link| link.acked.get());
        for partition in self.watch.take_due(link, acked) {
            let Some((header, mut slot)) = self.enter(partition) else { continue };
            slot.awaits.retain(|known| *known != link);
            self.call(replica_ctx, partition, (header, &mut slot), |replica, call| {
                replica.advance(call);
            });
        }
    }

    /// Advances the replicas that wait for links that have ended.
    pub(crate) fn forget_links(&self, replica_ctx: &mut ReplicaContext<'_>) {
        let known: Vec<LinkIndex> = self.watch.links.lock().keys().copied().collect();
        for link in known {
            if replica_ctx.node.links().get(link).is_none() {
                self.acknowledged(replica_ctx, link);
            }
        }
    }

    /// Advances the replicas that waited for a link to this link's node.
    pub(crate) fn connected(&self, replica_ctx: &mut ReplicaContext<'_>, link: LinkIndex) {
        let Some(link) = replica_ctx.node.links().get(link) else { return };
        for (index, is_busy) in self.watch.is_busy.iter().enumerate() {
            if !is_busy.load(Ordering::Acquire) {
                continue;
            }
            let partition = Partition(index as u16);
            let Some((header, mut slot)) = self.enter(partition) else { continue };
            let names = |slot: &ReplicaSlot| {
                let entry = slot.replica.as_ref().map(|replica| replica.entry());
                entry.is_some_and(|entry| entry.copy_on(link.peer, link.incarnation).is_some())
            };
            if names(&slot) {
                self.call(replica_ctx, partition, (header, &mut slot), |replica, call| {
                    replica.advance(call);
                });
            }
        }
    }

    /// Whether any replica has work under way.
    pub(crate) fn is_any_busy(&self) -> bool {
        !self.watch.busy.is_empty()
    }

    /// Ticks the replicas with work under way.
    pub(crate) fn tick_busy(&self, replica_ctx: &mut ReplicaContext<'_>) {
        for _ in 0..self.watch.busy.len() {
            let Some(partition) = self.watch.busy.pop() else { break };
            self.watch.is_busy[partition.index()].store(false, Ordering::Release);
            self.tick(replica_ctx, partition);
        }
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "lifetimes want it")]
    fn tick(&self, replica_ctx: &mut ReplicaContext<'_>, partition: Partition) {
        self.on(replica_ctx, partition, |replica, call| replica.tick(call));
    }

    /// Ticks the primaries whose records go over a link that acknowledges nothing.
    pub(crate) fn tick_silent(&self, replica_ctx: &mut ReplicaContext<'_>) {
        let (silent_ns, now_ns) = (self.options().silent_ns, replica_ctx.now.mono_ns);
        let is_silent = |link: &LinkIndex| {
            let link = replica_ctx.node.links().get(*link);
            link.is_none_or(|link| link.silence_ns(now_ns) >= silent_ns)
        };
        let sets: Vec<(SetIndex, ReplicaSet)> = self.sets.lock().in_use().collect();
        let silent: BTreeSet<SetIndex> = sets
            .into_iter()
            .filter(|(_, set)| set.links().iter().any(is_silent))
            .map(|(index, _)| index)
            .collect();
        // Reading all headers costs some 100 µs, and at rest no link is silent.
        if silent.is_empty() {
            return;
        }
        for (index, header) in self.headers.iter().enumerate() {
            if silent.contains(&header.set()) {
                self.tick(replica_ctx, Partition(index as u16));
            }
        }
    }

    /// Sets the store's time of every `parts`-th partition, from `part` on, that other nodes serve.
    pub(crate) fn store_times(
        &self,
        replica_ctx: &mut ReplicaContext<'_>,
        part: usize,
        parts: usize,
    ) {
        for index in (part..self.slots.len()).step_by(parts) {
            let partition = Partition(index as u16);
            let Some((header, slot)) = self.enter(partition) else { continue };
            let follows = |part| matches!(part, Role::Backup | Role::Learner);
            if slot.replica.as_ref().is_some_and(|replica| follows(replica.role())) {
                self.store_time(replica_ctx, partition, (header, &slot));
            }
        }
    }
}

/// The acknowledged position from which a replica that waits for this link can advance: the end of
/// its partition's records; or, if they are acknowledged and a chunk waits for room, half of the
/// bytes under way.
fn useful_position(link: &PeerLink, position: u64) -> u64 {
    let (acked, end) = (link.acked.get(), link.end());
    let half = acked + end.saturating_sub(acked).div_ceil(2).max(1);
    if position > acked { position } else { half }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_go_on_when_a_link_is_far_enough() {
        let watch = LinkWatch::new(4);
        let (one, two) = (LinkIndex(1), LinkIndex(2));
        for (link, position, partition) in [(one, 30, 0), (one, 10, 1), (two, 5, 0), (one, 20, 2)] {
            watch.await_link(link, position, Partition(partition));
        }
        let none: [Partition; 0] = [];
        assert_eq!(watch.take_due(one, 9), none);
        assert_eq!(watch.take_due(one, 20), [Partition(1), Partition(2)]);
        assert_eq!(watch.take_due(one, 29), none);
        assert_eq!(watch.take_due(two, u64::MAX), [Partition(0)]);
        assert_eq!(watch.take_due(one, 30), [Partition(0)]);
        assert_eq!(watch.waiting.load(Ordering::Acquire), 0);
        assert!(watch.links.lock().is_empty());
    }
}
