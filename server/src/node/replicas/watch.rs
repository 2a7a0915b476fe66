//! Replicas with work under way: which are ticked, and which advance when a link acknowledges
//! bytes.
//!
//! Not here: the work itself (`cluster::replica`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use cluster::LinkIndex;
use cluster::id::Partition;
use cluster::partition_header::PartitionHeader;
use cluster::replica::{ReplicaHost, Role};
use cluster::replica_set::{ReplicaSet, SetIndex};
use parking_lot::Mutex;

use super::super::links::PeerLink;
use super::super::state_machine::range_of;
use super::{Group, ReplicaContext, Replicas};

/// The partitions that wait for a link.
#[derive(Default)]
struct LinkWaiters {
    /// By the position that they wait for.
    by_position: BTreeSet<(u64, Partition)>,
    partitions: BTreeSet<Partition>,
}

/// The waiting replicas.
#[derive(Default)]
pub(super) struct LinkWatch {
    /// Replicas with work under way, which are ticked often.
    busy: Mutex<BTreeSet<Partition>>,
    links: Mutex<BTreeMap<LinkIndex, LinkWaiters>>,
    /// The number of entries in `links`.
    waiting: AtomicUsize,
    /// The sets with a link that acknowledged nothing at the last look.
    silent: Mutex<BTreeSet<SetIndex>>,
}

impl LinkWatch {
    /// Lets a partition wait for a position, unless it waits for the link already.
    fn await_link(&self, link: LinkIndex, position: u64, partition: Partition) {
        let mut links = self.links.lock();
        let waiters = links.entry(link).or_default();
        if waiters.partitions.insert(partition) {
            waiters.by_position.insert((position, partition));
            self.waiting.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Removes and returns the partitions whose position the link has reached.
    fn take_due(&self, link: LinkIndex, acked: u64) -> Vec<Partition> {
        let mut due = Vec::new();
        if self.waiting.load(Ordering::Acquire) == 0 {
            return due;
        }
        let mut links = self.links.lock();
        let Some(waiters) = links.get_mut(&link) else { return due };
        while let Some(&(position, partition)) = waiters.by_position.first()
            && position <= acked
        {
            waiters.by_position.pop_first();
            waiters.partitions.remove(&partition);
            due.push(partition);
        }
        if waiters.partitions.is_empty() {
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
        host: &ReplicaHost,
        partition: Partition,
        (header, group): (&PartitionHeader, &Group),
    ) {
        if !group.is_busy(partition) {
            return;
        }
        if self.watch.busy.lock().insert(partition) {
            replica_ctx.node.want_ticks();
        }
        if group.role(host, partition) != Role::Primary {
            return;
        }
        let shard =
            replica_ctx.service.shards().first_shard(range_of(partition, replica_ctx.node.bits()));
        let set = self.set_table.get(header.set());
        for copy in group.entry(partition).copies() {
            let is_here = (copy.node, copy.incarnation) == (host.node, host.incarnation);
            let links = replica_ctx.node.links();
            let link = links.link_to(copy.node, copy.incarnation, shard).filter(|_| !is_here);
            let Some(peer_link) = link.and_then(|link| links.get(link)) else { continue };
            let place = set.links().iter().position(|known| *known == peer_link.index);
            let position = place.map_or(0, |place| self.record_ends.get(partition, place));
            let position = useful_position(&peer_link, position);
            self.watch.await_link(peer_link.index, position, partition);
        }
    }

    /// Advances the replicas that waited for the bytes that a link has now acknowledged.
    pub(crate) fn acknowledged(&self, replica_ctx: &mut ReplicaContext<'_>, link: LinkIndex) {
        if self.watch.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let acked = replica_ctx.node.links().get(link).map_or(u64::MAX, |link| link.acked.get());
        for partition in self.watch.take_due(link, acked) {
            self.advance(replica_ctx, partition);
        }
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "lifetimes want it")]
    fn advance(&self, replica_ctx: &mut ReplicaContext<'_>, partition: Partition) {
        self.on(replica_ctx, partition, |replica, call| replica.advance(call));
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
        let busy = self.watch.busy.lock().clone();
        for partition in busy {
            let Some((header, mut group)) = self.enter(partition) else { continue };
            if group.entry(partition).copy_on(link.peer, link.incarnation).is_some() {
                self.call(replica_ctx, partition, (header, &mut group), |replica, call| {
                    replica.advance(call);
                });
            }
        }
    }

    /// Whether any replica has work under way.
    pub(crate) fn is_any_busy(&self) -> bool {
        !self.watch.busy.lock().is_empty()
    }

    /// Ticks the replicas with work under way.
    pub(crate) fn tick_busy(&self, replica_ctx: &mut ReplicaContext<'_>) {
        let busy = std::mem::take(&mut *self.watch.busy.lock());
        for partition in busy {
            self.tick(replica_ctx, partition);
        }
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "lifetimes want it")]
    fn tick(&self, replica_ctx: &mut ReplicaContext<'_>, partition: Partition) {
        self.on(replica_ctx, partition, |replica, call| replica.tick(call));
    }

    /// Ticks the primaries whose records go over a link that acknowledges nothing, and those of
    /// the last call, which may rest again.
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
        let mut due = silent.clone();
        due.append(&mut std::mem::replace(&mut *self.watch.silent.lock(), silent));
        // Reading all headers costs some 100 µs, and at rest no link is silent.
        if due.is_empty() {
            return;
        }
        for (index, header) in self.headers.iter().enumerate() {
            if due.contains(&header.set()) {
                self.tick(replica_ctx, Partition(index as u16));
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
        let watch = LinkWatch::default();
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
