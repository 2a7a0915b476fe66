//! Raft's vote and log in the store.
//!
//! Here: openraft's storage interface over the tables. Not here: the file (`store`), the map
//! (`state_machine`).

use std::fmt::Debug;
use std::ops::RangeBounds;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, LogId, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote,
};
use redb::{Durability, ReadableDatabase as _, ReadableTable as _};

use super::{ControlStore, LOG, StoreError, Wrap as _, decode, encode, put};
use crate::raft_types::Types;

pub(super) const VOTE: &str = "vote";
pub(super) const COMMITTED: &str = "committed";
pub(super) const PURGED: &str = "purged";

/// The most bytes of entries that are read for one message, unless the first entry is longer: a
/// message must fit into a control frame.
const READ_BYTES_MAX: usize = 256 << 10;

type LogEntry = openraft::Entry<Types>;
type LogError = StorageError<u64>;

/// The log. Clones read the same one.
#[derive(Debug, Clone)]
pub(crate) struct RaftLog {
    store: ControlStore,
}

impl RaftLog {
    pub(crate) fn new(store: ControlStore) -> Self {
        Self { store }
    }

    fn entries(
        &self,
        range: impl RangeBounds<u64>,
        bytes_max: usize,
    ) -> Result<Vec<LogEntry>, StoreError> {
        let read = self.store.database()?.begin_read().wrap()?;
        let table = read.open_table(LOG).wrap()?;
        let mut entries = Vec::new();
        let mut left = bytes_max;
        for row in table.range(range).wrap()? {
            let (_, bytes) = row.wrap()?;
            let bytes = bytes.value();
            if bytes.len() > left && !entries.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes.len());
            entries.push(decode(bytes, "a log entry")?);
        }
        Ok(entries)
    }

    fn state(&self) -> Result<LogState<Types>, StoreError> {
        let last_purged_log_id = self.store.fact::<LogId<u64>>(PURGED)?;
        let read = self.store.database()?.begin_read().wrap()?;
        let table = read.open_table(LOG).wrap()?;
        let last = match table.last().wrap()? {
            Some((_, bytes)) => Some(decode::<LogEntry>(bytes.value(), "a log entry")?.log_id),
            None => None,
        };
        Ok(LogState { last_purged_log_id, last_log_id: last.or(last_purged_log_id) })
    }
}

impl RaftLogReader<Types> for RaftLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<LogEntry>, LogError> {
        self.entries(range, usize::MAX).map_err(|error| read_failed(&error))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<LogEntry>, LogError> {
        self.entries(start..end, READ_BYTES_MAX).map_err(|error| read_failed(&error))
    }
}

impl RaftLogStorage<Types> for RaftLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, LogError> {
        self.state().map_err(|error| read_failed(&error))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), LogError> {
        let vote = *vote;
        let written = self.store.write(Durability::Immediate, move |write| put(write, VOTE, &vote));
        written.await.map_err(|error| StorageIOError::write_vote(AnyError::new(&error)).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, LogError> {
        let vote = self.store.fact(VOTE);
        vote.map_err(|error| StorageIOError::read_vote(AnyError::new(&error)).into())
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Result<(), LogError> {
        let Some(committed) = committed else { return Ok(()) };
        let written =
            self.store.write(Durability::None, move |write| put(write, COMMITTED, &committed));
        written.await.map_err(|error| write_failed(&error))
    }

    async fn read_committed(&mut self) -> Result<Option<LogId<u64>>, LogError> {
        self.store.fact(COMMITTED).map_err(|error| read_failed(&error))
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<(), LogError>
    where
        I: IntoIterator<Item = LogEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let rows: Vec<(u64, Vec<u8>)> =
            entries.into_iter().map(|entry| (entry.log_id.index, encode(&entry))).collect();
        let write = self.store.write(Durability::Immediate, move |write| {
            let mut table = write.open_table(LOG).wrap()?;
            for (index, bytes) in &rows {
                table.insert(index, bytes.as_slice()).wrap()?;
            }
            Ok(())
        });
        match write.await {
            Ok(()) => {
                flushed.log_io_completed(Ok(()));
                Ok(())
            }
            Err(error) => {
                flushed.log_io_completed(Err(std::io::Error::other(error.to_string())));
                Err(write_failed(&error))
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), LogError> {
        let write = self.store.write(Durability::Immediate, move |write| {
            let mut table = write.open_table(LOG).wrap()?;
            table.retain_in(log_id.index.., |_, _| false).wrap()
        });
        write.await.map_err(|error| write_failed(&error))
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), LogError> {
        let write = self.store.write(Durability::Immediate, move |write| {
            put(write, PURGED, &log_id)?;
            let mut table = write.open_table(LOG).wrap()?;
            table.retain_in(..=log_id.index, |_, _| false).wrap()
        });
        write.await.map_err(|error| write_failed(&error))
    }
}

fn read_failed(error: &StoreError) -> LogError {
    StorageIOError::read_logs(AnyError::new(error)).into()
}

fn write_failed(error: &StoreError) -> LogError {
    StorageIOError::write_logs(AnyError::new(error)).into()
}
