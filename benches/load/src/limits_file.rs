//! A limits file generated for a run; its last limit matches the keys of `Space::Bound`.
//!
//! Here: its text, and the file while a server may read it. Not here: the requests for the keys
//! (`take`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::take::COUNTING_BUCKET;

/// The most limits of a file.
pub const LIMITS_MAX: u32 = 100_000;

/// A generated file, removed when this value is dropped.
#[derive(Debug)]
pub struct LimitsFile(PathBuf);

impl LimitsFile {
    /// Writes a file of `count` limits, at least one.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(count: u32) -> io::Result<Self> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "load-limits-{}-{}.toml",
            std::process::id(),
            WRITTEN.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text(count))?;
        Ok(Self(path))
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LimitsFile {
    fn drop(&mut self) {
        // A file that remains in the temporary folder does no harm.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn text(count: u32) -> String {
    let others = (1..count).map(|number| {
        format!(
            "[[limit]]\nname = 'service-{number}'\nmatch = 'service-{number}:user:{{id}}'\n\
             policy = 'sliding:{number}/60s'\n"
        )
    });
    let bound =
        format!("[[limit]]\nname = 'bound'\nmatch = 'bnd:{{id}}'\npolicy = '{COUNTING_BUCKET}'\n");
    others.chain([bound]).collect()
}

#[cfg(test)]
mod tests {
    use super::{LimitsFile, text};

    #[test]
    fn the_last_limit_is_the_bound_one() {
        for count in [1, 2, 50] {
            let text = text(count);
            assert_eq!(text.matches("[[limit]]").count(), count as usize);
            let (_, last) = text.rsplit_once("[[limit]]").expect("there is one");
            assert!(last.contains("bnd:{id}") && !last.contains("service"), "{last}");
        }
    }

    #[test]
    fn a_file_goes_with_its_run() {
        let file = LimitsFile::write(3).expect("the temporary folder can be written");
        let path = file.path().to_owned();
        assert!(path.exists());
        drop(file);
        assert!(!path.exists());
    }
}
