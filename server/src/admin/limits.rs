//! Limits and overrides, as the admin listener reads and changes them.

use tollgate_http::{
    Actor, Answer, ChangeView, ChangedLimit, ImportMode, ImportPlan, LimitChange, LimitView,
    LimitsService, MatchView, OverrideChange, OverrideView, ServiceError, Via,
};

use super::host::ServerHost;

fn unavailable() -> ServiceError {
    ServiceError::Unavailable("not built yet".to_owned())
}

impl LimitsService for ServerHost {
    fn limits(&self) -> Vec<LimitView> {
        Vec::new()
    }

    fn limit(&self, _name: &str) -> Option<LimitView> {
        None
    }

    fn read_only(&self) -> Option<String> {
        Some("no store".to_owned())
    }

    fn put_limit(&self, _change: LimitChange) -> Answer<'_, ChangedLimit> {
        Box::pin(async { Err(unavailable()) })
    }

    fn remove_limit(
        &self,
        _name: String,
        _version: u64,
        _note: Option<String>,
        _actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        Box::pin(async { Err(unavailable()) })
    }

    fn revert_limit(
        &self,
        _name: String,
        _seq: u64,
        _version: Option<u64>,
        _actor: Actor,
    ) -> Answer<'_, ChangedLimit> {
        Box::pin(async { Err(unavailable()) })
    }

    fn history(&self, _name: Option<&str>) -> Vec<ChangeView> {
        Vec::new()
    }

    fn overrides(&self, _limit: Option<&str>, _query: Option<&str>) -> Vec<OverrideView> {
        Vec::new()
    }

    fn put_override(&self, _change: OverrideChange) -> Answer<'_, ChangedLimit> {
        Box::pin(async { Err(unavailable()) })
    }

    fn export(&self) -> String {
        String::new()
    }

    fn import(
        &self,
        _toml: String,
        _mode: ImportMode,
        _dry_run: bool,
        _actor: Actor,
    ) -> Answer<'_, ImportPlan> {
        Box::pin(async { Err(unavailable()) })
    }

    fn match_key(&self, key: &[u8]) -> Result<MatchView, ServiceError> {
        self.explain_match(key).map(|(view, _)| view)
    }

    fn check_limit(&self, _toml: &str) -> Result<LimitView, ServiceError> {
        Err(unavailable())
    }

    fn change_counts(&self) -> Vec<(Via, u64)> {
        Vec::new()
    }
}
