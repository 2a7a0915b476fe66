//! Hot keys, series and the tail, as the admin listener reads them.

use tokio::sync::mpsc;
use tollgate_http::{
    Answer, HotKeys, HotKind, LatencyView, LimitReport, Observer, Scope, ServerRates, ServiceError,
    TailStream, TryResult,
};

use super::host::ServerHost;

impl Observer for ServerHost {
    fn hot_keys(
        &self,
        _kind: HotKind,
        _limit: Option<String>,
        _count: usize,
        _scope: Scope,
    ) -> Answer<'_, HotKeys> {
        Box::pin(async { Err(ServiceError::Unavailable("not built yet".to_owned())) })
    }

    fn report(&self, _limit: &str, _minutes: u64) -> Option<LimitReport> {
        None
    }

    fn rates(&self) -> ServerRates {
        ServerRates::default()
    }

    fn latency(&self) -> LatencyView {
        LatencyView::default()
    }

    fn tail(&self) -> TailStream {
        TailStream { events: mpsc::channel(1).1 }
    }

    fn try_limit(
        &self,
        _name: String,
        _toml: String,
        _minutes: u64,
        _scope: Scope,
    ) -> Answer<'_, TryResult> {
        Box::pin(async { Err(ServiceError::Unavailable("not built yet".to_owned())) })
    }
}
