//! Limits and overrides as the admin listener reads and changes them.

use std::future::ready;
use std::pin::Pin;

use serde::Serialize;

use super::{Actor, Answer, ServiceError, Via};

/// A limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct LimitView {
    /// The name.
    pub name: String,
    /// The `match` or `regex`, as written.
    pub pattern: String,
    /// The text with which every key of the limit begins; empty if there is none.
    pub literal_front: String,
    /// The same of its counted keys.
    #[serde(skip)]
    pub counted_front: String,
    /// The same of each parent's keys, as a client would write them.
    #[serde(skip)]
    pub parent_fronts: Vec<String>,
    /// Whether a template names its counted keys.
    #[serde(skip)]
    pub has_own_keys: bool,
    /// The policy, as written.
    pub policy: String,
    /// Whether it only counts what it would deny.
    pub shadow: bool,
    /// The TOML of its `[[limit]]`.
    pub toml: String,
    /// `file`, `api` or `rls`.
    pub source: String,
    /// The file that decides about it, while `source` is not `api`.
    pub file: Option<String>,
    /// Grows with each change; the `ETag`.
    pub version: u64,
    /// The sender of the last change.
    pub by: Option<String>,
    /// The time of the last change, in milliseconds since the Unix epoch.
    pub at_ms: Option<u64>,
    /// The team that owns it.
    pub owner: Option<String>,
    /// Free text.
    pub note: Option<String>,
    /// Whether it is kept but not in force.
    pub disabled: bool,
    /// The end of its validity, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The number of overrides, inline, of the API and of a file.
    pub overrides: u64,
    /// The parents' key templates, as written.
    pub parents: Vec<String>,
    /// The path of its file of overrides.
    pub overrides_file: Option<String>,
    /// The number of overrides of this file in force here.
    pub overrides_of_file: u64,
}

/// A wanted change of a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitChange {
    /// The name.
    pub name: String,
    /// The TOML of its `[[limit]]`.
    pub toml: String,
    /// The limit that follows it in the order; `None`: it keeps its place, or comes last.
    pub before: Option<String>,
    /// The reason, for history.
    pub note: Option<String>,
    /// The version that the change replaces; `None`: there must be no limit of this name.
    pub version: Option<u64>,
    /// Whether a limit of a file becomes one of the API.
    pub adopt: bool,
    /// Whether the change is only checked.
    pub dry_run: bool,
    /// The sender.
    pub actor: Actor,
}

/// A change that is done, or would be done by a dry run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ChangedLimit {
    /// The version after the change; 0 after a removal and in a dry run.
    pub version: u64,
    /// The number of the change in history; 0 if nothing changed and in a dry run.
    pub seq: u64,
}

/// A change in history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangeView {
    /// Its number, from 1, without gaps.
    pub seq: u64,
    /// Its time, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The sender.
    pub by: String,
    /// The surface.
    pub via: String,
    /// `limit`, `override`, or another thing that changed.
    pub what: String,
    /// The name of the limit.
    pub name: String,
    /// The key of the override.
    pub key: Option<String>,
    /// The version before; 0 if there was none.
    pub from: u64,
    /// The version after; 0 after a removal.
    pub to: u64,
    /// The reason.
    pub note: Option<String>,
    /// The change that this one took back.
    pub reverts: Option<u64>,
    /// The text after the change; `None` after a removal.
    pub body: Option<String>,
    /// The text before the change, if that change is still in history.
    pub body_before: Option<String>,
}

impl ChangeView {
    /// Whether the text before the change is known, be it none: history keeps the last changes.
    #[must_use]
    pub fn knows_text_before(&self) -> bool {
        self.from == 0 || self.body_before.is_some()
    }
}

/// An override.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OverrideView {
    /// The name of the limit.
    pub limit: String,
    /// The counted key, a prefix with `*`, or a literal with a network.
    pub key: String,
    /// The policy, `allow` or `block`.
    pub policy: String,
    /// `api`, `inline`, `file` or `where`.
    pub source: String,
    /// Its end, in milliseconds since the Unix epoch.
    pub expires_ms: Option<u64>,
    /// The reason.
    pub note: Option<String>,
    /// The sender of the last change.
    pub by: Option<String>,
    /// The time of the last change, in milliseconds since the Unix epoch.
    pub at_ms: Option<u64>,
    /// The `ETag`; 0 unless `source` is `api`.
    pub version: u64,
}

/// A wanted change of an override of the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideChange {
    /// The name of the limit.
    pub limit: String,
    /// The counted key, a prefix with `*`, or a literal with a network.
    pub key: String,
    /// The policy, `allow` or `block`; `None` removes the override.
    pub policy: Option<String>,
    /// Its end, in milliseconds since the Unix epoch; `None`: it stays.
    pub expires_ms: Option<u64>,
    /// The reason.
    pub note: Option<String>,
    /// The version that the change replaces; `None`: there must be none.
    pub version: Option<u64>,
    /// The sender.
    pub actor: Actor,
}

/// The meaning of a limits file that is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportMode {
    /// Limits that the file lacks stay.
    Merge,
    /// Limits of the API that the file lacks are removed.
    Replace,
}

/// The effect of a limits file that is put: names of limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImportPlan {
    /// New limits, and limits with another text.
    pub put: Vec<String>,
    /// Limits that only change their place.
    pub moved: Vec<String>,
    /// Limits that go.
    pub removed: Vec<String>,
    /// Limits that stay as they are.
    pub same: Vec<String>,
}

/// A parent that is charged with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParentView {
    /// The name of the parent's limit.
    pub limit: String,
    /// The counted key.
    pub key: String,
    /// The policy in force.
    pub policy: String,
}

/// The limit of a key, and the reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MatchView {
    /// The key.
    pub key: String,
    /// The name of its limit; `None`: the key is not limited.
    pub limit: Option<String>,
    /// The entry of `exempt` that takes the key from all limits.
    pub exempt: Option<String>,
    /// The captures of the pattern: names and values.
    pub captures: Vec<(String, String)>,
    /// The counted key.
    pub counted_key: Option<String>,
    /// The policy in force.
    pub policy: Option<String>,
    /// The key of the override in force.
    pub override_key: Option<String>,
    /// The source of the override in force: `api`, `inline`, `file` or `where`.
    pub override_source: Option<String>,
    /// The factor of the cost of a request; `None`: the key is not limited.
    pub weight: Option<u64>,
    /// The parents that are charged too.
    pub parents: Vec<ParentView>,
    /// Limits that match the key as well and come later: they never see it.
    pub shadowed: Vec<String>,
}

/// Reads and changes limits, overrides and their history. Reading needs no wait.
pub trait LimitsService {
    /// Returns all limits, in their order, without their texts: `toml` is empty.
    fn limits(&self) -> Vec<LimitView>;

    /// Returns the limit of a name.
    fn limit(&self, name: &str) -> Option<LimitView>;

    /// Waits, within a bound, until this server knows `version`, which the sender of a change may
    /// have read at another node. A server without other nodes knows all versions.
    fn reach(&self, _version: u64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(ready(()))
    }

    /// Returns the reason why limits cannot be changed here; `None`: they can.
    fn read_only(&self) -> Option<String>;

    /// Creates or replaces a limit.
    fn put_limit(&self, change: LimitChange) -> Answer<'_, ChangedLimit>;

    /// Removes the limit of this name and version.
    fn remove_limit(
        &self,
        name: String,
        version: u64,
        note: Option<String>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit>;

    /// Gives a limit the text that it had after the change `seq`; `version` as in a change.
    fn revert_limit(
        &self,
        name: String,
        seq: u64,
        version: Option<u64>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit>;

    /// Returns the changes that are kept, newest first; of one limit, if named.
    fn history(&self, name: Option<&str>) -> Vec<ChangeView>;

    /// Returns overrides of all sources, those that expire first at the top; `query` is a part of
    /// the key. Those of files only with a `query`, and at most 1,000 of each file.
    fn overrides(&self, limit: Option<&str>, query: Option<&str>) -> Vec<OverrideView>;

    /// Creates, replaces or removes an override of the API.
    fn put_override(&self, change: OverrideChange) -> Answer<'_, ChangedLimit>;

    /// Returns all limits as a limits file.
    fn export(&self) -> String;

    /// Puts the limits of a limits file.
    fn import(
        &self,
        toml: String,
        mode: ImportMode,
        dry_run: bool,
        actor: Actor,
    ) -> Answer<'_, ImportPlan>;

    /// Returns the limit of a key, and the reason.
    ///
    /// # Errors
    ///
    /// The key is no key, or its counted key or a parent's would be too long.
    fn match_key(&self, key: &[u8]) -> Result<MatchView, ServiceError>;

    /// Checks a limit's text by itself and returns its name, pattern and policy, for forms.
    ///
    /// # Errors
    ///
    /// The first mistake, with its line.
    fn check_limit(&self, toml: &str) -> Result<LimitView, ServiceError>;

    /// Returns the number of changes since the start, by surface, for metrics.
    fn change_counts(&self) -> Vec<(Via, u64)>;
}
