//! Records: names with versions and bodies, of which a change replaces several or none.
//!
//! Here: the interface of the stores, the store of a server without a cluster (`file`), and that of
//! a cluster (`map`). Not here: the meaning of a body (`limits::service`).

pub(crate) mod file;
mod map;

use std::future::Future;
use std::pin::Pin;

use cluster::map::{MapLimit, Put};

pub(crate) use self::file::FileRecords;
pub(crate) use self::map::MapRecords;

/// The reason why a change was not made, or may not have been. `Display` is for operators.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RecordsError {
    /// A record has another version than the change says. Nothing is changed.
    #[error("others change the limits too: try again")]
    OtherVersion,
    /// A bound would be exceeded. Nothing is changed.
    #[error("{0}")]
    Full(String),
    /// The store cannot change anything now.
    #[error("{0}")]
    Unavailable(String),
}

/// The version that all changed records have now.
pub(crate) type Changed<'a> = Pin<Box<dyn Future<Output = Result<u64, RecordsError>> + Send + 'a>>;

/// A store of records.
pub(crate) trait Records: Send + Sync {
    /// Returns a number that another set of records does not have: it grows with each change. No
    /// record of a shared store has a greater version.
    fn mark(&self) -> u64;

    /// Returns a record.
    fn get(&self, name: &str) -> Option<MapLimit>;

    /// Calls `visit` with each record whose name begins with `prefix`, in the order of names. A
    /// change that happens meanwhile waits, so `visit` must be short.
    fn scan(&self, prefix: &str, visit: &mut dyn FnMut(&str, &MapLimit));

    /// Puts all records, or none. Once it returns a version, the change is durable.
    fn change(&self, puts: Vec<Put>) -> Changed<'_>;

    /// Returns the reason why API and operators cannot change records; `None`: they can.
    fn read_only(&self) -> Option<String>;

    /// Returns the error of the last change if it could not be stored.
    fn fault(&self) -> Option<String> {
        None
    }

    /// Returns the feature version whose records all readers know.
    fn feature_version(&self) -> u32 {
        u32::MAX
    }

    /// Whether others change the records too, so that a task follows them and puts them in force.
    fn is_shared(&self) -> bool {
        false
    }
}
