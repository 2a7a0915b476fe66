//! The limits file of a server without a cluster: at the start, and when it changes.
//!
//! Not here: the decision about each limit (`plan`), the limits file of a node (`node::limits`).

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use tollgate_http::ServiceError;
use tollgate_limits::map_text::{self, FileText, LimitText, Origin};
use tollgate_limits::{Limits, LimitsError};

use super::plan::is_of_file;
use super::{LimitsRequest, LimitsStore, book, off_thread};
use crate::records::Records;

/// Most names in a log line.
const NAMES_MAX: usize = 20;

fn is_file(limit: &book::StoredLimit) -> bool {
    limit.entry.origin.source() == Origin::FILE
}

impl LimitsStore {
    /// Starts a server without a cluster: the limits file decides about its own limits, and the
    /// store's others stay. Without a file the store's limits of a file stay too. Puts all in
    /// force.
    ///
    /// # Errors
    ///
    /// The limits file cannot be read, or has a mistake.
    pub(crate) async fn start(
        self: &Arc<Self>,
        records: Arc<dyn Records>,
        path: Option<&Path>,
        now_ms: u64,
    ) -> Result<(), LimitsError> {
        let is_kept = records.read_only().is_none();
        self.state.write().book.is_without_file = path.is_none();
        self.set_records(records);
        let load = |path| LimitText::compile_at(path, &Limits::default());
        let (file, compiled) = path.map(load).transpose()?.unwrap_or_default();
        while self.commit(&LimitsRequest::Expire, now_ms).await.is_ok_and(|plan| {
            self.tell(&plan, None);
            !plan.changes.is_empty()
        }) {}
        let shown = path.map_or_else(|| "-".to_owned(), |path| path.display().to_string());
        self.warn_of_ignored(&file, &shown, now_ms);
        let (file, compiled) = (Arc::new(file), Arc::new(compiled));
        let refused = |error: ServiceError| LimitsError::Conflict {
            path: path.unwrap_or(Path::new("-")).to_owned(),
            reason: error.to_string(),
        };
        let compiled = if path.is_none() && self.keeps_limits_of_a_file() {
            None
        } else {
            let request = LimitsRequest::File { file, compiled, path: shown };
            self.start_with_file(request, is_kept, now_ms).await.map_err(refused)?
        };
        let this = Arc::clone(self);
        off_thread(move || this.put_in_force(compiled, true)).await.map_err(refused)
    }

    /// Returns whether the store has limits of a file, and warns of them: none vanishes because
    /// `--limits` is missing.
    fn keeps_limits_of_a_file(&self) -> bool {
        let state = self.state.read();
        let of_a_file = state.book.limits.values().filter(|limit| !limit.entry.origin.is_api());
        let texts: Vec<&LimitText> = of_a_file.map(|limit| &limit.entry.text).collect();
        let count = map_text::limit_count(texts.iter().copied());
        if !texts.is_empty() {
            tracing::warn!(
                count,
                exemptions = count < texts.len(),
                "limits or exemptions of a limits file stay in force as the store has them: start \
                 with --limits, or adopt or remove them"
            );
        }
        !texts.is_empty()
    }

    /// Gives the limits of the file to the store. Returns the compiled limits; `None`: those of the
    /// store stay.
    ///
    /// # Errors
    ///
    /// The store refuses the file, and has no limits that could be in force instead.
    async fn start_with_file(
        self: &Arc<Self>,
        request: LimitsRequest,
        is_kept: bool,
        now_ms: u64,
    ) -> Result<Option<Limits>, ServiceError> {
        match self.commit(&request, now_ms).await {
            Ok(plan) => {
                // Without a store every start would tell of every limit.
                if is_kept {
                    self.tell(&plan, None);
                }
                Ok(plan.compiled)
            }
            Err(error) if self.state.read().book.limits.is_empty() => Err(error),
            Err(error) => {
                self.handle.refuse(&error);
                tracing::error!(
                    %error,
                    "the limits file does not agree with the limits store, whose limits are in \
                     force: correct the file or the limits"
                );
                Ok(None)
            }
        }
    }

    /// Reads the limits file again. Returns the number of limits in force.
    ///
    /// # Errors
    ///
    /// The file has a mistake, has lost all of its limits, or does not agree with other limits.
    /// The limits stay as they were.
    pub(crate) async fn reload(
        self: &Arc<Self>,
        path: &Path,
        now_ms: u64,
    ) -> Result<usize, LimitsError> {
        let _one = self.reloading.lock().await;
        let reloaded = self.reload_file(path, now_ms).await;
        match &reloaded {
            Ok(()) => self.handle.clear_fault(),
            Err(error) => self.handle.refuse(error),
        }
        reloaded.map(|()| self.handle.load().limits().len())
    }

    async fn reload_file(self: &Arc<Self>, path: &Path, now_ms: u64) -> Result<(), LimitsError> {
        let failed = |error: ServiceError| LimitsError::Conflict {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let place = path.to_owned();
        let before = self.handle.load();
        let load = move || LimitText::compile_at(&place, before.limits());
        let (file, compiled) = off_thread(load).await.map_err(failed)??;
        let has_any = self.state.read().book.limits.values().any(is_file);
        // A half-written copy of the file must not turn all limits off.
        if file.limits.is_empty() && !file.allow_empty && has_any {
            return Err(LimitsError::Emptied { path: path.to_owned() });
        }
        let shown = path.display().to_string();
        self.warn_of_ignored(&file, &shown, now_ms);
        let (file, compiled) = (Arc::new(file), Arc::new(compiled));
        let request = LimitsRequest::File { file, compiled, path: shown };
        self.change(request, now_ms, None).await.map(drop).map_err(failed)
    }

    /// Logs the limits of the file whose names the API has, each once.
    fn warn_of_ignored(&self, file: &FileText, path: &str, now_ms: u64) {
        let state = self.state.read();
        let is_taken = |text: &&LimitText| {
            state.book.limits.contains_key(&text.name) && !is_of_file(&state.book, text, now_ms)
        };
        let names: BTreeSet<String> =
            file.limits.iter().filter(is_taken).map(|text| text.name.clone()).collect();
        drop(state);
        let mut ignored = self.ignored.lock();
        let new: Vec<&str> =
            names.difference(&ignored).take(NAMES_MAX).map(String::as_str).collect();
        if !new.is_empty() {
            tracing::warn!(
                count = names.len(),
                names = new.join(" "),
                path,
                "limits of the file are ignored, because limits of these names were set or adopted \
                 otherwise: remove them from the file"
            );
        }
        *ignored = names;
    }
}
