//! Single keys, nodes and settings, as the admin listener reads and changes them.

use tollgate_http::{Actor, Answer, ExplainView, NodesView, Operator, ServerStatus, ServiceError};

use super::host::ServerHost;

fn unavailable() -> ServiceError {
    ServiceError::Unavailable("not built yet".to_owned())
}

impl Operator for ServerHost {
    fn status(&self) -> ServerStatus {
        ServerStatus::default()
    }

    fn explain(&self, _key: Vec<u8>, _cost: u64) -> Answer<'_, ExplainView> {
        Box::pin(async { Err(unavailable()) })
    }

    fn reset_key(&self, _key: Vec<u8>, _actor: Actor) -> Answer<'_, bool> {
        Box::pin(async { Err(unavailable()) })
    }

    fn refund_key(&self, _key: Vec<u8>, _units: u64, _actor: Actor) -> Answer<'_, ()> {
        Box::pin(async { Err(unavailable()) })
    }

    fn nodes(&self) -> Option<NodesView> {
        None
    }

    fn drain_node(&self, _node: String, _actor: Actor) -> Answer<'_, ()> {
        Box::pin(async { Err(unavailable()) })
    }

    fn forget_node(&self, _node: String, _actor: Actor) -> Answer<'_, ()> {
        Box::pin(async { Err(unavailable()) })
    }

    fn put_setting(&self, _name: String, _value: String, _actor: Actor) -> Answer<'_, ()> {
        Box::pin(async { Err(unavailable()) })
    }

    fn set_log_level(&self, _level: u32, _actor: Actor) -> Answer<'_, ()> {
        Box::pin(async { Err(unavailable()) })
    }

    fn configuration(&self) -> String {
        String::new()
    }
}
