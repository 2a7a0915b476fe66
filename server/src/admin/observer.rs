//! Hot keys, series and the tail, as the admin listener reads them.
//!
//! Not here: the observations themselves (`observe`).

use tollgate_http::{
    Answer, HotKeys, HotKind, LatencyView, LimitReport, Observer, Scope, ServerRates, ServiceError,
    TailStream, TryResult,
};

use super::cluster_query;
use super::host::ServerHost;

impl Observer for ServerHost {
    fn hot_keys(
        &self,
        kind: HotKind,
        limit: Option<String>,
        count: usize,
        scope: Scope,
    ) -> Answer<'_, HotKeys> {
        Box::pin(async move {
            match (&self.node, scope) {
                (Some(node), Scope::Cluster) => {
                    cluster_query::hot_keys(node, self.service(), kind, limit, count).await
                }
                _ => Ok(self.service().observatory().hot_keys(kind, limit.as_deref(), count)),
            }
        })
    }

    fn report(&self, limit: &str, minutes: u64) -> Option<LimitReport> {
        let service = self.service();
        let active = service.limits().load();
        let unix_ms = service.clock().now().unix_ms;
        let active_keys = |number| service.shards().active_keys().get(&number).copied();
        service
            .observatory()
            .report(&active, limit, (unix_ms, minutes), |number| active_keys(number).unwrap_or(0))
    }

    fn rates(&self) -> ServerRates {
        self.service().observatory().rates()
    }

    fn latency(&self) -> LatencyView {
        self.service().observatory().latency()
    }

    fn tail(&self) -> TailStream {
        self.service().observatory().follow_tail()
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
