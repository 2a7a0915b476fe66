//! The snapshot file (`-e`): writing and reading all items.
//!
//! ```text
//! "TOLLGATE SNAPSHOT 2\n" | saved at: Unix ms u64, monotonic ns u64 | record …
//!         | 0xFF | count u64 | CRC-32 u32
//! record: marks u8 | key length u8 | key | client flags u32 | cas u64 | left ms u64 (MAX: never)
//!         | number u64, or value length u32 and value
//! value of a limit's state: policy length u8 | policy token | the state
//! ```
//!
//! All integers are little-endian; the CRC covers everything before it.
//!
//! Here: the format, and renaming the file. Not here: when to save (`keeper`).

pub(crate) mod keeper;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use engine::{ItemRecord, LimitRecord, Now, SnapshotRecord, put_policy, split_policy};
use protocol::{KEY_BYTES_MAX, Policy, Value};
use tollgate_limits::files;

pub use self::keeper::SnapshotMetrics;
use crate::shards::{SaveCursor, Shards};

const MAGIC: &[u8] = b"TOLLGATE SNAPSHOT 2\n";
const END: u8 = 0xFF;
/// Suffix of a file that is being written.
const PART: &str = ".part";
const STALE: u8 = 1;
const WON: u8 = 2;
const BASE64: u8 = 4;
const NUMBER: u8 = 8;
const LIMIT: u8 = 16;
const NEVER: u64 = u64::MAX;

/// The reason why a snapshot was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The system refused, or the file ends too early.
    #[error("{path}: {source}")]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No snapshot can be written to the path.
    #[error("-e {path}: no snapshot can be written there: {source}")]
    Unusable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system, or the kind of file at the path.
        source: io::Error,
    },
    /// The file is no snapshot of this version, or its content or checksum is wrong.
    #[error("{path}: {why}")]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The defect.
        why: &'static str,
    },
}

/// A writer or reader that computes the checksum of all bytes.
struct Checksummed<T> {
    inner: T,
    sum: crc32fast::Hasher,
}

impl<T> Checksummed<T> {
    fn new(inner: T) -> Self {
        Self { inner, sum: crc32fast::Hasher::new() }
    }
}

impl<T: Write> Checksummed<T> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.inner.write_all(bytes)
    }
}

impl<T: Read> Checksummed<T> {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.sum.update(&bytes);
        Ok(bytes)
    }

    fn take_into(&mut self, bytes: &mut Vec<u8>, count: usize) -> io::Result<()> {
        // Memory grows with the bytes read, not with the count in a damaged file.
        bytes.clear();
        if self.inner.by_ref().take(count as u64).read_to_end(bytes)? < count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.sum.update(bytes);
        Ok(())
    }
}

/// Appends `ending` to the file name of `path`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The name of a snapshot that was read. It is renamed so that a later start does not read it
/// again.
#[must_use]
pub fn loaded(path: &Path) -> PathBuf {
    beside(path, ".loaded")
}

/// Checks that a snapshot can be written to `path`: a file at `path` is a regular file, and files
/// can be created beside it.
///
/// # Errors
///
/// [`SnapshotError::Unusable`].
pub fn check(path: &Path) -> Result<(), SnapshotError> {
    let refuse = |source| SnapshotError::Unusable { path: path.to_owned(), source };
    files::must_be_replaceable(path).map_err(refuse)?;
    files::must_be_replaceable(&beside(path, PART)).map_err(refuse)?;
    // A different name than `PART`, which a running server may be writing.
    let probe = beside(path, ".probe");
    File::options().write(true).create(true).truncate(true).open(&probe).map_err(refuse)?;
    fs::remove_file(&probe).map_err(refuse)
}

/// Writes all items to a temporary file beside `path`, syncs it and renames it to `path`. Returns
/// the number of items. Each item is saved as of some moment during the call.
///
/// `pause` is called between two locks of a shard, a few hundred items apart. When it returns
/// false, the call is cancelled.
///
/// # Errors
///
/// The system's error. The file at `path` is then unchanged.
pub fn save(
    shards: &Shards,
    now: Now,
    path: &Path,
    pause: impl FnMut() -> bool,
) -> Result<u64, SnapshotError> {
    let part = beside(path, PART);
    let written = write_file(shards, now, &part, pause).and_then(|count| {
        fs::rename(&part, path)?;
        sync_folder(path)?;
        Ok(count)
    });
    written.map_err(|source| {
        // Best effort: the first error is the one to report.
        let _ = fs::remove_file(&part);
        SnapshotError::Io { path: path.to_owned(), source }
    })
}

/// Syncs the folder, without which a renamed file may be missing after a crash of the machine.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn write_file(
    shards: &Shards,
    now: Now,
    part: &Path,
    mut pause: impl FnMut() -> bool,
) -> io::Result<u64> {
    let mut file = Checksummed::new(BufWriter::with_capacity(1 << 20, File::create(part)?));
    file.put(MAGIC)?;
    file.put(&now.unix_ms.to_le_bytes())?;
    file.put(&now.mono.0.to_le_bytes())?;
    let mut count = 0_u64;
    let (mut slice, mut value) = (Vec::new(), Vec::new());
    let mut next = Some(SaveCursor::default());
    while let Some(place) = next {
        slice.clear();
        // The disk is not written while the shard is locked.
        let mut result = Ok(());
        next = shards.save_slice(now, place, |record| {
            let written = match record {
                SnapshotRecord::Item(record) => write_record(&mut slice, 0, &record),
                SnapshotRecord::Limit(record) => write_limit(&mut slice, &record, &mut value),
            };
            count += 1;
            if written.is_err() {
                result = written;
            }
        });
        result?;
        file.put(&slice)?;
        if !pause() {
            return Err(io::ErrorKind::Interrupted.into());
        }
    }
    file.put(&[END])?;
    file.put(&count.to_le_bytes())?;
    let sum = file.sum.clone().finalize();
    file.inner.write_all(&sum.to_le_bytes())?;
    file.inner.flush()?;
    file.inner.get_ref().sync_all()?;
    Ok(count)
}

fn write_limit(
    file: &mut impl Write,
    record: &LimitRecord<'_>,
    value: &mut Vec<u8>,
) -> io::Result<()> {
    value.clear();
    put_policy(&record.policy, value);
    value.extend_from_slice(record.body);
    let record = ItemRecord {
        key: record.key,
        value: Value::Bytes(value),
        client_flags: record.client_flags,
        cas: record.cas,
        left_ms: Some(record.left_ms),
        stale: false,
        won: false,
        base64: false,
    };
    write_record(file, LIMIT, &record)
}

fn write_record(file: &mut impl Write, kind: u8, record: &ItemRecord<'_>) -> io::Result<()> {
    let mark = |on: bool, bit: u8| if on { bit } else { 0 };
    let is_number = matches!(record.value, Value::Number(_));
    let marks = kind
        | mark(record.stale, STALE)
        | mark(record.won, WON)
        | mark(record.base64, BASE64)
        | mark(is_number, NUMBER);
    file.write_all(&[marks, record.key.len() as u8])?;
    file.write_all(record.key)?;
    file.write_all(&record.client_flags.to_le_bytes())?;
    file.write_all(&record.cas.to_le_bytes())?;
    file.write_all(&record.left_ms.unwrap_or(NEVER).to_le_bytes())?;
    match record.value {
        Value::Number(number) => file.write_all(&number.to_le_bytes()),
        Value::Bytes(bytes) => {
            file.write_all(&(bytes.len() as u32).to_le_bytes())?;
            file.write_all(bytes)
        }
    }
}

/// The result of reading a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Restored {
    /// Items that were stored.
    pub items: u64,
    /// Items that expired since the snapshot.
    pub expired: u64,
    /// Items that were refused, for want of memory or because their policy is unknown.
    pub refused: u64,
    /// Time since the start of the snapshot, in milliseconds of Unix time.
    pub age_ms: u64,
}

/// Reads `path` into `shards`. `None`: there is no such file.
///
/// The checksum is verified first, so that a damaged file changes nothing.
///
/// # Errors
///
/// The file cannot be read or is damaged.
pub fn load(shards: &Shards, now: Now, path: &Path) -> Result<Option<Restored>, SnapshotError> {
    let error_of = |source| SnapshotError::Io { path: path.to_owned(), source };
    if !path.try_exists().map_err(error_of)? {
        return Ok(None);
    }
    read_file(shards, now, path).map(Some)
}

/// Renames the unreadable file at `path`, so that the next snapshot does not replace it. Returns
/// its new name.
///
/// # Errors
///
/// The system's error. The file then keeps its name.
pub fn rename_damaged(path: &Path) -> io::Result<PathBuf> {
    let aside = beside(path, ".damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

/// Renames the file at `path`, which was read, to [`loaded`]: reading it again would undo later
/// changes.
///
/// # Errors
///
/// [`SnapshotError::Unusable`].
pub fn rename_loaded(path: &Path) -> Result<(), SnapshotError> {
    fs::rename(path, loaded(path))
        .and_then(|()| sync_folder(path))
        .map_err(|source| SnapshotError::Unusable { path: path.to_owned(), source })
}

fn read_file(shards: &Shards, now: Now, path: &Path) -> Result<Restored, SnapshotError> {
    let error_of = |source| SnapshotError::Io { path: path.to_owned(), source };
    let damaged = |why| SnapshotError::Damaged { path: path.to_owned(), why };
    let mut restored = Restored::default();
    for dry in [true, false] {
        let reader = BufReader::with_capacity(1 << 20, File::open(path).map_err(error_of)?);
        let mut file = Checksummed::new(reader);
        if file.take::<20>().map_err(error_of)? != *MAGIC {
            return Err(damaged("not a snapshot of this version"));
        }
        let saved_ms = u64::from_le_bytes(file.take().map_err(error_of)?);
        let saved_mono = u64::from_le_bytes(file.take().map_err(error_of)?);
        let away_ms = now.unix_ms.saturating_sub(saved_ms);
        restored.age_ms = away_ms;
        // Instants in a limit state are on the clock of the process that saved it.
        let shift =
            i128::from(now.mono.0) - i128::from(saved_mono) - i128::from(away_ms) * 1_000_000;
        let elsewhen = TimeShift { now, away_ms, shift };
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let mut count = 0_u64;
        while let Some(saved) =
            read_record(&mut file, &mut key, &mut value).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => damaged("a record is damaged"),
                _ => error_of(error),
            })?
        {
            count += 1;
            if !dry {
                restore(shards, elsewhen, saved, &mut restored);
            }
        }
        let stored_count = u64::from_le_bytes(file.take().map_err(error_of)?);
        let sum = file.sum.clone().finalize();
        let mut stored_sum = [0; 4];
        file.inner.read_exact(&mut stored_sum).map_err(error_of)?;
        if stored_count != count || u32::from_le_bytes(stored_sum) != sum {
            return Err(damaged("its sum is wrong"));
        }
    }
    Ok(restored)
}

/// Conversion of times from the process that saved the snapshot to this one.
#[derive(Clone, Copy)]
struct TimeShift {
    now: Now,
    /// Time between the start of the snapshot and now, in milliseconds.
    away_ms: u64,
    /// Difference that an instant of the saved clock needs on this clock, in nanoseconds.
    shift: i128,
}

/// A record of the file, and whether it is a limit state.
#[derive(Clone, Copy)]
struct SnapshotEntry<'a> {
    record: ItemRecord<'a>,
    is_limit: bool,
}

fn restore(
    shards: &Shards,
    elsewhen: TimeShift,
    saved: SnapshotEntry<'_>,
    restored: &mut Restored,
) {
    let TimeShift { now, away_ms, shift } = elsewhen;
    let SnapshotEntry { mut record, is_limit } = saved;
    if let Some(left_ms) = record.left_ms {
        if left_ms <= away_ms {
            restored.expired += 1;
            return;
        }
        record.left_ms = Some(left_ms - away_ms);
    }
    let stored = if is_limit {
        limit_of(&record).is_some_and(|record| shards.restore_limit(now, &record, shift))
    } else {
        shards.restore(now, &record)
    };
    if stored {
        restored.items += 1;
    } else {
        restored.refused += 1;
    }
}

/// The limit state in a record; `None` if this version does not support its policy.
fn limit_of<'a>(record: &ItemRecord<'a>) -> Option<LimitRecord<'a>> {
    let Value::Bytes(value) = record.value else { return None };
    let (policy, body) = split_policy(value)?;
    Some(LimitRecord {
        key: record.key,
        client_flags: record.client_flags,
        cas: record.cas,
        left_ms: record.left_ms.unwrap_or(0),
        policy: Policy::parse_list(policy).ok()?,
        body,
    })
}

fn read_record<'a>(
    file: &mut Checksummed<impl Read>,
    key: &'a mut Vec<u8>,
    value: &'a mut Vec<u8>,
) -> io::Result<Option<SnapshotEntry<'a>>> {
    let [marks] = file.take()?;
    if marks == END {
        return Ok(None);
    }
    let [key_bytes] = file.take()?;
    if key_bytes == 0 || usize::from(key_bytes) > KEY_BYTES_MAX || marks > 31 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    file.take_into(key, usize::from(key_bytes))?;
    let client_flags = u32::from_le_bytes(file.take()?);
    let cas = u64::from_le_bytes(file.take()?);
    let left_ms = u64::from_le_bytes(file.take()?);
    let value = if marks & NUMBER == 0 {
        let bytes = u32::from_le_bytes(file.take()?) as usize;
        if bytes > 1 << 30 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        file.take_into(value, bytes)?;
        Value::Bytes(value)
    } else {
        Value::Number(u64::from_le_bytes(file.take()?))
    };
    let record = ItemRecord {
        key,
        value,
        client_flags,
        cas,
        left_ms: (left_ms != NEVER).then_some(left_ms),
        stale: marks & STALE != 0,
        won: marks & WON != 0,
        base64: marks & BASE64 != 0,
    };
    Ok(Some(SnapshotEntry { record, is_limit: marks & LIMIT != 0 }))
}
