//! Hot keys, series and the tail, as the admin listener reads them.
//!
//! Not here: the observations themselves (`observe`).

use tollgate_http::{
    Answer, HotKeys, HotKind, LatencyView, LimitActivity, LimitReport, Observer, Scope,
    ServerRates, TailStream, TryResult,
};

use super::cluster_query;
use super::host::ServerHost;
use super::try_limit::{try_limit, try_on_all};
use crate::commands::replay::TryRequest;

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

    fn activity(&self, limit: &str) -> Option<LimitActivity> {
        let service = self.service();
        let (active, unix_ms) = (service.limits().load(), service.clock().now().unix_ms);
        service.observatory().activity(&active, limit, unix_ms)
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
        name: String,
        toml: String,
        minutes: u64,
        scope: Scope,
    ) -> Answer<'_, TryResult> {
        let request = TryRequest { name, toml, minutes };
        match (&self.node, scope) {
            (Some(node), Scope::Cluster) => Box::pin(try_on_all(node, &self.service, request)),
            _ => try_limit(&self.service, request),
        }
    }
}
