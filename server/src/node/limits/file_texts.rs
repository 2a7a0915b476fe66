//! The limits file of a node as texts.
//!
//! Not here: applying its changes to the cluster (`super`).

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_limits::LimitsError;
use tollgate_limits::map_text::LimitText;

/// The limits file as this node last read it.
#[derive(Debug, Default)]
pub(crate) struct FileTexts {
    texts: Mutex<Arc<Vec<LimitText>>>,
    changed: Notify,
    failed: OnceLock<String>,
    is_given_up: AtomicBool,
}

impl FileTexts {
    pub(crate) fn change(&self, texts: Vec<LimitText>) {
        *self.texts.lock() = Arc::new(texts);
        self.changed.notify_one();
    }

    /// Why no limit can be put in force, although some are required: the node must not serve
    /// without them.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    pub(super) fn fail(&self, error: &impl Display) {
        let _ = self.failed.set(error.to_string());
    }

    /// Records that the map will not get the limits of the file soon: the cluster refuses them, or
    /// some nodes are too old for them.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Whether the file has limits that the map may get soon.
    pub(super) fn is_pending(&self) -> bool {
        !self.is_given_up.load(Ordering::Acquire) && !self.texts.lock().is_empty()
    }

    /// Reads the file again.
    ///
    /// # Errors
    ///
    /// The file is faulty, or has lost all of its limits.
    pub(in super::super) fn reload(&self, path: &Path) -> Result<(), LimitsError> {
        let file = LimitText::load(path)?;
        if file.limits.is_empty() && !file.allow_empty && !self.texts.lock().is_empty() {
            return Err(LimitsError::Emptied { path: path.to_owned() });
        }
        self.change(file.limits);
        Ok(())
    }

    pub(in super::super) fn get(&self) -> Arc<Vec<LimitText>> {
        Arc::clone(&self.texts.lock())
    }

    /// Completes when the file has been read again.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}
