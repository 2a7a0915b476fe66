//! The files of the data directory: `control.redb`, its lock, and the probe for free space.
//!
//! Not here: the contents of the control log (`super`).

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use redb::{Builder, Database, Durability, ReadableDatabase as _, ReadableTable as _};
use rustix::fs::statvfs;

use super::error::{StoreError, Wrap as _};
use super::{FACTS, LOG, commit};

/// The file has a few megabytes, of which little is read again; by default redb would cache up to a
/// gigabyte.
const CACHE_BYTES: usize = 256 << 10;
/// The contents of the file that the probe for free space writes.
static ROOM: &[u8] = &[0; 64 << 10];
/// If the system reports at least this number of free bytes, only a thorough probe writes the file.
const ROOM_PLENTY: u64 = 64 << 20;

/// Opens a file that failed, by copying its contents to a new file. After a failed sync the system
/// may show contents that are not on the disk, and a second sync would not report that.
pub(super) fn rewrite(file: &Path) -> Result<Database, StoreError> {
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

/// Checks that there is free space in a directory. Some writes of the control log need new space,
/// and others succeed on a full disk. `is_thorough`: writes even if the system reports plenty of
/// free space, because a quota may leave none for this directory.
pub(super) fn room(directory: &Path, is_thorough: bool) -> io::Result<()> {
    let has_plenty = || {
        statvfs(directory)
            .is_ok_and(|system| system.f_bavail.saturating_mul(system.f_frsize) >= ROOM_PLENTY)
    };
    if !is_thorough && has_plenty() {
        return Ok(());
    }
    let path = directory.join("probe");
    let written = fs::write(&path, ROOM);
    let removed = fs::remove_file(&path);
    written.and(removed)
}

/// Writes the process id to the lock file again, and waits until the disk has it.
pub(super) fn touch(lock: &File) -> io::Result<()> {
    lock.write_all_at(pid_line().as_bytes(), 0)?;
    lock.sync_data()
}

fn pid_line() -> String {
    format!("{}\n", std::process::id())
}

/// Locks the directory for this process. The file `lock` contains its id.
pub(super) fn lock(directory: &Path) -> Result<File, StoreError> {
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
    let _ = file.set_len(0).and_then(|()| file.write_all_at(pid_line().as_bytes(), 0));
    Ok(file)
}

pub(super) fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}
