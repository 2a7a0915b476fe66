//! Limits and overrides, as the admin listener reads and changes them.
//!
//! Here: the way from a request to `limits::service`. Not here: the changes themselves.

use std::pin::Pin;
use std::sync::Arc;

use tollgate_http::{
    Actor, Answer, ChangeView, ChangedLimit, ImportMode, ImportPlan, LimitChange, LimitView,
    LimitsService, MatchView, OverrideChange, OverrideView, ServiceError, Via,
};
use tollgate_limits::map_text::LimitText;

use super::host::ServerHost;
use crate::limits::service::{LimitsChanged, LimitsRequest, LimitsStore, off_thread};

impl ServerHost {
    fn store(&self) -> &Arc<LimitsStore> {
        self.service().limits_store()
    }

    /// Makes a change that the store allows, or only checks it. A change goes on if this future is
    /// dropped.
    async fn change_limits(
        &self,
        request: LimitsRequest,
        dry_run: bool,
    ) -> Result<LimitsChanged, ServiceError> {
        let now_ms = self.service().clock().now().unix_ms;
        if dry_run {
            return self.store().check(request, now_ms).await;
        }
        if let Some(reason) = self.read_only() {
            return Err(ServiceError::Conflict(reason));
        }
        let address = request.address();
        let store = Arc::clone(self.store());
        self.running.run(async move { store.change(request, now_ms, address).await }).await
    }

    async fn changed_limit(
        &self,
        request: LimitsRequest,
        dry_run: bool,
    ) -> Result<ChangedLimit, ServiceError> {
        self.change_limits(request, dry_run).await.map(|done| done.changed)
    }
}

impl LimitsService for ServerHost {
    fn limits(&self) -> Vec<LimitView> {
        self.store().limits()
    }

    fn limit(&self, name: &str) -> Option<LimitView> {
        self.store().limit(name)
    }

    fn reach(&self, version: u64) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.store().reach(Some(version), None))
    }

    fn read_only(&self) -> Option<String> {
        self.store().read_only()
    }

    fn put_limit(&self, change: LimitChange) -> Answer<'_, ChangedLimit> {
        let dry_run = change.dry_run;
        Box::pin(self.changed_limit(LimitsRequest::Put(Box::new(change)), dry_run))
    }

    fn remove_limit(
        &self,
        name: String,
        version: u64,
        note: Option<String>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        let version = Some(version);
        Box::pin(self.changed_limit(LimitsRequest::Remove { name, version, note, actor }, false))
    }

    fn revert_limit(
        &self,
        name: String,
        seq: u64,
        version: Option<u64>,
        actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        Box::pin(self.changed_limit(LimitsRequest::Revert { name, seq, version, actor }, false))
    }

    fn history(&self, name: Option<&str>) -> Vec<ChangeView> {
        self.store().history(name)
    }

    fn overrides(&self, limit: Option<&str>, query: Option<&str>) -> Vec<OverrideView> {
        self.store().overrides(limit, query)
    }

    fn put_override(&self, change: OverrideChange) -> Answer<'_, ChangedLimit> {
        Box::pin(self.changed_limit(LimitsRequest::Override(Box::new(change)), false))
    }

    fn export(&self) -> String {
        self.store().export()
    }

    fn import(
        &self,
        toml: String,
        mode: ImportMode,
        dry_run: bool,
        actor: Actor,
    ) -> Answer<'_, ImportPlan> {
        Box::pin(async move {
            let parse = move || LimitText::of_file("limits.toml", toml.as_bytes());
            let file = off_thread(parse).await?.map_err(crate::limits::service::refused_file)?;
            let request = LimitsRequest::Import { file: Arc::new(file), mode, actor };
            self.change_limits(request, dry_run).await.map(|done| done.import)
        })
    }

    fn match_key(&self, key: &[u8]) -> Result<MatchView, ServiceError> {
        self.explain_match(key).map(|(view, _)| view)
    }

    fn check_limit(&self, toml: &str) -> Result<LimitView, ServiceError> {
        LimitsStore::check_text(toml)
    }

    fn change_counts(&self) -> Vec<(Via, u64)> {
        self.store().change_counts()
    }
}

#[cfg(test)]
mod tests;
