//! What a node keeps on disk: who it is, Raft's vote and log, and the last snapshot of the map.
//!
//! Here: the file, its tables, who the node is. Not here: what Raft writes when (`log`), what a
//! snapshot is of (`machine`).
//!
//! One redb file, `control.redb`. Every write is synced before it is reported done, but for
//! `committed`, which rides on the next one: if it is lost, the leader says it again.

pub(crate) mod log;
pub(crate) mod machine;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use cluster::id::{Incarnation, NodeId};
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase as _, StorageBackend, TableDefinition,
    WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const FORMAT: &str = "format";
const IDENTITY: &str = "identity";
/// Of the tables and what is in them. Another one is not read.
const FORMAT_VERSION: u32 = 1;

/// The file has a few megabytes; redb would keep up to a gigabyte in memory.
const CACHE_BYTES: usize = 8 << 20;

/// Who a node is, as its data directory knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Drawn once for the directory.
    pub birth: u128,
    /// The present life.
    pub incarnation: Incarnation,
    /// Its place in a cluster; none before it has one.
    pub seat: Option<Seat>,
}

/// A node's place in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Which cluster.
    pub cluster: u128,
    /// Its id there.
    pub node: NodeId,
    /// It created the cluster: it alone may initialise Raft, once.
    pub is_founder: bool,
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory.
    #[error("the data directory: {0}")]
    Directory(#[from] std::io::Error),
    /// The database says so.
    #[error("the control log: {0}")]
    Database(#[source] Box<redb::Error>),
    /// What is in it was not written by us, or by another version.
    #[error("the control log: {0} is not readable")]
    Unreadable(&'static str),
    /// The runtime went down while something was being written.
    #[error("the control log: interrupted")]
    Interrupted,
}

impl<E: Into<redb::Error>> From<Wrapped<E>> for StoreError {
    fn from(Wrapped(error): Wrapped<E>) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// redb has an error for each of its calls; all of them end here.
pub(crate) struct Wrapped<E>(E);

pub(crate) trait Wrap<T> {
    fn wrap(self) -> Result<T, StoreError>;
}

impl<T, E: Into<redb::Error>> Wrap<T> for Result<T, E> {
    fn wrap(self) -> Result<T, StoreError> {
        self.map_err(|error| Wrapped(error).into())
    }
}

/// The file. Clones share it.
#[derive(Debug, Clone)]
pub struct Store {
    database: Arc<Database>,
    /// Writes go to a thread that may wait for the disk. Not so where the disk is memory, so that
    /// a simulation does the same twice.
    is_disk: bool,
}

impl Store {
    /// Opens the file in a data directory, both of which are made if they are not there.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; another process that has it open is one reason.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(directory)?;
        let database = builder().create(directory.join("control.redb")).wrap()?;
        // A file is durable when its name is.
        File::open(directory)?.sync_all()?;
        Self::new(database, true)
    }

    /// One that is gone with the process.
    ///
    /// # Errors
    ///
    /// None that happen.
    pub fn in_memory() -> Result<Self, StoreError> {
        Self::with_backend(InMemoryBackend::new())
    }

    /// One on a disk of the caller's making.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the backend fails or holds something else.
    pub fn with_backend(backend: impl StorageBackend) -> Result<Self, StoreError> {
        Self::new(builder().create_with_backend(backend).wrap()?, false)
    }

    fn new(database: Database, is_disk: bool) -> Result<Self, StoreError> {
        let store = Self { database: Arc::new(database), is_disk };
        match store.fact::<u32>(FORMAT) {
            Ok(Some(FORMAT_VERSION)) => return Ok(store),
            Ok(Some(_)) => return Err(StoreError::Unreadable("its format")),
            // No table, as in a new file.
            Ok(None) | Err(_) => {}
        }
        commit(&store.database, Durability::Immediate, |write| {
            write.open_table(LOG).wrap()?;
            put(write, FORMAT, &FORMAT_VERSION)
        })?;
        Ok(store)
    }

    /// Begins a life: draws the birth of a new directory, and counts the incarnation.
    pub(crate) async fn begin(&self, birth: u128) -> Result<Identity, StoreError> {
        let before = self.fact::<Identity>(IDENTITY)?;
        let mut identity =
            before.unwrap_or(Identity { birth, incarnation: Incarnation(0), seat: None });
        identity.incarnation.0 += 1;
        self.write(Durability::Immediate, move |write| put(write, IDENTITY, &identity)).await?;
        Ok(identity)
    }

    /// Takes a seat. What Raft had under another one is gone: it belonged to that id.
    pub(crate) async fn take_seat(&self, identity: Identity) -> Result<(), StoreError> {
        self.write(Durability::Immediate, move |write| {
            for fact in [log::VOTE, log::COMMITTED, log::PURGED, machine::META, machine::MAP] {
                write.open_table(FACTS).wrap()?.remove(fact).wrap()?;
            }
            write.open_table(LOG).wrap()?.retain(|_, _| false).wrap()?;
            put(write, IDENTITY, &identity)
        })
        .await
    }

    /// Something small by its name.
    pub(crate) fn fact<T: DeserializeOwned>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let read = self.database.begin_read().wrap()?;
        let table = read.open_table(FACTS).wrap()?;
        let Some(bytes) = table.get(name).wrap()? else { return Ok(None) };
        decode(bytes.value(), name).map(Some)
    }

    /// Writes, and syncs as told, before it returns.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        job: impl FnOnce(&WriteTransaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.is_disk {
            return commit(&self.database, durability, job);
        }
        let database = self.database.clone();
        let written = tokio::task::spawn_blocking(move || commit(&database, durability, job)).await;
        written.unwrap_or(Err(StoreError::Interrupted))
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn commit<T>(
    database: &Database,
    durability: Durability,
    job: impl FnOnce(&WriteTransaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut write = database.begin_write().wrap()?;
    write.set_durability(durability).wrap()?;
    let done = job(&write)?;
    write.commit().wrap()?;
    Ok(done)
}

pub(crate) fn put<T: Serialize>(
    write: &WriteTransaction,
    name: &'static str,
    value: &T,
) -> Result<(), StoreError> {
    write.open_table(FACTS).wrap()?.insert(name, &*encode(value)).wrap()?;
    Ok(())
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_allocvec(value).expect("nothing in it can fail to be written")
}

pub(crate) fn decode<T: DeserializeOwned>(
    bytes: &[u8],
    what: &'static str,
) -> Result<T, StoreError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(StoreError::Unreadable(what)),
    }
}

#[cfg(test)]
mod tests;
