//! The map as Raft's state machine, and its snapshots in the store.
//!
//! Here: committed entries change a map in memory; snapshots go to disk. Not here: the effects of
//! commands (`cluster::map`), the watchers (`map_watch`).
//!
//! At start the map is rebuilt from the last snapshot and the log after it.

use std::sync::Arc;

use bytes::Bytes;
use cluster::map::Map;
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, StorageError,
    StorageIOError, StoredMembership,
};
use redb::{Durability, ReadableDatabase as _};

use super::{ControlStore, FACTS, StoreError, Wrap as _, put};
use crate::map_watch::MapPublisher;
use crate::raft_types::{Applied, Types, node_id};

pub(super) const META: &str = "snapshot";
pub(super) const MAP: &str = "map";

type AppliedEntry = openraft::Entry<Types>;
type SnapshotFailure = StorageError<u64>;
type Meta = openraft::SnapshotMeta<u64, openraft::BasicNode>;
type RaftMembership = StoredMembership<u64, openraft::BasicNode>;

/// The map, with the last applied entry and the membership.
#[derive(Debug)]
pub(crate) struct MapStateMachine {
    store: ControlStore,
    published: Arc<MapPublisher>,
    pub(super) map: Map,
    applied: Option<LogId<u64>>,
    membership: RaftMembership,
}

impl MapStateMachine {
    /// Starts from the last snapshot.
    pub(crate) fn new(
        store: ControlStore,
        published: Arc<MapPublisher>,
    ) -> Result<Self, StoreError> {
        let mut state_machine = Self {
            store,
            published,
            map: Map::default(),
            applied: None,
            membership: RaftMembership::default(),
        };
        if let Some((meta, bytes)) = state_machine.stored()? {
            let map = Map::decode(&bytes).map_err(|_| StoreError::Unreadable("the map"))?;
            state_machine.become_one(&meta, map);
        }
        Ok(state_machine)
    }

    fn become_one(&mut self, meta: &Meta, mut map: Map) {
        self.applied = meta.last_log_id;
        self.set_membership(meta.last_membership.clone());
        self.published.replace(map.clone());
        self.published.share(&mut map);
        self.map = map;
    }

    fn set_membership(&mut self, membership: RaftMembership) {
        if let Some(log_id) = membership.log_id() {
            self.published
                .set_voters(log_id.index + 1, membership.voter_ids().map(node_id).collect());
        }
        self.membership = membership;
    }

    fn stored(&self) -> Result<Option<(Meta, Bytes)>, StoreError> {
        let Some(meta) = self.store.fact(META)? else { return Ok(None) };
        let read = self.store.database()?.begin_read().wrap()?;
        let table = read.open_table(FACTS).wrap()?;
        let bytes = table.get(MAP).wrap()?.ok_or(StoreError::Unreadable("the map"))?;
        Ok(Some((meta, Bytes::copy_from_slice(bytes.value()))))
    }

    fn apply_one(&mut self, entry: AppliedEntry) -> Applied {
        self.applied = Some(entry.log_id);
        let answer = match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Membership(membership) => {
                self.set_membership(RaftMembership::new(Some(entry.log_id), membership));
                None
            }
            EntryPayload::Normal(command) => {
                let rules = self.store.map_rules();
                Some(self.map.apply_by(&command, rules))
            }
        };
        let answer = answer.map(|applied| {
            applied.map(|(answer, delta)| {
                if let Some(delta) = delta {
                    self.published.follow_or_replace(delta, &mut self.map);
                }
                answer
            })
        });
        Applied { ver: self.map.ver(), answer }
    }
}

impl RaftStateMachine<Types> for MapStateMachine {
    type SnapshotBuilder = MapSnapshotBuilder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, RaftMembership), SnapshotFailure> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Applied>, SnapshotFailure>
    where
        I: IntoIterator<Item = AppliedEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        Ok(entries.into_iter().map(|entry| self.apply_one(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> MapSnapshotBuilder {
        let log_id = self.applied;
        let snapshot_id = match log_id {
            Some(id) => format!("{}-{}-{}", id.leader_id, id.index, self.map.ver()),
            None => String::new(),
        };
        let meta =
            Meta { last_log_id: log_id, last_membership: self.membership.clone(), snapshot_id };
        MapSnapshotBuilder { store: self.store.clone(), meta, bytes: self.map.encode().into() }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Bytes>, SnapshotFailure> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        bytes: Box<Bytes>,
    ) -> Result<(), SnapshotFailure> {
        let signature = Some(meta.signature());
        let map = Map::decode(&bytes).map_err(|error| {
            StorageIOError::read_snapshot(signature.clone(), AnyError::new(&error))
        })?;
        let saved = save(&self.store, meta.clone(), *bytes).await;
        saved.map_err(|error| StorageIOError::write_snapshot(signature, AnyError::new(&error)))?;
        self.become_one(meta, map);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, SnapshotFailure> {
        let stored = self.stored();
        let stored =
            stored.map_err(|error| StorageIOError::read_snapshot(None, AnyError::new(&error)))?;
        Ok(stored.map(|(meta, bytes)| Snapshot { meta, snapshot: Box::new(bytes) }))
    }
}

/// The map at one moment, to be written as a snapshot.
#[derive(Debug)]
pub(crate) struct MapSnapshotBuilder {
    store: ControlStore,
    meta: Meta,
    bytes: Bytes,
}

impl RaftSnapshotBuilder<Types> for MapSnapshotBuilder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, SnapshotFailure> {
        let saved = save(&self.store, self.meta.clone(), self.bytes.clone()).await;
        saved.map_err(|error| {
            StorageIOError::write_snapshot(Some(self.meta.signature()), AnyError::new(&error))
        })?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: Box::new(self.bytes.clone()) })
    }
}

/// Keeps the newer snapshot: the leader may have sent a later one while this one was built.
async fn save(store: &ControlStore, meta: Meta, bytes: Bytes) -> Result<(), StoreError> {
    let before = store.fact::<Meta>(META)?;
    if before.is_some_and(|before| before.last_log_id > meta.last_log_id) {
        return Ok(());
    }
    let write = store.write(Durability::Immediate, move |write| {
        put(write, META, &meta)?;
        write.open_table(FACTS).wrap()?.insert(MAP, &*bytes).wrap()?;
        Ok(())
    });
    write.await
}
