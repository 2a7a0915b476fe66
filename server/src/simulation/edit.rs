//! Changes of the limits of a simulated node.
//!
//! Here: the way of a change through the service of one node, on the node's own runtime, and the
//! policy in force there. Not here: the service (`limits::service`), the editors (`tests/sim`).

use std::net::IpAddr;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tollgate_http::ImportMode;
use tollgate_limits::map_text::LimitText;

use super::{
    ChangedLimit, CommandOutcome, LimitChange, MapCommand, OverrideChange, ProposeError,
    ServiceError, node, runtime, service,
};
use crate::limits::service::{LimitsRequest, refused_file};

/// A wanted change.
#[derive(Debug, Clone)]
pub enum LimitsEdit {
    /// Creates or replaces a limit.
    Put(LimitChange),
    /// Removes the limit of the name and of the version that the change replaces.
    Remove(LimitChange),
    /// Gives a limit the text that it had after the change of this number.
    Revert(LimitChange, u64),
    /// Creates, replaces or removes an override.
    Override(OverrideChange),
    /// Puts the limits of a limits file, the text of the change; others stay.
    Import(LimitChange),
}

impl LimitsEdit {
    fn request(self) -> Result<LimitsRequest, ServiceError> {
        Ok(match self {
            Self::Put(change) => LimitsRequest::Put(Box::new(change)),
            Self::Remove(LimitChange { name, version, note, actor, .. }) => {
                LimitsRequest::Remove { name, version, note, actor }
            }
            Self::Revert(LimitChange { name, version, actor, .. }, seq) => {
                LimitsRequest::Revert { name, seq, version, actor }
            }
            Self::Override(change) => LimitsRequest::Override(Box::new(change)),
            Self::Import(LimitChange { toml, actor, .. }) => {
                let file = LimitText::of_file("limits.toml", toml.as_bytes());
                let file = Arc::new(file.map_err(refused_file)?);
                LimitsRequest::Import { file, mode: ImportMode::Merge, actor }
            }
        })
    }
}

/// Starts a change on the newest life at an address; `None` if there is none. A change whose node
/// ends meanwhile has an unknown outcome, and its handle ends with an error.
#[must_use]
pub fn start_edit(
    address: IpAddr,
    edit: LimitsEdit,
) -> Option<JoinHandle<Result<ChangedLimit, ServiceError>>> {
    let (service, runtime) = (service(address)?, runtime(address)?);
    Some(runtime.spawn(async move {
        let now_ms = service.clock().now().unix_ms;
        let request = edit.request()?;
        service.limits_store().change(request, now_ms, None).await.map(|done| done.changed)
    }))
}

/// Proposes a command of the map from the newest life at an address; `None` if there is none.
#[must_use]
pub fn start_proposal(
    address: IpAddr,
    command: MapCommand,
) -> Option<JoinHandle<Result<CommandOutcome, ProposeError>>> {
    const TTL: std::time::Duration = std::time::Duration::from_secs(5);
    let (control, runtime) = (node(address)?.control()?.clone(), runtime(address)?);
    Some(runtime.spawn(async move { control.propose(command, TTL).await }))
}

/// Returns the policy in force for a key on a node; empty if the key is not limited.
#[must_use]
pub fn policy_in_force(address: IpAddr, key: &str) -> Option<String> {
    let in_force = service(address)?.limits().load();
    let mut scratch = Vec::new();
    let found = in_force.limits().find(key.as_bytes(), &mut scratch).ok()?;
    Some(found.map(|found| found.policy().to_string()).unwrap_or_default())
}
