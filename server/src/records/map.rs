//! Records in the map of a cluster.
//!
//! Here: reading them from the newest map of this node, and proposing changes. Not here: the rules
//! of a change (`cluster::map`), the meaning of a body (`limits::service`).

use std::time::Duration;

use cluster::map::command::{LIMITS_SET, Setting, YES};
use cluster::map::{MapCommand, MapLimit, MapRefusal, Put, RECORDS_VERSION};
use control::Control;

use super::{Changed, Records, RecordsError};

/// The time to live of one command.
const COMMAND_TTL: Duration = Duration::from_secs(5);

/// The records of a cluster.
pub(crate) struct MapRecords {
    control: Control,
}

impl MapRecords {
    /// Returns the records of the cluster that `control` belongs to.
    pub(crate) fn new(control: Control) -> Self {
        Self { control }
    }

    async fn propose(&self, command: MapCommand) -> Result<u64, RecordsError> {
        let unavailable = |reason: String| Err(RecordsError::Unavailable(reason));
        match self.control.propose(command, COMMAND_TTL).await {
            Err(error) => unavailable(error.to_string()),
            Ok(outcome) => match outcome.answer {
                Ok(_) => Ok(outcome.map_ver),
                Err(MapRefusal::OtherVersion(_)) => Err(RecordsError::OtherVersion),
                Err(refused @ MapRefusal::OutOfBounds) => {
                    Err(RecordsError::Full(format!("the cluster refuses the change: {refused}")))
                }
                Err(refused) => unavailable(refused.to_string()),
            },
        }
    }
}

impl Records for MapRecords {
    fn mark(&self) -> u64 {
        self.control.map().ver()
    }

    fn get(&self, name: &str) -> Option<MapLimit> {
        self.control.map().limits().get(name).cloned()
    }

    fn scan(&self, prefix: &str, visit: &mut dyn FnMut(&str, &MapLimit)) {
        let map = self.control.map();
        let records = map.limits().iter().filter(|(name, _)| name.starts_with(prefix));
        records.for_each(|(name, record)| visit(name, record));
    }

    fn change(&self, puts: Vec<Put>) -> Changed<'_> {
        Box::pin(async move {
            let settings = self.control.map().settings().clone();
            // An older node could not read the command.
            if settings.version < RECORDS_VERSION {
                let reason = MapRefusal::BeingUpdated.to_string();
                return Err(RecordsError::Unavailable(reason));
            }
            // Limits files no longer decide about a cluster whose limits were changed.
            if !settings.others.contains_key(LIMITS_SET) {
                let mark =
                    Setting::Other { name: LIMITS_SET.to_owned(), value: Some(YES.to_owned()) };
                self.propose(MapCommand::Set(mark)).await?;
            }
            // All records of a command have the version of the map that it makes. This node's own
            // map may be behind.
            self.propose(MapCommand::Change(puts)).await
        })
    }

    fn read_only(&self) -> Option<String> {
        None
    }

    fn feature_version(&self) -> u32 {
        self.control.map().settings().version
    }

    fn is_shared(&self) -> bool {
        true
    }
}
