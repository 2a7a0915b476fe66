//! The rights of a role, narrowed by the prefixes of its token.

use crate::caller::Caller;
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

    /// Returns whether the caller may change the limit of this name, whose keys begin with `front`.
    pub(super) fn edits_limit(&self, name: &str, front: &str) -> bool {
        self.edits() && name.starts_with(&self.names) && front.starts_with(&self.keys)
    }

    /// Returns whether the caller may change the key, or an override of it, of the limit.
    pub(super) fn supports_key(&self, limit: Option<&str>, key: &str) -> bool {
        let is_named = self.names.is_empty() || limit.is_some_and(|l| l.starts_with(&self.names));
        self.supports() && is_named && key.starts_with(&self.keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::ClientAddress;

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
        let bob = caller(TokenRole::Editor);
        assert!(bob.edits_limit("team-a/login", "team-a:login:"));
        assert!(!bob.edits_limit("team-b/login", "team-a:login:"));
        assert!(!bob.edits_limit("team-a/login", "team-"));
        assert!(bob.supports_key(Some("team-a/login"), "team-a:x"));
        assert!(!bob.supports_key(None, "team-a:x"));
        assert!(!bob.supports_key(Some("team-a/login"), "team-b:x"));
        assert!(!bob.administers());
        assert!(!caller(TokenRole::Support).edits_limit("team-a/login", "team-a:"));
        assert!(!caller(TokenRole::Viewer).supports_key(Some("team-a/login"), "team-a:x"));
        assert!(!caller(TokenRole::Metrics).reads());
    }
}
