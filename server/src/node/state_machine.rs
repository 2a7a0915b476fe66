//! The keys of a partition as its copies keep them equal.
//!
//! Here: what an operation is, how the primary does it, how a copy takes over what it did. Not here:
//! when that happens (`cluster::replica`), how an item lies in bytes (`engine`).
//!
//! An operation is what the client wrote, and its result is what the client is told. So whoever is primary
//! decodes, decides and answers as a server by itself does, and the node that the client talks to only
//! looks for the key.

use std::mem::take;

use bytes::Bytes;
use cluster::frames::KeyState;
use cluster::id::Partition;
use cluster::replica::{ApplyPosition, StateMachine};
use engine::{HashRange, IdCopy, KeyChange, Nanos, Now, PutError};
use protocol::{Command, Decoded, FastRequest, Get, Key, Operation, Request, decode};

use super::Keyspace;
use super::dispatch::is_silent;
use super::sub_request::{SubRequest, SubResponse};
use crate::commands::items::line;
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::runtime::service::Service;
use crate::session::{ExecContext, counted_key, look_up_in};
use crate::shards::Shards;

/// 2025-01-01T00:00:00Z in nanoseconds since 1970: where the times in items count from, on all nodes.
/// Deadlines have forty bits of milliseconds, thirty-four years.
pub(super) const ORIGIN_NS: u64 = 1_735_689_600_000_000_000;
/// 2055-01-01T00:00:00Z, likewise: no partition begins later, so that deadlines of four years and more
/// are left to it.
pub(super) const LATEST_NS: u64 = 2_682_374_400_000_000_000;

/// The unique numbers of a term begin with it: the record's number has the lower bits.
const LSN_BITS: u32 = 40;

/// How the line of an operation is to be read: the low bits of its `frames::op_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// As a client asked.
    Plain = 0,
    /// Everything goes; no words follow.
    Flush = 1,
    /// One key's part in a request that charges several.
    SubRequest = 2,
    /// A value for this key was too large: the old one goes, for nobody must go on reading it.
    Drop = 3,
    /// A client's retrieval of one key, whose reply has its end: `Plain` asks for the item alone.
    Retrieval = 4,
}

/// A bit beside a [`OpKind`]: the key of the line is counted under another one, by a limit of the node in front.
pub(crate) const COUNTED_ELSEWHERE: u8 = 0x10;

/// The bits of `frames::op_flags` that are a [`OpKind`].
const OP_KIND_BITS: u8 = 0x0f;

impl OpKind {
    /// The sort of one of the commonest requests, as a client asked.
    pub(crate) fn of_fast(fast: &FastRequest<'_>) -> Self {
        if matches!(fast, FastRequest::Get { .. }) { Self::Retrieval } else { Self::Plain }
    }

    /// Whether its line is a client's, which tells its own length.
    pub(crate) fn is_of_client(self) -> bool {
        matches!(self, Self::Plain | Self::Retrieval)
    }

    /// The sort among these bits; `None` if this version does not know it.
    pub(crate) fn of_bits(bits: u8) -> Option<Self> {
        Some(match bits & OP_KIND_BITS {
            0 => Self::Plain,
            1 => Self::Flush,
            2 => Self::SubRequest,
            3 => Self::Drop,
            4 => Self::Retrieval,
            _ => return None,
        })
    }
}

/// A partition's time as the engine counts it.
pub(crate) fn items_time(pt_ns: u64) -> Nanos {
    Nanos(pt_ns.saturating_sub(ORIGIN_NS))
}

/// What an operation made of a key, for the other copies. It keeps its memory.
#[derive(Debug, Default)]
pub(crate) struct StateChange {
    pub(crate) kind: StateChangeKind,
    /// The key. Empty: all keys of the partition, which are deleted.
    pub(crate) key: Vec<u8>,
    /// The item, where it is one.
    pub(crate) state: Vec<u8>,
}

/// What became of the key of a [`StateChange`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateChangeKind {
    /// Nothing.
    #[default]
    Nothing,
    /// A bare count with the cas unique of the operation.
    Counter(u64),
    /// Another item.
    Item,
    /// It is gone.
    Deleted,
}

impl StateChange {
    /// Nothing has changed yet.
    pub(crate) fn clear(&mut self) {
        self.kind = StateChangeKind::Nothing;
        for bytes in [&mut self.key, &mut self.state] {
            if bytes.capacity() > BUFFER_BYTES_MAX {
                *bytes = Vec::new();
            }
            bytes.clear();
        }
    }

    fn delete(&mut self, key: &[u8]) {
        self.kind = StateChangeKind::Deleted;
        self.key.extend_from_slice(key);
    }

    /// The state of the key for a record; `None` if it is as it was.
    pub(crate) fn state(&self) -> Option<KeyState<'_>> {
        match self.kind {
            StateChangeKind::Nothing => None,
            StateChangeKind::Counter(count) => Some(KeyState::Counter(count)),
            StateChangeKind::Item => Some(KeyState::Item(&self.state)),
            StateChangeKind::Deleted => Some(KeyState::Deleted),
        }
    }
}

/// The keys of one copy, with what it takes to work on them.
pub(crate) struct PartitionState<'a> {
    pub(crate) service: &'a Service,
    pub(crate) counters: &'a Counters,
    pub(crate) active_limits: &'a ActiveLimits,
    pub(crate) worker: usize,
    pub(crate) scratch: &'a mut Scratch,
    /// Memory for counted keys.
    pub(crate) counted: &'a mut Vec<u8>,
    pub(crate) partition: Partition,
    pub(crate) bits: u32,
    /// The node's wall clock, for windows of the calendar and exptimes that are dates.
    pub(crate) unix_ms: u64,
}

/// Told where the nodes do not agree on what a key is counted under: their limits change right now.
const LIMITS_CHANGE: &str = "SERVER_ERROR not applied: limits are changing";
/// Told for words that the node in front should not have sent.
const NO_OPERATION: &str = "SERVER_ERROR not applied: no operation on a key";

/// What ids are copied under: longer than a key.
const IDS_KEY: &[u8] = &[b'i'; protocol::KEY_BYTES_MAX + 1];

/// The unique number of an item that is made now.
pub(super) fn unique(at: ApplyPosition) -> u64 {
    u64::from(at.term.0) << LSN_BITS | at.lsn
}

impl PartitionState<'_> {
    fn range(&self) -> HashRange {
        range_of(self.partition, self.bits)
    }

    /// Does what `raw_request` ask, appends what the client is told to `out`, and notes in `change`, which is clear, what became
    /// of the key.
    pub(crate) fn perform(
        &mut self,
        at: ApplyPosition,
        op_kind: OpKind,
        raw_request: &[u8],
        out: &mut Vec<u8>,
        change: &mut StateChange,
    ) {
        match op_kind {
            OpKind::Flush => {
                self.service.shards().remove_range(self.range());
                // No key is empty: a copy that is told this one is gone drops all.
                change.delete(b"");
            }
            OpKind::SubRequest => match SubRequest::decode(raw_request) {
                Some(sub_request) => self.sub_request(at, &sub_request, out, change),
                None => line(out, NO_OPERATION),
            },
            OpKind::Drop => self.drop_value(at, raw_request, change),
            OpKind::Plain | OpKind::Retrieval => {
                match decode(raw_request, 0, self.service.shards().bounds()) {
                    Ok(Decoded::Request { request, .. }) => {
                        let is_answered = self.answer(at, &request, out, change);
                        if is_answered && op_kind == OpKind::Retrieval {
                            out.extend_from_slice(b"END\r\n");
                        }
                    }
                    _ => line(out, NO_OPERATION),
                }
            }
        }
    }

    fn now(&self, pt_ns: u64) -> Now {
        Now { mono: items_time(pt_ns), unix_ms: self.unix_ms }
    }

    fn exec_context(&mut self, at: ApplyPosition) -> ExecContext<'_> {
        let (now, counters) = (self.now(at.pt_ns), self.counters);
        ExecContext::of_key(
            self.service,
            counters,
            now,
            self.active_limits,
            self.scratch,
            self.worker,
        )
    }

    /// Runs `work` on a key and notes what became of it.
    fn noting(
        &mut self,
        at: ApplyPosition,
        key: &[u8],
        hash: u64,
        change: &mut StateChange,
        work: impl FnOnce(&mut ExecContext<'_>),
    ) {
        let shards = self.service.shards();
        let unique = unique(at);
        // Another partition of the shard must not name what this one makes.
        let _turn = shards.turn(hash);
        let before = shards.begin_change(hash, key, unique);
        self.scratch.kept_id.set(None);
        work(&mut self.exec_context(at));
        let is_unchanged = before == shards.mark_of(hash, key);
        let kept_id = self.scratch.kept_id.take();
        if is_unchanged && kept_id.is_none() {
            return;
        }
        change.key.extend_from_slice(key);
        change.kind = if let Some(id) = kept_id {
            // What the id was answered belongs to what became of the key: no copy has one alone.
            let state = &mut change.state;
            id.encode_with(state, is_unchanged, |state| shards.copy_of(hash, key, state));
            StateChangeKind::Item
        } else if let Some(count) = shards.bare_count(hash, key, unique) {
            StateChangeKind::Counter(count)
        } else if shards.copy_of(hash, key, &mut change.state) {
            StateChangeKind::Item
        } else {
            StateChangeKind::Deleted
        };
    }

    fn sub_request(
        &mut self,
        at: ApplyPosition,
        sub_request: &SubRequest<'_>,
        out: &mut Vec<u8>,
        change: &mut StateChange,
    ) {
        let hash = self.service.shards().hash(sub_request.key);
        if !self.range().contains(hash) {
            return SubResponse::NoLimit.encode(out);
        }
        self.noting(at, sub_request.key, hash, change, |ctx| {
            ctx.sub_request(sub_request, hash).encode(out);
        });
    }

    fn install_ids(&self, now: Now, mut ids: &[u8]) {
        while let Some((id, rest)) = IdCopy::decode(ids) {
            self.service.shards().put_id(now, self.partition.0, &id);
            ids = rest;
        }
    }

    fn drop_value(&mut self, at: ApplyPosition, key: &[u8], change: &mut StateChange) {
        let hash = self.service.shards().hash(key);
        let is_bound = !matches!(self.active_limits.limits().find(key, &mut Vec::new()), Ok(None));
        let (Some(of_item), true, false) = (Key::plain(key), self.range().contains(hash), is_bound)
        else {
            return;
        };
        self.noting(at, key, hash, change, |ctx| {
            let key = of_item;
            let command = Command { key, operation: Operation::TooLarge { drop: true } };
            ctx.service.shards().apply(ctx.now, hash, &command, |_| ());
        });
    }

    /// Answers a request on one key; false: only with an error.
    fn answer(
        &mut self,
        at: ApplyPosition,
        request: &Request<'_>,
        out: &mut Vec<u8>,
        change: &mut StateChange,
    ) -> bool {
        let key = match request {
            Request::Command { command, .. } => {
                Some((command.key.as_bytes(), Some(&command.operation)))
            }
            Request::Retrieve { keys, .. } => keys.first().map(|key| (key, None)),
            _ => None,
        };
        let Some((own, operation)) = key else {
            line(out, NO_OPERATION);
            return false;
        };
        let active_limits = self.active_limits;
        let mut counted = take(self.counted);
        let lookup = look_up_in(self.service.shards(), active_limits, own, &mut counted);
        let (key, hash) = counted_key(self.service.shards(), own, operation, &lookup);
        let is_here = self.range().contains(hash);
        if is_here {
            self.noting(at, key, hash, change, |ctx| match request {
                Request::Command { command, form } => ctx.one_key(command, form, &lookup, out),
                Request::Retrieve { keys, with_cas, touch } => {
                    for (key, _) in keys.iter().take(1) {
                        let get = Get { touch: *touch, ..Get::default() };
                        let command = Command { key, operation: Operation::Get(get) };
                        ctx.retrieve_one(&command, &lookup, *with_cas, out);
                    }
                }
                _ => {}
            });
        } else if !is_silent(request) {
            line(out, LIMITS_CHANGE);
        }
        *self.counted = counted;
        is_here
    }

    fn install_item(&self, now: Now, key: &[u8], state: &[u8]) {
        let shards = self.service.shards();
        let hash = shards.hash_in(self.partition.0, key);
        let state = match IdCopy::split(state) {
            None => Some(state),
            // Not of this version: without the state the key begins anew, as one that was evicted.
            Some(Err(())) => None,
            Some(Ok((id, change))) => {
                shards.put_id(now, self.partition.0, &id);
                match change {
                    KeyChange::Unchanged => return,
                    KeyChange::Gone => None,
                    KeyChange::Changed(state) => Some(state),
                }
            }
        };
        let done = match state {
            Some(state) => shards.put_copy(now, hash, key, state),
            None => return shards.remove_copy(hash, key),
        };
        self.note_stored(hash, key, done);
    }

    /// What does not fit is as if it had been evicted here right after.
    fn note_stored(&self, hash: u64, key: &[u8], done: Result<(), PutError>) {
        if let Err(error) = done {
            tracing::debug!(?error, partition = %self.partition, "item not kept in a copy");
            self.service.shards().remove_copy(hash, key);
        }
    }
}

/// One large value must not cost a thread its size for ever.
const BUFFER_BYTES_MAX: usize = 1 << 20;

impl StateMachine for PartitionState<'_> {
    fn install(&mut self, at: ApplyPosition, key: &[u8], state: &KeyState<'_>) {
        let shards = self.service.shards();
        let now = self.now(at.pt_ns);
        let hash = || shards.hash_in(self.partition.0, key);
        match *state {
            KeyState::Unchanged => {}
            KeyState::Deleted if key.is_empty() => shards.remove_range(self.range()),
            KeyState::Deleted => shards.remove_copy(hash(), key),
            KeyState::Counter(count) => {
                let hash = hash();
                let done = shards.put_bare_count(now, hash, key, count, unique(at));
                self.note_stored(hash, key, done);
            }
            KeyState::Item(ids) if key == IDS_KEY => self.install_ids(now, ids),
            KeyState::Item(state) => self.install_item(now, key, state),
        }
    }

    fn export(
        &mut self,
        at: ApplyPosition,
        cursor: Option<&[u8]>,
        bytes_max: usize,
        each: &mut dyn FnMut(&[u8], &KeyState<'_>),
    ) -> Option<Bytes> {
        let (range, now, shards) = (self.range(), self.now(at.pt_ns), self.service.shards());
        // First the items, then the ids.
        if cursor.is_none_or(|cursor| !Shards::is_of_ids(cursor)) {
            let next = shards.export(now, range, cursor, bytes_max, |key, state| {
                each(key, &KeyState::Item(state));
            });
            if next.is_some() {
                return next.map(Bytes::from);
            }
        }
        let cursor = cursor.filter(|cursor| Shards::is_of_ids(cursor));
        let mut ids = Vec::new();
        let next = shards.export_ids(now, self.partition.0, cursor, bytes_max, &mut ids);
        if !ids.is_empty() {
            each(IDS_KEY, &KeyState::Item(&ids));
        }
        next.map(Bytes::from)
    }

    fn clear(&mut self) {
        self.service.shards().remove_range(self.range());
        self.service.shards().forget_ids(self.range());
    }
}

/// The hashes of a partition's keys.
pub(super) fn range_of(partition: Partition, bits: u32) -> HashRange {
    HashRange { prefix: u64::from(partition.0), bits }
}

/// The partition that a key of this hash is in.
pub(crate) fn partition_of(keyspace: &Keyspace, hash: u64) -> Partition {
    Partition((hash >> (u64::BITS - keyspace.bits)) as u16)
}

/// Whether the copy of an item brings nothing along but the item.
pub(crate) fn is_bare(key: &[u8], state: &[u8]) -> bool {
    key != IDS_KEY && IdCopy::split(state).is_none()
}
