//! The state that all routes share.

use std::sync::Arc;

use crate::access::Access;
use crate::host::AdminHost;
use crate::streams::StreamPlaces;
use crate::traffic::RequestCounts;

/// The state of the routes.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) host: Arc<dyn AdminHost>,
    pub(crate) access: Arc<Access>,
    pub(crate) streams: StreamPlaces,
    pub(crate) requests: Arc<RequestCounts>,
}
