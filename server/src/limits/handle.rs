//! The limits in force, replaced as a whole while requests use them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Limits, LimitsError};

/// The current [`Limits`]. A request loads them once and uses the same to its end.
#[derive(Debug)]
pub struct LimitsHandle {
    current: ArcSwap<Limits>,
    /// Rises after `current` was replaced, never before.
    generation: AtomicU64,
    /// Held while replacing, so that of two reloads the one that read last wins.
    replacing: Mutex<()>,
}

impl LimitsHandle {
    /// Begins with these, as generation 0.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            current: ArcSwap::from_pointee(limits),
            generation: AtomicU64::new(0),
            replacing: Mutex::new(()),
        }
    }

    /// The limits now. Cheap, and to be held shortly: use [`LimitsHandle::load_full`] to keep them.
    #[must_use]
    pub fn load(&self) -> Guard<Arc<Limits>> {
        self.current.load()
    }

    /// The limits now, to keep.
    #[must_use]
    pub fn load_full(&self) -> Arc<Limits> {
        self.current.load_full()
    }

    /// How often the limits were replaced. Who keeps limits reads this **before** loading them, and
    /// loads again when it has changed; then nothing stale is kept for longer than one reading.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads the file anew; answers the new generation.
    ///
    /// # Errors
    ///
    /// The file is refused or unreadable: the limits stay as they are.
    pub fn reload(&self, path: &Path) -> Result<u64, LimitsError> {
        let _only = self.replacing.lock();
        let limits = Limits::load(path)?;
        self.current.store(Arc::new(limits));
        Ok(self.generation.fetch_add(1, Ordering::Release) + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_bad_file_keeps_the_last_good_one() {
        let dir = tempfile::tempdir().expect("a directory for one file");
        let path = dir.path().join("limits.toml");
        let limit = "[[limit]]\nname = \"a\"\nmatch = \"a:{x}\"\npolicy = \"fixed:5/s\"\n";
        let handle = LimitsHandle::new(Limits::default());
        assert!(handle.reload(&path).is_err(), "there is no file yet");
        assert_eq!((handle.generation(), handle.load().len()), (0, 0));

        fs::write(&path, limit).expect("the directory is ours");
        assert_eq!(handle.reload(&path).expect("a good file"), 1);
        let kept = handle.load_full();
        fs::write(&path, format!("{limit}wrong = 1\n")).expect("the directory is ours");
        let error = handle.reload(&path).expect_err("a bad file").to_string();
        assert_eq!(error, format!("{}:5: unknown field `wrong`", path.display()));
        assert_eq!(handle.generation(), 1);
        assert!(Arc::ptr_eq(&kept, &handle.load()));

        fs::write(&path, "").expect("the directory is ours");
        assert_eq!(handle.reload(&path).expect("no limits are limits too"), 2);
        assert_eq!((handle.load().len(), kept.len()), (0, 1));
    }
}
