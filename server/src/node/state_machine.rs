//! The keys of a partition as a replicated state machine.
//!
//! Here: the kinds of operations, performing them on the primary, installing their changes on a
//! copy. Not here: the order of both (`cluster::replica`), the encoding of an item (`engine`).
//!
//! An operation is the client's request, and its result is the client's reply. The primary
//! therefore decodes, decides and answers as a server without a cluster does, and the client's node
//! only looks up the key.

use std::mem::take;

use bytes::Bytes;
use cluster::frames::KeyState;
use cluster::id::Partition;
use cluster::replica::{ApplyPosition, StateMachine};
use engine::{HashRange, IdCopy, KeyChange, LimitCopy, Nanos, Now, PutError};
use protocol::{Command, Decoded, FastRequest, Get, Key, Operation, Request, decode};

use super::Keyspace;
use super::dispatch::is_silent;
use super::sub_request::{SubRequest, SubResponse};
use crate::commands::context::ExecContext;
use crate::commands::items::line;
use crate::commands::lookup::{counted_key, look_up_in};
use crate::commands::scratch::Scratch;
use crate::counters::Counters;
use crate::limits::ActiveLimits;
use crate::runtime::service::Service;
use crate::shards::{ObservedKey, Shards};

/// 2025-01-01T00:00:00Z in nanoseconds since 1970: the origin of the times in items, on all nodes.
/// Deadlines have forty bits of milliseconds, thirty-four years.
pub(super) const ORIGIN_NS: u64 = 1_735_689_600_000_000_000;
/// 2055-01-01T00:00:00Z in nanoseconds since 1970: no partition begins later, which leaves at least
/// four years for its deadlines.
pub(super) const LATEST_NS: u64 = 2_682_374_400_000_000_000;

/// A cas unique has the term in its upper bits and the record's lsn in this many lower bits.
const LSN_BITS: u32 = 40;

/// The meaning of an operation's line: the low bits of its `frames::op_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// A client's request.
    Plain = 0,
    /// Deletes all keys; the line is empty.
    Flush = 1,
    /// The part of one key in a request that charges several.
    SubRequest = 2,
    /// A value for this key was too large: the old one is dropped, so that no client reads it
    /// further.
    Drop = 3,
    /// A client's retrieval of one key, with its `END`: `Plain` returns the item alone.
    Retrieval = 4,
}

/// A bit beside [`OpKind`]: a limit of the sending node counts the key of the line under another
/// key.
pub(crate) const COUNTED_ELSEWHERE: u8 = 0x10;

/// The bits of `frames::op_flags` that hold an [`OpKind`].
const OP_KIND_BITS: u8 = 0x0f;

impl OpKind {
    /// The kind of a fast request.
    pub(crate) fn of_fast(fast: &FastRequest<'_>) -> Self {
        if matches!(fast, FastRequest::Get { .. }) { Self::Retrieval } else { Self::Plain }
    }

    /// Whether the line is a client's, which determines its own length.
    pub(crate) fn is_of_client(self) -> bool {
        matches!(self, Self::Plain | Self::Retrieval)
    }

    /// The kind in these bits; `None` if this version does not know it.
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

/// A partition's time on the engine's clock.
pub(crate) fn items_time(pt_ns: u64) -> Nanos {
    Nanos(pt_ns.saturating_sub(ORIGIN_NS))
}

/// The change of a key by an operation, for the other copies. Its memory is reused.
#[derive(Debug, Default)]
pub(crate) struct StateChange {
    pub(crate) kind: StateChangeKind,
    /// The key. Empty: all keys of the partition, which are deleted.
    pub(crate) key: Vec<u8>,
    /// The encoded item, if `kind` is `Item`.
    pub(crate) state: Vec<u8>,
}

/// The kind of a [`StateChange`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateChangeKind {
    /// No change.
    #[default]
    Nothing,
    /// A bare count with the cas unique of the operation.
    Counter(u64),
    /// Another item.
    Item,
    /// The key is deleted.
    Deleted,
}

impl StateChange {
    /// Resets the change, and releases large buffers.
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

    /// The state of the key for a record; `None` if it is unchanged.
    pub(crate) fn state(&self) -> Option<KeyState<'_>> {
        match self.kind {
            StateChangeKind::Nothing => None,
            StateChangeKind::Counter(count) => Some(KeyState::Counter(count)),
            StateChangeKind::Item => Some(KeyState::Item(&self.state)),
            StateChangeKind::Deleted => Some(KeyState::Deleted),
        }
    }
}

/// The keys of one replica, with the context for operations on them.
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
    /// The node's wall clock, for windows of the calendar and for absolute exptimes.
    pub(crate) unix_ms: u64,
}

/// The reply if two nodes count a key under different keys, because their limits are changing.
const LIMITS_CHANGE: &str = "SERVER_ERROR not applied: limits are changing";
/// The reply to an operation that the sending node should not have sent.
const NO_OPERATION: &str = "SERVER_ERROR not applied: no operation on a key";

/// The key under which ids are copied: longer than any client's key.
const IDS_KEY: &[u8] = &[b'i'; protocol::KEY_BYTES_MAX + 1];

/// The cas unique of an item that is made at this position.
pub(super) fn unique(at: ApplyPosition) -> u64 {
    u64::from(at.term.0) << LSN_BITS | at.lsn
}

impl PartitionState<'_> {
    fn range(&self) -> HashRange {
        range_of(self.partition, self.bits)
    }

    /// Performs `raw_request`, appends the client's reply to `out`, and stores the change of the
    /// key in `change`, which must be clear.
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
                // A key is never empty: a copy that installs this deletion drops all keys.
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

    /// Runs `work` on a key and stores the key's change in `change`.
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
        let observed = ObservedKey::new(key, hash, unique);
        self.scratch.kept_id.set(None);
        work(&mut ExecContext { observed: Some(&observed), ..self.exec_context(at) });
        let is_unchanged = !observed.is_changed();
        let kept_id = self.scratch.kept_id.take();
        if is_unchanged && kept_id.is_none() {
            return;
        }
        change.key.extend_from_slice(key);
        change.kind = if let Some(id) = kept_id {
            // The reply that is kept for an id and the key's state form one record: no copy has
            // only one of them.
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
            ctx.shards().apply(ctx.now, hash, &command, |_| ());
        });
    }

    /// Answers a request on one key. Returns false if the answer is an error of this node.
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
            // Written by another version: without the state the key begins anew, as if evicted.
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

    /// Drops an item that did not fit, as if it had been evicted at once.
    fn note_stored(&self, hash: u64, key: &[u8], done: Result<(), PutError>) {
        if let Err(error) = done {
            tracing::debug!(?error, partition = %self.partition, "an item does not fit: dropped");
            self.service.shards().remove_copy(hash, key);
        }
    }
}

/// Longer buffers are released: one large value must not occupy a thread's memory for ever.
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
            KeyState::Limit { policy, state } => {
                let (hash, copy) = (hash(), LimitCopy { policy, state });
                let done = shards.put_limit(now, (hash, key), copy, unique(at));
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

/// The partition of a key with this hash.
pub(crate) fn partition_of(keyspace: &Keyspace, hash: u64) -> Partition {
    Partition((hash >> (u64::BITS - keyspace.bits)) as u16)
}

/// Whether the copy of an item contains nothing but the item.
pub(crate) fn is_bare(key: &[u8], state: &[u8]) -> bool {
    key != IDS_KEY && IdCopy::split(state).is_none()
}
