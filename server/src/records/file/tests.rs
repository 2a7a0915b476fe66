//! Tests of the store in a file: what it keeps, what it refuses, and a disk that fails.

use std::sync::atomic::{AtomicU32, Ordering};

use redb::{BackendError, StorageBackend};

use super::*;

fn put(name: &str, version: u64, body: Option<&str>) -> Put {
    Put { name: name.to_owned(), version, body: body.map(Into::into) }
}

fn all(records: &FileRecords) -> Vec<(String, u64, String)> {
    let mut all = Vec::new();
    records.scan("", &mut |name, record| {
        let body = String::from_utf8_lossy(&record.body).into_owned();
        all.push((name.to_owned(), record.version, body));
    });
    all
}

fn row(name: &str, version: u64, body: &str) -> (String, u64, String) {
    (name.to_owned(), version, body.to_owned())
}

#[tokio::test]
async fn a_change_is_whole_and_survives() {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let path = folder.path().join("limits.redb");
    let records = FileRecords::open(&path).expect("a new file");
    assert_eq!(records.change(vec![put("a", 0, Some("1")), put("b", 0, Some("2"))]).await, Ok(1));
    // One wrong version refuses all.
    let half = vec![put("a", 1, Some("3")), put("b", 7, Some("4"))];
    assert_eq!(records.change(half).await, Err(RecordsError::OtherVersion));
    let whole = vec![put("a", 1, None), put("b", 1, Some("4")), put("@c/1", 0, Some("5"))];
    assert_eq!(records.change(whole).await, Ok(2));
    let expected = [row("@c/1", 2, "5"), row("b", 2, "4")];
    assert_eq!(all(&records), expected);
    assert!(matches!(FileRecords::open(&path), Err(RecordsFileError::InUse(_))));
    drop(records);
    let records = FileRecords::open(&path).expect("its own file");
    assert_eq!(all(&records), expected);
    // A name that is put again gets a version that it never had.
    assert_eq!(records.change(vec![put("a", 0, Some("6"))]).await, Ok(3));
    assert_eq!(records.get("a").map(|record| record.version), Some(3));
    let mut names = Vec::new();
    records.scan("@c/", &mut |name, _| names.push(name.to_owned()));
    assert_eq!(names, ["@c/1"]);
}

#[tokio::test]
async fn each_bound_refuses_one_more() {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let records = FileRecords::open(&folder.path().join("limits.redb")).expect("a new file");
    let is_full = |result| matches!(result, Err(RecordsError::Full(_)));
    let long = "x".repeat(RECORD_BYTES_MAX);
    assert_eq!(records.change(vec![put("a", 0, Some(&long))]).await, Ok(1));
    let longer = format!("{long}x");
    assert!(is_full(records.change(vec![put("b", 0, Some(&longer))]).await));
    let many = |count: usize| (0..count).map(|n| put(&format!("n{n}"), 0, Some(""))).collect();
    assert!(is_full(records.change(many(PUTS_MAX + 1)).await));
    assert_eq!(records.change(many(PUTS_MAX)).await, Ok(2));
    let heavy = (0..13).map(|n| put(&format!("h{n}"), 0, Some(&long))).collect();
    assert!(is_full(records.change(heavy).await));
    {
        // In memory only: a sync for each of them would take long.
        let mut contents = records.shared.contents.write();
        for number in contents.records.len()..RECORDS_MAX {
            let record = MapLimit { version: 2, body: Vec::new() };
            contents.records.insert(format!("m{number}"), record);
        }
    }
    assert!(is_full(records.change(vec![put("z", 0, Some(""))]).await));
    assert!(records.change(vec![put("a", 1, None)]).await.is_ok());
    assert!(records.change(vec![put("z", 0, Some(""))]).await.is_ok());
}

#[test]
fn a_foreign_file_is_refused() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let path = folder.path().join("limits.redb");
    std::fs::write(&path, "no database at all").expect("the directory is ours");
    assert!(matches!(FileRecords::open(&path), Err(RecordsFileError::Damaged { .. })));
    let missing = folder.path().join("missing/limits.redb");
    assert!(matches!(FileRecords::open(&missing), Err(RecordsFileError::System { .. })));
    assert!(matches!(FileRecords::open(folder.path()), Err(RecordsFileError::System { .. })));
}

/// The writes and syncs until the disk of [`FailingDisk`] fails. The sync that fails is done.
static LEFT: AtomicU32 = AtomicU32::new(u32::MAX);

#[derive(Debug)]
struct FailingDisk(FileBackend);

impl FailingDisk {
    fn open(file: File) -> Result<Database, DatabaseError> {
        Builder::new().create_with_backend(Self(FileBackend::new(file)?))
    }

    fn count() -> io::Result<()> {
        let left = LEFT.load(Ordering::Relaxed);
        LEFT.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for FailingDisk {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::count()?;
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()?;
        Self::count()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        Self::count()?;
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }
}

/// Lets the disk fail at an operation of a change, and then work again. Returns whether the change
/// was stored; `None`: it has fewer operations.
async fn fail_at(operation: u32) -> Option<bool> {
    let folder = tempfile::tempdir().expect("a directory for one file");
    let path = folder.path().join("limits.redb");
    LEFT.store(u32::MAX, Ordering::Relaxed);
    let records = FileRecords::open_with(&path, FailingDisk::open).expect("a new file");
    assert_eq!(records.change(vec![put("a", 0, Some("1"))]).await, Ok(1));
    LEFT.store(operation, Ordering::Relaxed);
    let changed = records.change(vec![put("a", 1, Some("2"))]).await;
    if changed.is_ok() {
        return None;
    }
    for _ in 0..2 {
        let refused = records.change(vec![put("b", 0, Some("3"))]).await;
        let fault = records.fault().expect("the disk is full");
        let reason = format!("the limits store cannot be written: {fault}");
        assert_eq!(refused, Err(RecordsError::Unavailable(reason)));
        assert!(!fault.contains("Previous"), "{fault}");
    }
    LEFT.store(u32::MAX, Ordering::Relaxed);
    let again = records.change(vec![put("a", 1, Some("4"))]).await;
    let is_stored = again == Err(RecordsError::OtherVersion);
    if is_stored {
        assert_eq!(all(&records), [row("a", 2, "2")]);
        assert_eq!(records.change(vec![put("a", 2, Some("4"))]).await, Ok(3));
    } else {
        assert_eq!(again, Ok(2));
    }
    assert_eq!(records.fault(), None);
    let expected = all(&records);
    assert!(matches!(FileRecords::open(&path), Err(RecordsFileError::InUse(_))));
    drop(records);
    assert_eq!(all(&FileRecords::open(&path).expect("its own file")), expected);
    Some(is_stored)
}

#[tokio::test]
async fn changes_go_on_once_the_disk_works_again() {
    let mut outcomes = Vec::new();
    while let Some(is_stored) = fail_at(outcomes.len() as u32).await {
        outcomes.push(is_stored);
    }
    assert!(outcomes.contains(&false) && outcomes.contains(&true), "{outcomes:?}");
}
