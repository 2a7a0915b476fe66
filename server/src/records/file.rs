//! Records in a redb file, for a server without a cluster; or in memory, if there is no file.
//!
//! Here: the file, and a copy of it in memory that answers every read. A change is one write
//! transaction with one sync. After a failed write the next change opens the database again,
//! because redb refuses all writes after an I/O error. Not here: the meaning of a body
//! (`limits::service`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::map::command::{PUTS_BYTES_MAX, PUTS_MAX};
use cluster::map::{MapLimit, Put, RECORD_BYTES_MAX, RECORDS_MAX};
use parking_lot::{Mutex, RwLock};
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, Durability, ReadableDatabase as _};
use redb::{ReadableTable as _, TableDefinition, TableError};
use tollgate_limits::files;

use super::{Changed, Records, RecordsError};

/// The records: name → version, 8 bytes in little-endian order, and body.
const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
/// Facts about the file: [`FORMAT`] and [`LAST_VERSION`].
const FACTS: TableDefinition<&str, u64> = TableDefinition::new("facts");
/// The name of the format's number.
const FORMAT: &str = "format";
/// The present format.
const FORMAT_NOW: u64 = 1;
/// The name of the last version. It grows with each change, and survives the records, so that a
/// name that is put again never gets an old version.
const LAST_VERSION: &str = "last version";
/// The file has a few megabytes; by default redb would cache up to a gigabyte.
const CACHE_BYTES: usize = 8 << 20;

/// The reason why the file cannot be used. `Display` is for operators.
#[derive(Debug, thiserror::Error)]
pub enum RecordsFileError {
    /// The system refuses access.
    #[error("--limits-store {}: {source}", path.display())]
    System {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process has the file open.
    #[error("--limits-store {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The file is damaged, of another kind, or of a later version.
    #[error(
        "--limits-store {} cannot be read ({what}): restore it from a copy, or move it away and \
         start without the limits in it",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage, in short.
        what: String,
    },
}

/// The records and their last version.
#[derive(Debug, Default)]
struct Contents {
    records: BTreeMap<String, MapLimit>,
    last_version: u64,
}

/// Opens the database in a file. An empty file becomes a new database.
type OpenDatabase = fn(File) -> Result<Database, DatabaseError>;

/// The file of a store.
struct StoreFile {
    path: PathBuf,
    /// Stays open: after the change of user, the server may not be allowed to open the path.
    file: File,
    open_database: OpenDatabase,
}

struct Shared {
    /// `None`: the records are in memory only.
    file: Option<StoreFile>,
    contents: RwLock<Contents>,
    /// Locked during a change, while reads go on. `None`: there is no file, or it could not be
    /// opened again.
    database: Mutex<Option<Database>>,
    /// The error of the last write to the file; `None`: the write succeeded.
    fault: Mutex<Option<String>>,
}

/// Records in a file, or in memory. Clones are the same store.
#[derive(Clone)]
pub(crate) struct FileRecords {
    shared: Arc<Shared>,
}

impl FileRecords {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    ///
    /// [`RecordsFileError`].
    pub(crate) fn open(path: &Path) -> Result<Self, RecordsFileError> {
        Self::open_with(path, open_database)
    }

    fn open_with(path: &Path, open_database: OpenDatabase) -> Result<Self, RecordsFileError> {
        let system = |source| RecordsFileError::System { path: path.to_owned(), source };
        files::must_be_replaceable(path).map_err(system)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(path).map_err(system)?;
        let file = StoreFile { path: path.to_owned(), file, open_database };
        let (database, contents) = file.open()?;
        // A new file is durable only once its directory entry is.
        let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(system)?;
        Ok(Self::with(Some(file), Some(database), contents))
    }

    /// Returns a store in memory, which ends with the process and is for what a file says.
    pub(crate) fn in_memory() -> Self {
        Self::with(None, None, Contents::default())
    }

    fn with(file: Option<StoreFile>, database: Option<Database>, contents: Contents) -> Self {
        let (contents, database) = (RwLock::new(contents), Mutex::new(database));
        let shared = Shared { file, contents, database, fault: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }
}

fn open_database(file: File) -> Result<Database, DatabaseError> {
    Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(FileBackend::new(file)?)
}

impl StoreFile {
    /// Opens the database, which must not be open, and reads it.
    fn open(&self) -> Result<(Database, Contents), RecordsFileError> {
        let system = |source| RecordsFileError::System { path: self.path.clone(), source };
        // A damaged file may fail an assertion of redb's. The operator gets the same advice.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let database = (self.open_database)(self.file.try_clone()?)?;
            let contents = read(&database)?;
            Ok::<_, redb::Error>((database, contents))
        }));
        let (database, contents) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(redb::Error::DatabaseAlreadyOpen)) => {
                return Err(RecordsFileError::InUse(self.path.clone()));
            }
            Ok(Err(redb::Error::Io(source))) if source.kind() != io::ErrorKind::InvalidData => {
                return Err(system(source));
            }
            Ok(Err(error)) => return Err(self.damaged(error.to_string())),
            Err(_) => return Err(self.damaged("its structure".to_owned())),
        };
        let contents = contents.map_err(|what| self.damaged(what))?;
        Ok((database, contents))
    }

    fn damaged(&self, what: String) -> RecordsFileError {
        RecordsFileError::Damaged { path: self.path.clone(), what }
    }
}

/// Reads the whole file. The inner error is a fault of its contents.
fn read(database: &Database) -> Result<Result<Contents, String>, redb::Error> {
    let read = database.begin_read()?;
    let mut contents = Contents::default();
    let facts = match read.open_table(FACTS) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Ok(contents)),
        facts => facts?,
    };
    let fact = |name| facts.get(name).map(|fact| fact.map(|fact| fact.value()));
    match fact(FORMAT)? {
        Some(FORMAT_NOW) => {}
        format => return Ok(Err(format!("format {}", format.unwrap_or(0)))),
    }
    contents.last_version = fact(LAST_VERSION)?.unwrap_or(0);
    for row in read.open_table(RECORDS)?.iter()? {
        let (name, value) = row?;
        let Some((version, body)) = value.value().split_first_chunk() else {
            return Ok(Err(format!("record {}", name.value())));
        };
        let record = MapLimit { version: u64::from_le_bytes(*version), body: body.to_vec() };
        contents.records.insert(name.value().to_owned(), record);
    }
    Ok(Ok(contents))
}

impl Shared {
    /// Checks the change and returns its version.
    fn check(&self, puts: &[Put]) -> Result<u64, RecordsError> {
        let contents = self.contents.read();
        let version_of = |name| contents.records.get(name).map_or(0, |record| record.version);
        if puts.iter().any(|put| version_of(put.name.as_str()) != put.version) {
            return Err(RecordsError::OtherVersion);
        }
        let full = |reason: String| Err(RecordsError::Full(reason));
        let body = |put: &Put| put.body.as_ref().map_or(0, Vec::len);
        if puts.len() > PUTS_MAX {
            return full(format!("a change has at most {PUTS_MAX} records"));
        }
        if puts.iter().map(|put| put.name.len() + body(put)).sum::<usize>() > PUTS_BYTES_MAX {
            return full(format!("a change has at most {PUTS_BYTES_MAX} bytes"));
        }
        if puts.iter().any(|put| body(put) > RECORD_BYTES_MAX) {
            return full(format!("a record has at most {RECORD_BYTES_MAX} bytes"));
        }
        let is_new = |put: &&Put| put.version == 0 && put.body.is_some();
        let count = contents.records.len() + puts.iter().filter(is_new).count();
        // The file of an operator has no bound of its own.
        if self.file.is_some() && count > RECORDS_MAX {
            return full(format!("the store has at most {RECORDS_MAX} records"));
        }
        Ok(contents.last_version + 1)
    }

    fn write(database: &Database, puts: &[Put], version: u64) -> Result<(), redb::Error> {
        let mut write = database.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        {
            let mut records = write.open_table(RECORDS)?;
            let mut facts = write.open_table(FACTS)?;
            facts.insert(FORMAT, FORMAT_NOW)?;
            facts.insert(LAST_VERSION, version)?;
            for put in puts {
                match &put.body {
                    Some(body) => {
                        let value = [&version.to_le_bytes()[..], body].concat();
                        records.insert(put.name.as_str(), value.as_slice())?;
                    }
                    None => drop(records.remove(put.name.as_str())?),
                }
            }
        }
        write.commit()?;
        Ok(())
    }

    fn fault(&self) -> Option<String> {
        self.fault.lock().clone()
    }

    /// Opens the database again after a failed write. The write may be in the file nevertheless:
    /// its records are read then.
    fn reopen(
        &self,
        file: &StoreFile,
        database: &mut Option<Database>,
    ) -> Result<(), RecordsFileError> {
        // First: the old one has the lock of the file.
        *database = None;
        let (opened, stored) = file.open()?;
        let mut contents = self.contents.write();
        if stored.last_version < contents.last_version {
            return Err(file.damaged("its last changes are missing".to_owned()));
        }
        if stored.last_version > contents.last_version {
            *contents = stored;
        }
        *database = Some(opened);
        Ok(())
    }

    /// Notes that a change cannot be stored.
    fn failed(&self, error: String) -> RecordsError {
        let reason = format!("the limits store cannot be written: {error}");
        *self.fault.lock() = Some(error);
        RecordsError::Unavailable(reason)
    }

    fn change(&self, puts: Vec<Put>) -> Result<u64, RecordsError> {
        let mut database = self.database.lock();
        let has_failed = self.fault().is_some();
        if let Some(file) = self.file.as_ref().filter(|_| has_failed) {
            self.reopen(file, &mut database).map_err(|error| self.failed(error.to_string()))?;
        }
        let version = self.check(&puts)?;
        if let Some(database) = &*database {
            Self::write(database, &puts, version)
                .map_err(|error| self.failed(error.to_string()))?;
            *self.fault.lock() = None;
        }
        let mut contents = self.contents.write();
        contents.last_version = version;
        for Put { name, body, .. } in puts {
            match body {
                Some(body) => drop(contents.records.insert(name, MapLimit { version, body })),
                None => drop(contents.records.remove(&name)),
            }
        }
        Ok(version)
    }
}

impl Records for FileRecords {
    fn mark(&self) -> u64 {
        self.shared.contents.read().last_version
    }

    fn get(&self, name: &str) -> Option<MapLimit> {
        self.shared.contents.read().records.get(name).cloned()
    }

    fn scan(&self, prefix: &str, visit: &mut dyn FnMut(&str, &MapLimit)) {
        let contents = self.shared.contents.read();
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let records = contents.records.range::<str, _>(from);
        records
            .take_while(|(name, _)| name.starts_with(prefix))
            .for_each(|(name, record)| visit(name, record));
    }

    fn change(&self, puts: Vec<Put>) -> Changed<'_> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let changed = tokio::task::spawn_blocking(move || shared.change(puts)).await;
            let panicked = |_| Err(RecordsError::Unavailable("the change panicked".to_owned()));
            changed.unwrap_or_else(panicked)
        })
    }

    fn read_only(&self) -> Option<String> {
        let reason = "no store: start the server with --limits-store FILE";
        self.shared.file.is_none().then(|| reason.to_owned())
    }

    fn fault(&self) -> Option<String> {
        self.shared.fault()
    }
}

#[cfg(test)]
mod tests;
