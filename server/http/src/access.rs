//! The right to send a request: the names under which the listener is known, and the roles of
//! tokens.

use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, StatusCode, header};

use crate::problem::Problem;
use crate::tokens::{TokenRole, Tokens};

/// The rules of access. Everyone is an admin without tokens; the server then listens on loopback.
#[derive(Debug, Default)]
pub struct Access {
    /// Names accepted in `Host` besides `localhost` and addresses.
    hosts: Vec<String>,
    tokens: Option<ArcSwap<Tokens>>,
}

impl Access {
    /// Creates rules. `hosts` are the names accepted in `Host` besides `localhost` and addresses.
    #[must_use]
    pub fn new(hosts: Vec<String>, tokens: Option<Tokens>) -> Self {
        let tokens = tokens.map(|tokens| ArcSwap::from(Arc::new(tokens)));
        Self { hosts, tokens }
    }

    /// Replaces the tokens, if there were tokens at the start.
    pub fn set_tokens(&self, tokens: Tokens) {
        if let Some(current) = &self.tokens {
            current.store(Arc::new(tokens));
        }
    }

    /// Refuses a request whose `Host` is a name that this listener does not have: a web page whose
    /// name leads to this address (DNS rebinding) could send it from an operator's browser. An
    /// address cannot be rebound, and a client without `Host` is no browser.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        let host = host.to_str().unwrap_or_default();
        let name = name_of(host);
        let is_known = name.eq_ignore_ascii_case("localhost")
            || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        if is_known {
            return Ok(());
        }
        let detail =
            format!("the name {name} is not known here: start the server with --http-host");
        Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail))
    }

    /// Checks that the request may read metrics.
    pub(crate) fn may_read_metrics(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        let tokens = tokens.load();
        if !tokens.guards_metrics() {
            return Ok(());
        }
        match role_of(&tokens, headers)? {
            role if role.reads_metrics() => Ok(()),
            role => {
                let detail = format!("the role {role} does not read metrics");
                Err(Problem::new(StatusCode::FORBIDDEN, detail))
            }
        }
    }
}

/// The role of a request's token.
fn role_of(tokens: &Tokens, headers: &HeaderMap) -> Result<TokenRole, Problem> {
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim());
    let Some(token) = token else {
        let detail = "send a token: Authorization: Bearer tg_…";
        return Err(Problem::new(StatusCode::UNAUTHORIZED, detail));
    };
    match tokens.find(token) {
        Some(line) => Ok(line.role),
        None => Err(Problem::new(StatusCode::UNAUTHORIZED, "the token is not in the tokens file")),
    }
}

/// The host of `host` or `host:port`; an IPv6 address keeps its brackets.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use axum::http::HeaderValue;

    use super::*;
    use crate::tokens::new_token;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).expect("the test writes header values");
        HeaderMap::from_iter([(name, value)])
    }

    #[test]
    fn only_known_names_are_accepted_as_host() {
        let access = Access::new(vec!["tollgate.example".to_owned()], None);
        for (host, is_known) in [
            ("localhost", true),
            ("LocalHost:31211", true),
            ("127.0.0.1:31211", true),
            ("[::1]:31211", true),
            ("10.1.2.3", true),
            ("tollgate.example:80", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("tollgate.example.evil.example:31211", false),
            ("", false),
        ] {
            let checked = access.check_host(&headers(header::HOST, host));
            assert_eq!(checked.is_ok(), is_known, "{host}");
        }
        assert_eq!(access.check_host(&HeaderMap::new()), Ok(()));
    }

    #[test]
    fn metrics_need_a_token_where_one_has_the_role() {
        let (scraper, other) = (new_token([1; 32]), new_token([2; 32]));
        let line = |name: &str, role: &str, hex: &str| format!("{name} {role} {hex}\n");
        let with = |text: &str| {
            let tokens = Tokens::parse(Path::new("tokens"), text).expect("it is well formed");
            Access::new(Vec::new(), Some(tokens))
        };
        let open = with(&line("a", "viewer", &other.1));
        assert_eq!(open.may_read_metrics(&HeaderMap::new()), Ok(()));
        let guarded =
            with(&[line("a", "check", &other.1), line("b", "metrics", &scraper.1)].concat());
        let status = |access: &Access, value: &str| {
            let sent = headers(header::AUTHORIZATION, value);
            access.may_read_metrics(&sent).map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(status(&guarded, &format!("Bearer {}", scraper.0)), Ok(()));
        assert_eq!(status(&guarded, &format!("bearer  {}", scraper.0)), Ok(()));
        assert_eq!(status(&guarded, &format!("Bearer {}", other.0)), Err(403));
        assert_eq!(status(&guarded, "Bearer tg_wrong"), Err(401));
        assert_eq!(status(&guarded, &format!("Basic {}", scraper.0)), Err(401));
        assert_eq!(
            guarded.may_read_metrics(&HeaderMap::new()).map_err(|p| p.status.as_u16()),
            Err(401)
        );
    }
}
