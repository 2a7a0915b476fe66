//! The audit log: lines that tell who changed what.
//!
//! Not here: changes of limits, which their store logs (`limits::service`), logins
//! (`tollgate_http`).

use std::fmt::Display;

use tollgate_http::Actor;

use crate::AUDIT;

/// Logs a change and its result, at every level. Control characters become `?`.
pub(crate) fn audit(actor: &Actor, what: &str, result: &dyn Display) {
    let what: String = what.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let address = actor.address.map(|address| address.to_string());
    let result = result.to_string();
    tracing::info!(
        target: AUDIT,
        by = actor.name,
        via = actor.via.word(),
        address,
        result,
        "{what}"
    );
}
