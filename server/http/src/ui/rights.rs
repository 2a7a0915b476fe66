//! The rights of a role, narrowed by the prefixes of its token.

use crate::caller::Caller;
use crate::host::{AdminHost, LimitView};
use crate::scope::ScopedKeyChange;
use crate::tokens::TokenRole;

/// The place of a role in the order of rights.
fn level(role: TokenRole) -> u8 {
    match role {
        TokenRole::Metrics | TokenRole::Check => 0,
        TokenRole::Viewer => 1,
        TokenRole::Support => 2,
        TokenRole::Editor => 3,
        TokenRole::Admin => 4,
    }
}

impl Caller {
    /// Returns whether the caller may read pages.
    pub(super) fn reads(&self) -> bool {
        level(self.role) >= 1
    }

    /// Returns whether the caller may change overrides and single keys.
    pub(super) fn supports(&self) -> bool {
        level(self.role) >= 2
    }

    /// Returns whether the caller may change limits.
    pub(super) fn edits(&self) -> bool {
        level(self.role) >= 3
    }

    /// Returns whether the caller may change nodes and settings, and read the audit log.
    pub(super) fn administers(&self) -> bool {
        level(self.role) >= 4
    }

    /// Returns whether the caller may change the limit.
    pub(super) fn edits_limit(&self, limit: &LimitView) -> bool {
        self.edits() && self.may_limit(limit).is_ok()
    }

    /// Returns whether the caller may change limits of this name.
    pub(super) fn edits_name(&self, name: &str) -> bool {
        self.edits() && self.may_name(name).is_ok()
    }

    /// Returns whether the caller may reset the key.
    pub(super) fn supports_key(&self, host: &dyn AdminHost, key: impl AsRef<[u8]>) -> bool {
        self.supports() && self.may_change_key(host, key.as_ref(), ScopedKeyChange::Reset).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::ClientAddress;
    use crate::fake_host::FakeHost;

    fn caller(role: TokenRole) -> Caller {
        Caller {
            name: "bob".to_owned(),
            role,
            names: "team-a/".to_owned(),
            keys: "team-a:".to_owned(),
            ..Caller::anyone(ClientAddress::default())
        }
    }

    #[test]
    fn prefixes_of_a_token_narrow_its_role() {
        let limit = |name: &str, front: &str| LimitView {
            name: name.to_owned(),
            literal_front: front.to_owned(),
            counted_front: front.to_owned(),
            ..LimitView::default()
        };
        let bob = caller(TokenRole::Editor);
        assert!(bob.edits_limit(&limit("team-a/login", "team-a:login:")));
        assert!(!bob.edits_limit(&limit("team-b/login", "team-a:login:")));
        assert!(!bob.edits_limit(&limit("team-a/login", "team-")));
        assert!(bob.edits_name("team-a/x") && !bob.edits_name("team-b/x"));
        assert!(!bob.administers());
        assert!(!caller(TokenRole::Support).edits_limit(&limit("team-a/login", "team-a:")));
        let host = FakeHost::default();
        let log = |role| Caller { names: "log".into(), keys: "login:a".into(), ..caller(role) };
        assert!(log(TokenRole::Support).supports_key(&host, "login:a"));
        assert!(!log(TokenRole::Support).supports_key(&host, "login:b"));
        assert!(!log(TokenRole::Viewer).supports_key(&host, "login:a"));
        assert!(!caller(TokenRole::Support).supports_key(&host, "team-a:x"), "it has no limit");
        assert!(!caller(TokenRole::Metrics).reads());
    }
}
