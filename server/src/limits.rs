//! The limits in force, which a reload or a change replaces as a whole.
//!
//! Here: the metrics of each limit, and the service that changes limits. Not here: the limits file
//! and the limit of a key (`server/limits`), when the file is read again (`server`).

pub(crate) use self::active::FaultOf;
pub use self::active::{ActiveLimits, LimitMetrics, LimitTotals, LimitsHandle};

mod active;
pub(crate) mod service;
