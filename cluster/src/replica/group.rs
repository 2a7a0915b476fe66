//! The replicas of a few partitions of a node: each exists only while something is under way.
//!
//! Here: when a replica may be dropped, and its restoration. Not here: its work (`replica`), the
//! locks of groups (the server's).
//!
//! At rest, all that is known of a copy is in the map's entry and in the header. Each call restores
//! the replica from them, and drops it if it could be restored again.

use std::sync::Arc;

use super::event::{CallContext, Environment};
use super::options::ReplicaOptions;
use super::primary::Primary;
use super::progress::PeerProgress;
use super::{Core, Replica, Role, RoleState};
use crate::id::{CopyId, Incarnation, LinkIndex, NodeId, Partition, Term};
use crate::map::entries::CHUNK_ENTRIES;
use crate::map::{EntryChunk, SharedEntry};
use crate::partition_header::PartitionHeader;
use crate::position::NodeTime;
use crate::rules::Bug;

/// The partitions of a group, which have a chunk of the map. They share a lock, so a call on one of
/// them delays the others'.
pub const GROUP_PARTITIONS: usize = CHUNK_ENTRIES;

/// The node of a group, and the options of its replicas.
#[derive(Debug, Clone)]
pub struct ReplicaHost {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The options of all replicas. They do not use `lost_after_ns`.
    pub options: Arc<ReplicaOptions>,
}

/// The partitions whose number, divided by [`GROUP_PARTITIONS`], is the group's place. `O` is a
/// held operation.
pub struct ReplicaGroup<O> {
    /// The newest entry that each replica has learnt.
    entries: EntryChunk,
    /// The replicas that are not at rest.
    active: Vec<Replica<O>>,
}

impl<O> Default for ReplicaGroup<O> {
    fn default() -> Self {
        Self { entries: EntryChunk::default(), active: Vec::new() }
    }
}

impl<O> ReplicaGroup<O> {
    /// The newest entry of the map that the replica has learnt.
    #[must_use]
    pub fn entry(&self, partition: Partition) -> &SharedEntry {
        self.entries.get(partition)
    }

    /// The newest entries that the replicas have learnt.
    #[must_use]
    pub fn entries(&self) -> &EntryChunk {
        &self.entries
    }

    /// Shares the entries of a map, if the replicas have learnt them all.
    pub fn share(&mut self, entries: &EntryChunk) {
        self.entries.share(entries);
    }

    /// The role of the copy.
    #[must_use]
    pub fn role(&self, host: &ReplicaHost, partition: Partition) -> Role {
        match self.place(partition) {
            Some(place) => self.active[place].role(),
            None => role_at_rest(self.entry(partition), host).0,
        }
    }

    /// The number of held operations of all partitions.
    #[must_use]
    pub fn held(&self) -> usize {
        self.active.iter().map(Replica::held).sum()
    }

    /// See [`Replica::is_busy`].
    #[must_use]
    pub fn is_busy(&self, partition: Partition) -> bool {
        self.place(partition).is_some_and(|place| self.active[place].is_busy())
    }

    /// The number of replicas that are not at rest.
    #[must_use]
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Calls `look` on the replica, which it must not ask about other copies.
    pub fn view<T>(
        &self,
        host: &ReplicaHost,
        partition: Partition,
        header: &PartitionHeader,
        look: impl FnOnce(&Replica<O>) -> T,
    ) -> T {
        if let Some(place) = self.place(partition) {
            return look(&self.active[place]);
        }
        look(&Replica::at_rest(host, partition, self.entry(partition), header, |_| Vec::new()))
    }

    /// See [`Replica::hold`].
    pub fn hold(&mut self, partition: Partition, now: NodeTime, op: O, deadline_ns: u64) {
        // A partition at rest is served here, or elsewhere.
        if let Some(place) = self.place(partition) {
            self.active[place].hold(now, op, deadline_ns);
        }
    }

    /// Calls `work` on the replica.
    pub fn call<M, N: Environment, T>(
        &mut self,
        host: &ReplicaHost,
        partition: Partition,
        ctx: &mut CallContext<'_, M, N, O>,
        work: impl FnOnce(&mut Replica<O>, &mut CallContext<'_, M, N, O>) -> T,
    ) -> T {
        let mut replica = if let Some(place) = self.place(partition) {
            self.active.swap_remove(place)
        } else {
            let (header, entry) = (ctx.header, self.entry(partition));
            Replica::at_rest(host, partition, entry, header, |core| peers(core, &*ctx))
        };
        let done = work(&mut replica, ctx);
        if self.entry(partition).ver != replica.core.entry.ver {
            self.entries.set(partition, replica.core.entry.clone());
        }
        if !replica.rests(host, ctx) {
            self.active.push(replica);
        } else if self.active.is_empty() {
            self.active = Vec::new();
        }
        done
    }

    fn place(&self, partition: Partition) -> Option<usize> {
        self.active.iter().position(|replica| replica.core.partition == partition)
    }
}

/// The role of a copy at rest, and its id.
fn role_at_rest(entry: &SharedEntry, host: &ReplicaHost) -> (Role, CopyId) {
    let me = entry
        .in_sync
        .iter()
        .find(|copy| (copy.node, copy.incarnation) == (host.node, host.incarnation));
    match me {
        Some(me) if entry.primary == Some(*me) => (Role::Primary, *me),
        Some(me) => (Role::Backup, *me),
        None => {
            let (node, incarnation) = (host.node, host.incarnation);
            (Role::None, CopyId { node, incarnation, assignment: 0 })
        }
    }
}

/// The other copies of a partition whose primary is at rest, with the links of its set.
fn others<'c, M, N: Environment, O>(
    core: &'c Core,
    ctx: &CallContext<'_, M, N, O>,
) -> impl Iterator<Item = (CopyId, Option<LinkIndex>)> + use<'c, M, N, O> {
    let set = ctx.node.set(ctx.header.set());
    let others = core.entry.in_sync.iter().filter(|copy| **copy != core.me);
    others.enumerate().map(move |(slot, copy)| (*copy, set.links().get(slot).copied()))
}

/// The progress of these copies.
fn peers<M, N: Environment, O>(core: &Core, ctx: &CallContext<'_, M, N, O>) -> Vec<PeerProgress> {
    let peer = |(copy, link): (CopyId, Option<LinkIndex>)| {
        // The copy has acknowledged its `Adopt` or chunks. What it refuses from now on comes with
        // later acknowledgements.
        let is_deaf = core.options.rules.lack(Bug::RestoredPastRefusals);
        let known = |link| if is_deaf { u64::MAX } else { ctx.node.acked(link) };
        PeerProgress::at_rest(copy, link, link.map_or(0, known), ctx.now.mono_ns)
    };
    others(core, ctx).map(peer).collect()
}

impl<O> Replica<O> {
    /// The replica at rest. `peers` gives the other copies of a primary.
    fn at_rest(
        host: &ReplicaHost,
        partition: Partition,
        entry: &SharedEntry,
        header: &PartitionHeader,
        peers: impl FnOnce(&Core) -> Vec<PeerProgress>,
    ) -> Self {
        let (role, me) = role_at_rest(entry, host);
        let lsn = header.lsn();
        let core = Core {
            partition,
            options: Arc::clone(&host.options),
            entry: entry.clone(),
            me,
            last_term: if lsn == 0 { Term(0) } else { header.term() },
            began: lsn,
            clock_of: entry.primary.filter(|_| role != Role::None).unwrap_or_default(),
        };
        let role = match role {
            Role::Primary => RoleState::Primary(Primary::with(peers(&core))),
            Role::Backup => RoleState::Backup { is_adopted: true },
            Role::None | Role::Learner => RoleState::None,
        };
        Self { core, role }
    }

    /// Whether [`Replica::at_rest`] restores this replica, now and after any number of records.
    fn rests<M, N: Environment>(&self, host: &ReplicaHost, ctx: &CallContext<'_, M, N, O>) -> bool {
        let core = &self.core;
        let (role, me) = role_at_rest(&core.entry, host);
        // Batches may append records meanwhile, but the first of a term decides once and for all.
        let lsn = ctx.header.lsn();
        let is_term_known = match lsn {
            0 => core.last_term == Term(0),
            _ => lsn > core.began || core.last_term == ctx.header.term(),
        };
        let is_role = match &self.role {
            RoleState::None => return role == Role::None,
            RoleState::Learner(_) => false,
            RoleState::Backup { is_adopted } => *is_adopted && role == Role::Backup,
            RoleState::Primary(primary) => {
                let mandatory = primary.mandatory().map(|peer| (peer.copy, peer.link));
                role == Role::Primary
                    && !primary.is_busy(core)
                    && primary.proposed.is_none()
                    && mandatory.eq(others(core, ctx))
            }
        };
        is_role
            && me == core.me
            && core.entry.primary == Some(core.clock_of)
            && core.entry.term == ctx.header.term()
            && (is_term_known || core.options.rules.lack(Bug::RestsBeforeFirstRecord))
    }
}
