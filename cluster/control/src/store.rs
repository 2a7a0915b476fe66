//! The data directory: the node's identity, Raft's vote and log, and the last snapshot of the map.
//!
//! Here: the tables, the identity, opening the file again after a fault. Not here: the files of the
//! directory (`directory`), Raft's writes (`raft_log`), snapshots (`state_machine`), the speed of
//! the disk (`health`), probes of it (`probe`).
//!
//! The data is in one redb file, `control.redb`. Every write is synced before it is reported done,
//! except `committed`, which becomes durable with the next write: if it is lost, the leader sends
//! it again.

mod directory;
mod error;
pub(crate) mod health;
mod probe;
pub(crate) mod raft_log;
pub(crate) mod state_machine;

use std::fs::{self, File};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::Rules;
use cluster::id::{Incarnation, NodeId};
use parking_lot::Mutex;
use redb::backends::InMemoryBackend;
use redb::{Database, Durability, ReadableDatabase as _, TableDefinition, WriteTransaction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::directory::{builder, lock, rewrite};
pub use self::error::StoreError;
pub(crate) use self::error::Wrap;
use self::health::DiskHealth;

const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const FORMAT: &str = "format";
const IDENTITY: &str = "identity";
const ADDRESS: &str = "address";
/// The version of the tables and their contents. Other versions are not read.
const FORMAT_VERSION: u32 = 1;

/// The identity of a node, as stored in its data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Drawn once for the directory.
    pub node_uuid: u128,
    /// The present incarnation.
    pub incarnation: Incarnation,
    /// The membership in a cluster; none before the node has one.
    pub membership: Option<Membership>,
}

/// A node's membership in a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The cluster.
    pub cluster: u128,
    /// The node's id in the cluster.
    pub node: NodeId,
    /// Whether the node founded the cluster: only the founder initialises Raft, once.
    pub is_founder: bool,
}

/// The longest wait for users of a failed file, before it can be opened again.
const LET_GO_MAX: Duration = Duration::from_secs(2);

/// The store. Clones share it.
#[derive(Clone)]
pub struct ControlStore {
    inner: Arc<StoreInner>,
    /// The number of the opening that this handle is for; none means the present one. Each Raft has
    /// a handle for one opening, so that an ended Raft writes nothing beside the next one.
    opening: Option<u64>,
}

type Reopen = Box<dyn Fn() -> Result<Database, StoreError> + Send + Sync>;
type Delay = Box<dyn Fn() -> Duration + Send + Sync>;

struct StoreInner {
    opened: Mutex<Opened>,
    /// Opens the file again after a fault; none for memory, which does not fail.
    reopen: Option<Reopen>,
    /// The additional time of a write on a simulated disk.
    delay: Option<Delay>,
    /// Whether writes go to a thread that may wait for the disk. False in memory, so that a
    /// simulation is reproducible.
    is_disk: bool,
    file: Option<PathBuf>,
    health: DiskHealth,
    /// The rules by which the map applies commands: all, except in simulations.
    map_rules: Rules,
    /// The lock that keeps other processes off the directory.
    lock: Option<File>,
}

struct Opened {
    number: u64,
    database: Option<Arc<Database>>,
}

impl std::fmt::Debug for ControlStore {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { inner, opening } = self;
        out.debug_struct("Store").field("file", &inner.file).field("opening", opening).finish()
    }
}

impl ControlStore {
    /// Opens the file in a data directory. Creates both if missing.
    ///
    /// # Errors
    ///
    /// [`StoreError`], for example if another process has the directory open.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Directory { path: directory.to_owned(), source };
        fs::create_dir_all(directory).map_err(failed)?;
        let lock = lock(directory)?;
        let file = directory.join("control.redb");
        // A damaged file may fail an assertion of redb's. The operator gets the same advice.
        let opened = catch_unwind(AssertUnwindSafe(|| builder().create(&file).wrap()));
        let opened = opened.unwrap_or(Err(StoreError::Unreadable("its structure")));
        let database = opened.map_err(|error| error.at(Some(&file)))?;
        // A new file is durable only once its directory entry is.
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
        let place = file.clone();
        let inner = StoreInner {
            opened: Mutex::new(Opened { number: 0, database: Some(Arc::new(database)) }),
            reopen: Some(Box::new(move || rewrite(&place))),
            delay: None,
            is_disk: true,
            file: Some(file),
            health: DiskHealth::default(),
            map_rules: Rules::default(),
            lock: Some(lock),
        };
        Self::new(inner)
    }

    /// A store in memory, which ends with the process.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the database cannot be created.
    pub fn in_memory() -> Result<Self, StoreError> {
        let database = builder().create_with_backend(InMemoryBackend::new()).wrap()?;
        Self::on(database, None, None, Rules::default())
    }

    /// A store on a simulated disk, which takes `delay` for each write.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the backend fails or has invalid contents.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn with_backend(
        backend: impl redb::StorageBackend + Clone,
        delay: impl Fn() -> Duration + Send + Sync + 'static,
        map_rules: Rules,
    ) -> Result<Self, StoreError> {
        let open = move || builder().create_with_backend(backend.clone()).wrap();
        Self::on(open()?, Some(Box::new(open)), Some(Box::new(delay)), map_rules)
    }

    fn on(
        database: Database,
        reopen: Option<Reopen>,
        delay: Option<Delay>,
        map_rules: Rules,
    ) -> Result<Self, StoreError> {
        Self::new(StoreInner {
            opened: Mutex::new(Opened { number: 0, database: Some(Arc::new(database)) }),
            reopen,
            delay,
            is_disk: false,
            file: None,
            health: DiskHealth::default(),
            map_rules,
            lock: None,
        })
    }

    fn new(inner: StoreInner) -> Result<Self, StoreError> {
        let store = Self { inner: Arc::new(inner), opening: None };
        let file = store.file();
        match store.fact::<u32>(FORMAT) {
            Ok(Some(FORMAT_VERSION)) => return Ok(store),
            Ok(Some(_)) => return Err(StoreError::Unreadable("its format").at(file)),
            Ok(None) => {}
            // The file is new.
            Err(StoreError::Database(error))
                if matches!(*error, redb::Error::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.at(file)),
        }
        let made = commit(&*store.database()?, Durability::Immediate, |write| {
            write.open_table(LOG).wrap()?;
            put(write, FORMAT, &FORMAT_VERSION)
        });
        made.map_err(|error| error.at(file))?;
        Ok(store)
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// The name of the file, for operators.
    pub(crate) fn name(&self) -> String {
        self.file().map_or_else(|| "in memory".to_owned(), |file| file.display().to_string())
    }

    /// The rules by which the map applies commands.
    pub(crate) fn map_rules(&self) -> Rules {
        self.inner.map_rules
    }

    /// The health of the disk.
    pub(crate) fn health(&self) -> &DiskHealth {
        &self.inner.health
    }

    /// A handle for one Raft, valid until the file is opened again.
    pub(crate) fn of_this_opening(&self) -> Self {
        Self { inner: self.inner.clone(), opening: Some(self.inner.opened.lock().number) }
    }

    fn database(&self) -> Result<Arc<Database>, StoreError> {
        let opened = self.inner.opened.lock();
        if self.opening.is_some_and(|number| number != opened.number) {
            return Err(StoreError::Closed);
        }
        opened.database.clone().ok_or(StoreError::Closed)
    }

    /// Opens the file again after a fault. Handles of an earlier Raft become invalid.
    pub(crate) async fn reopen(&self) -> Result<(), StoreError> {
        let inner = self.inner.clone();
        if !inner.is_disk {
            return inner.reopen();
        }
        let opened = tokio::task::spawn_blocking(move || inner.reopen()).await;
        opened.unwrap_or(Err(StoreError::Interrupted)).map_err(|error| error.at(self.file()))
    }

    /// Begins an incarnation: stores the uuid of a new directory, and counts the incarnation.
    pub(crate) async fn begin(&self, node_uuid: u128) -> Result<NodeIdentity, StoreError> {
        let before = self.fact::<NodeIdentity>(IDENTITY).map_err(|error| error.at(self.file()))?;
        let mut identity = before.unwrap_or(NodeIdentity {
            node_uuid,
            incarnation: Incarnation(0),
            membership: None,
        });
        identity.incarnation.0 += 1;
        let written =
            self.write(Durability::Immediate, move |write| put(write, IDENTITY, &identity)).await;
        written.map_err(|error| error.at(self.file()))?;
        Ok(identity)
    }

    /// Stores the address at which other nodes reach this one.
    pub(crate) async fn moves_to(&self, address: &str) -> Result<(), StoreError> {
        if self.last_address()?.as_deref() == Some(address) {
            return Ok(());
        }
        let address = address.to_owned();
        self.write(Durability::Immediate, move |write| put(write, ADDRESS, &address)).await
    }

    /// The address of the last incarnation of this node.
    pub(crate) fn last_address(&self) -> Result<Option<String>, StoreError> {
        self.fact::<String>(ADDRESS)
    }

    /// Stores a membership. Raft's vote, log and snapshot under another id are removed with it.
    pub(crate) async fn store_membership(&self, identity: NodeIdentity) -> Result<(), StoreError> {
        self.write(Durability::Immediate, move |write| {
            for fact in [
                raft_log::VOTE,
                raft_log::COMMITTED,
                raft_log::PURGED,
                state_machine::META,
                state_machine::MAP,
            ] {
                write.open_table(FACTS).wrap()?.remove(fact).wrap()?;
            }
            write.open_table(LOG).wrap()?.retain(|_, _| false).wrap()?;
            put(write, IDENTITY, &identity)
        })
        .await
    }

    /// Reads a small value by its name.
    pub(crate) fn fact<T: DeserializeOwned>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, StoreError> {
        let read = self.database()?.begin_read().wrap()?;
        let table = read.open_table(FACTS).wrap()?;
        let Some(bytes) = table.get(name).wrap()? else { return Ok(None) };
        decode(bytes.value(), name).map(Some)
    }

    /// Writes, and syncs if `durability` demands it, before it returns.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        job: impl FnOnce(&WriteTransaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        let is_synced = matches!(durability, Durability::Immediate);
        let begun = store.inner.health.begin(is_synced);
        let run = move || {
            let written = store.database().and_then(|database| commit(&database, durability, job));
            (store, written)
        };
        let (store, written) = if self.inner.is_disk {
            let ran = tokio::task::spawn_blocking(run).await;
            ran.unwrap_or_else(|_| (self.clone(), Err(StoreError::Interrupted)))
        } else {
            let ran = run();
            if let Some(delay) = self.inner.delay.as_ref().map(|delay| delay())
                && is_synced
                && !delay.is_zero()
            {
                tokio::time::sleep(delay).await;
            }
            ran
        };
        store.inner.health.end(begun, written.as_ref().err());
        written
    }
}

impl StoreInner {
    fn reopen(&self) -> Result<(), StoreError> {
        let old = {
            let mut opened = self.opened.lock();
            opened.number += 1;
            opened.database.take()
        };
        let Some(reopen) = &self.reopen else {
            self.opened.lock().database = old;
            return Ok(());
        };
        if let Some(mut old) = old {
            // Present readers and writers end soon, unless the disk hangs.
            let mut left = LET_GO_MAX;
            while let Err(still) = Arc::try_unwrap(old) {
                old = still;
                if !self.is_disk || left.is_zero() {
                    self.opened.lock().database = Some(old);
                    return Err(StoreError::Closed);
                }
                let pause = Duration::from_millis(20);
                #[expect(clippy::disallowed_methods, reason = "it is on a thread that may block")]
                std::thread::sleep(pause);
                left = left.saturating_sub(pause);
            }
        }
        let database = reopen()?;
        self.opened.lock().database = Some(Arc::new(database));
        self.health.reset();
        Ok(())
    }
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
