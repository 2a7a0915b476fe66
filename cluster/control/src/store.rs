//! The data directory: the node's identity, Raft's vote and log, and the last snapshot of the map.
//!
//! Here: the file, its tables, the identity, opening the file again after a fault. Not here: Raft's
//! writes (`raft_log`), snapshots (`state_machine`), the speed of the disk (`health`).
//!
//! The data is in one redb file, `control.redb`. Every write is synced before it is reported done,
//! except `committed`, which becomes durable with the next write: if it is lost, the leader sends
//! it again.

pub(crate) mod health;
pub(crate) mod raft_log;
pub(crate) mod state_machine;

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use parking_lot::Mutex;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition,
    WriteTransaction,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use health::DiskHealth;

const FACTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("facts");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

const FORMAT: &str = "format";
const IDENTITY: &str = "identity";
const ADDRESS: &str = "address";
const PROBE: &str = "probe";
/// The version of the tables and their contents. Other versions are not read.
const FORMAT_VERSION: u32 = 1;

/// The file has a few megabytes; by default redb would cache up to a gigabyte.
const CACHE_BYTES: usize = 8 << 20;

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

/// The reason why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refuses access to the directory, or to a file in it.
    #[error("data directory: {}: {source}", path.display())]
    Directory {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has locked the directory.
    #[error(
        "data directory {} is in use by {by}: each server needs a directory of its own",
        path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process, as far as known.
        by: String,
    },
    /// The file exists but is damaged.
    #[error(
        "control log {} is damaged ({what}): restore the file from a copy, or move {} away and start \
         with an empty directory; the node then joins its cluster as a new one. It holds no counters",
        path.display(),
        path.parent().unwrap_or(path).display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, in short.
        what: String,
    },
    /// The directory was copied: its node runs somewhere else.
    #[error(
        "the node of this data directory runs at {address}: the directory was copied while in use. \
         Start with an empty one"
    )]
    Copied {
        /// The address at which the node runs.
        address: String,
    },
    /// An error of the database.
    #[error("the control log: {0}")]
    Database(#[source] Box<redb::Error>),
    /// The contents have another format, or are invalid.
    #[error("the control log: {0} is not readable")]
    Unreadable(&'static str),
    /// The runtime ended during a write.
    #[error("the control log: interrupted")]
    Interrupted,
    /// The file was closed after a fault, and was not opened again yet.
    #[error("the control log: closed after a fault")]
    Closed,
}

impl StoreError {
    /// The same error, with the file concerned.
    fn at(self, path: Option<&Path>) -> Self {
        let Some(path) = path else { return self };
        let path = path.to_owned();
        match self {
            Self::Unreadable(what) => {
                Self::Damaged { path, what: format!("{what} is not readable") }
            }
            Self::Database(error) => match *error {
                redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                    Self::Directory { path, source }
                }
                redb::Error::DatabaseAlreadyOpen => {
                    let path = path.parent().map_or(path.clone(), Path::to_owned);
                    Self::InUse { path, by: "another process".to_owned() }
                }
                error => Self::Damaged { path, what: error.to_string() },
            },
            other => other,
        }
    }
}

impl<E: Into<redb::Error>> From<Wrapped<E>> for StoreError {
    fn from(Wrapped(error): Wrapped<E>) -> Self {
        Self::Database(Box::new(error.into()))
    }
}

/// Converts redb's errors; it has one type for each of its calls.
pub(crate) struct Wrapped<E>(E);

pub(crate) trait Wrap<T> {
    fn wrap(self) -> Result<T, StoreError>;
}

impl<T, E: Into<redb::Error>> Wrap<T> for Result<T, E> {
    fn wrap(self) -> Result<T, StoreError> {
        self.map_err(|error| Wrapped(error).into())
    }
}

/// The free space that the probe checks for.
const ROOM_BYTES: usize = 64 << 10;
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
    /// The lock that keeps other processes off the directory.
    _lock: Option<File>,
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
            _lock: Some(lock),
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
        Self::on(database, None, None)
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
    ) -> Result<Self, StoreError> {
        let open = move || builder().create_with_backend(backend.clone()).wrap();
        Self::on(open()?, Some(Box::new(open)), Some(Box::new(delay)))
    }

    fn on(
        database: Database,
        reopen: Option<Reopen>,
        delay: Option<Delay>,
    ) -> Result<Self, StoreError> {
        Self::new(StoreInner {
            opened: Mutex::new(Opened { number: 0, database: Some(Arc::new(database)) }),
            reopen,
            delay,
            is_disk: false,
            file: None,
            health: DiskHealth::default(),
            _lock: None,
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

    /// Writes a value without meaning, to measure the disk.
    pub(crate) async fn probe(&self) -> Result<(), StoreError> {
        if let Some(directory) = self.file().and_then(Path::parent).map(Path::to_owned) {
            let room = tokio::task::spawn_blocking(move || room(&directory)).await;
            if let Ok(room) = room {
                self.inner.health.note_room(room);
            }
        }
        self.write(Durability::Immediate, |write| put(write, PROBE, &())).await
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

/// Opens a file that failed, by copying its contents to a new file. After a failed sync the system
/// may show contents that are not on the disk, and a second sync would not report that.
fn rewrite(file: &Path) -> Result<Database, StoreError> {
    let failed = |source| StoreError::Directory { path: file.to_owned(), source };
    // The file is never created here: a node without its vote could vote twice.
    let old = builder().open(file).wrap()?;
    let beside = file.with_extension("redb.new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let new = builder().create(&beside).wrap()?;
    let read = old.begin_read().wrap()?;
    commit(&new, Durability::Immediate, |write| {
        let mut log = write.open_table(LOG).wrap()?;
        for row in read.open_table(LOG).wrap()?.iter().wrap()? {
            let (index, entry) = row.wrap()?;
            log.insert(index.value(), entry.value()).wrap()?;
        }
        let mut facts = write.open_table(FACTS).wrap()?;
        for row in read.open_table(FACTS).wrap()?.iter().wrap()? {
            let (name, fact) = row.wrap()?;
            facts.insert(name.value(), fact.value()).wrap()?;
        }
        Ok(())
    })?;
    drop(read);
    fs::rename(&beside, file).map_err(failed)?;
    let directory = file.parent().unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    Ok(new)
}

/// Checks that there is free space in a directory. The control log needs it now and then, and not
/// every write would notice the lack.
fn room(directory: &Path) -> io::Result<()> {
    let path = directory.join("probe");
    let written = fs::write(&path, vec![0; ROOM_BYTES]);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Locks the directory for this process. The file `lock` contains its id.
fn lock(directory: &Path) -> Result<File, StoreError> {
    let path = directory.join("lock");
    let failed = |source| StoreError::Directory { path: path.clone(), source };
    let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let by = match pid.trim().parse::<u32>() {
                Ok(pid) => format!("process {pid}"),
                Err(_) => "another process".to_owned(),
            };
            return Err(StoreError::InUse { path: directory.to_owned(), by });
        }
        Err(fs::TryLockError::Error(error)) => return Err(failed(error)),
    }
    // A full disk does not prevent the start: the id is only for operators.
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let _ = writeln!(file, "{}", std::process::id());
    Ok(file)
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
