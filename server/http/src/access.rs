//! The right to send a request: the names under which the listener is known, and the roles of
//! tokens.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::caller::{Caller, ClientAddress};
use crate::problem::Problem;
use crate::sessions::{SESSION_LIFE, Sessions, WrongTokens, digest};
use crate::tokens::{TokenRole, Tokens};
use crate::traffic::TlsFigures;

/// The target of log lines that tell who did what. They pass at every log level.
pub const AUDIT: &str = "tollgate::audit";
/// The front of the cookie's name. The port follows: browsers send a cookie to all ports of a host,
/// and each server has sessions of its own.
const COOKIE: &str = "tollgate_session";

/// The right with which a request came, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Credential {
    /// None was needed.
    Anyone,
    /// The SHA-256 of a token.
    Token([u8; 32]),
    /// The SHA-256 of the id of a session.
    Session([u8; 32]),
}

/// The rules of access. Everyone is an admin without tokens; the server then listens on loopback.
#[derive(Debug, Default)]
pub struct Access {
    /// Names accepted in `Host` besides `localhost` and addresses.
    hosts: Vec<String>,
    tokens: Option<ArcSwap<Tokens>>,
    /// Whether cookies are for TLS only.
    has_tls: bool,
    sessions: Mutex<Sessions>,
    wrong_tokens: Mutex<WrongTokens>,
    /// Wrong tokens since the start.
    failures: AtomicU64,
    /// The figures of the listener's TLS, if it has TLS.
    tls: Option<Arc<TlsFigures>>,
}

impl Access {
    /// Creates rules. `hosts` are the names accepted in `Host` besides `localhost` and addresses;
    /// `has_tls` says whether the listener serves TLS.
    #[must_use]
    pub fn new(hosts: Vec<String>, tokens: Option<Tokens>, has_tls: bool) -> Self {
        let tokens = tokens.map(|tokens| ArcSwap::from(Arc::new(tokens)));
        Self { hosts, tokens, has_tls, ..Self::default() }
    }

    /// Shows the figures of the listener's TLS among the metrics.
    #[must_use]
    pub fn with_tls(self, tls: Arc<TlsFigures>) -> Self {
        Self { tls: Some(tls), ..self }
    }

    /// Returns the figures of the listener's TLS, if it has TLS.
    pub(crate) fn tls(&self) -> Option<&TlsFigures> {
        self.tls.as_deref()
    }

    /// Returns the number of wrong tokens since the start.
    pub(crate) fn wrong_tokens(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Replaces the tokens, if there were tokens at the start. Sessions of tokens that are gone
    /// end.
    pub fn set_tokens(&self, tokens: Tokens) {
        if let Some(current) = &self.tokens {
            let count = tokens.len();
            current.store(Arc::new(tokens));
            tracing::info!(target: AUDIT, by = "-", via = "file", count, "tokens read");
        }
    }

    /// Returns whether requests need a token.
    pub(crate) fn has_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Returns the sender of a request, by its token (`Authorization: Bearer`) or else by the
    /// cookie of its session. Refuses with 401 where neither is valid, and with 429 the tokens of
    /// an address that sent too many wrong ones.
    pub(crate) fn caller(
        &self,
        headers: &HeaderMap,
        address: ClientAddress,
    ) -> Result<Caller, Problem> {
        let Some(tokens) = &self.tokens else { return Ok(Caller::anyone(address)) };
        let tokens = tokens.load();
        if headers.contains_key(header::AUTHORIZATION) {
            let token = bearer(headers).unwrap_or_default();
            return self.check_token(&tokens, token, ("api", address));
        }
        let id = self.session_id(headers);
        let now = Instant::now();
        let digest = id.and_then(|id| lock(&self.sessions).find(id, now).map(|s| s.token_digest));
        let line = digest.and_then(|digest| tokens.find_digest(&digest));
        let line = line.ok_or_else(|| {
            let detail = "send a token: Authorization: Bearer tg_…";
            Problem::new(StatusCode::UNAUTHORIZED, detail)
        })?;
        Ok(Caller::of(line, address, true))
    }

    /// Returns the right with which a request came, for [`Access::admits`].
    pub(crate) fn credential(&self, headers: &HeaderMap) -> Credential {
        if self.tokens.is_none() {
            return Credential::Anyone;
        }
        if headers.contains_key(header::AUTHORIZATION) {
            return Credential::Token(digest(bearer(headers).unwrap_or_default()));
        }
        Credential::Session(digest(self.session_id(headers).unwrap_or_default()))
    }

    /// Returns whether a right is still one of the role `role` or above. Counts nothing.
    pub(crate) fn admits(&self, credential: &Credential, role: TokenRole) -> bool {
        let Some(tokens) = &self.tokens else { return true };
        let tokens = tokens.load();
        let token_digest = match credential {
            Credential::Anyone => return false,
            Credential::Token(digest) => Some(*digest),
            Credential::Session(id) => {
                let sessions = lock(&self.sessions);
                sessions.find_digest(id, Instant::now()).map(|session| session.token_digest)
            }
        };
        let line = token_digest.and_then(|digest| tokens.find_digest(&digest));
        line.is_some_and(|line| line.role >= role)
    }

    /// Begins a session of the UI for a token and returns its id, for [`Access::cookie`].
    pub(crate) fn login(&self, token: &str, address: ClientAddress) -> Result<String, Problem> {
        let Some(tokens) = &self.tokens else {
            let detail = "no login is needed: the server runs without --tokens";
            return Err(Problem::new(StatusCode::CONFLICT, detail));
        };
        let caller = self.check_token(&tokens.load(), token, ("ui", address))?;
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(|error| {
            let detail = format!("the system has no random numbers: {}", io::Error::other(error));
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })?;
        let id = lock(&self.sessions).begin(digest(token), random, Instant::now());
        audit_login(&caller.name, "ui", address, "login");
        Ok(id)
    }

    /// Ends the session of a request, if it has one. The reply should carry
    /// [`Access::ended_cookie`].
    pub(crate) fn logout(&self, headers: &HeaderMap, address: ClientAddress) {
        let Some(id) = self.session_id(headers) else { return };
        let ended = lock(&self.sessions).end(id);
        if let (Some(session), Some(tokens)) = (ended, &self.tokens) {
            let tokens = tokens.load();
            let line = tokens.find_digest(&session.token_digest);
            audit_login(line.map_or("-", |line| &line.name), "ui", address, "logout");
        }
    }

    /// The `Set-Cookie` of a session; `headers` are those of the request.
    pub(crate) fn cookie(&self, headers: &HeaderMap, id: &str) -> HeaderValue {
        self.cookie_line(headers, id, SESSION_LIFE.as_secs())
    }

    /// The `Set-Cookie` that removes the cookie.
    pub(crate) fn ended_cookie(&self, headers: &HeaderMap) -> HeaderValue {
        self.cookie_line(headers, "", 0)
    }

    fn cookie_line(&self, headers: &HeaderMap, id: &str, age_s: u64) -> HeaderValue {
        let name = cookie_name(headers);
        let secure = if self.has_tls { "; Secure" } else { "" };
        let line =
            format!("{name}={id}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict{secure}");
        // Ids are base64 and the name ends in digits.
        HeaderValue::from_str(&line).unwrap_or_else(|_| HeaderValue::from_static(COOKIE))
    }

    /// The id in the cookie of a request.
    fn session_id<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        self.tokens.as_ref()?;
        let name = cookie_name(headers);
        let cookies = headers.get_all(header::COOKIE).into_iter();
        cookies
            .filter_map(|line| line.to_str().ok())
            .flat_map(|line| line.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .find(|(found, _)| *found == name)
            .map(|(_, id)| id)
    }

    /// The sender with this token. Counts wrong ones.
    fn check_token(
        &self,
        tokens: &Tokens,
        token: &str,
        (via, address): (&str, ClientAddress),
    ) -> Result<Caller, Problem> {
        let (network, now) = (address.network(), Instant::now());
        if let Some(left) = lock(&self.wrong_tokens).refused_for(network, now) {
            let detail = "too many wrong tokens from this address: try again in a minute";
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
            return Err(Problem { retry_s: Some(left.as_secs() + 1), ..problem });
        }
        if let Some(line) = tokens.find(token) {
            return Ok(Caller::of(line, address, false));
        }
        lock(&self.wrong_tokens).count(network, now);
        self.failures.fetch_add(1, Relaxed);
        audit_login("-", via, address, "failed login");
        Err(Problem::new(StatusCode::UNAUTHORIZED, "the token is not in the tokens file"))
    }

    /// Refuses a write that a page of another site makes a browser send.
    pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("-"));
        let (site, origin) = (text(HeaderName::from_static(FETCH_SITE)), text(header::ORIGIN));
        let origin_host = origin.and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        let is_same = match (site, origin) {
            (Some("same-origin" | "none"), _) | (None, None) => true,
            _ => match (origin_host, text(header::HOST)) {
                (Some(origin), Some(host)) => origin.eq_ignore_ascii_case(host),
                _ => false,
            },
        };
        if is_same {
            return Ok(());
        }
        let detail = "the request comes from a page of another site: open the server's own pages";
        Err(Problem::new(StatusCode::FORBIDDEN, detail))
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
    pub(crate) fn may_read_metrics(
        &self,
        headers: &HeaderMap,
        address: ClientAddress,
    ) -> Result<(), Problem> {
        if !self.tokens.as_ref().is_some_and(|tokens| tokens.load().guards_metrics()) {
            return Ok(());
        }
        match self.caller(headers, address)?.role {
            role if role.reads_metrics() => Ok(()),
            role => {
                let detail = format!("the role {role} does not read metrics");
                Err(Problem::new(StatusCode::FORBIDDEN, detail))
            }
        }
    }
}

/// The header with which browsers tell where a request comes from.
const FETCH_SITE: &str = "sec-fetch-site";

/// Logs a login or logout; `by` is the name of the token, `-` for a wrong one. Audit lines give all
/// texts as strings, so that each is quoted and none can look like another field.
fn audit_login(by: &str, via: &str, address: ClientAddress, what: &str) {
    let address = address.0.map(|address| address.to_string());
    tracing::info!(target: AUDIT, by, via, address, "{what}");
}

/// The value of a mutex; a panic elsewhere leaves these tables whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The name of the session's cookie: it has the port of `Host`, if there is one.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.strip_prefix(name_of(host)).and_then(|rest| rest.strip_prefix(':')) {
        Some(port) if !port.is_empty() => format!("{COOKIE}_{port}"),
        _ => COOKIE.to_owned(),
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

    use super::*;
    use crate::sessions::WRONG_TOKENS_MAX;
    use crate::tokens::{TokenRole, new_token};

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).expect("the test writes header values");
        HeaderMap::from_iter([(name, value)])
    }

    #[test]
    fn only_known_names_are_accepted_as_host() {
        let access = Access::new(vec!["tollgate.example".to_owned()], None, false);
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
            Access::new(Vec::new(), Some(tokens), true)
        };
        let open = with(&line("a", "viewer", &other.1));
        assert_eq!(open.may_read_metrics(&HeaderMap::new(), ClientAddress::default()), Ok(()));
        let guarded =
            with(&[line("a", "check", &other.1), line("b", "metrics", &scraper.1)].concat());
        let status = |access: &Access, value: &str| {
            let sent = headers(header::AUTHORIZATION, value);
            access
                .may_read_metrics(&sent, ClientAddress::default())
                .map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(status(&guarded, &format!("Bearer {}", scraper.0)), Ok(()));
        assert_eq!(status(&guarded, &format!("bearer  {}", scraper.0)), Ok(()));
        assert_eq!(status(&guarded, &format!("Bearer {}", other.0)), Err(403));
        assert_eq!(status(&guarded, "Bearer tg_wrong"), Err(401));
        assert_eq!(status(&guarded, &format!("Basic {}", scraper.0)), Err(401));
        let bare = guarded.may_read_metrics(&HeaderMap::new(), ClientAddress::default());
        assert_eq!(bare.map_err(|problem| problem.status.as_u16()), Err(401));
    }

    fn one_token(role: &str) -> (Access, String) {
        let (token, hex) = new_token([1; 32]);
        let tokens = Tokens::parse(Path::new("tokens"), &format!("alice {role} {hex} keys=a:\n"));
        (Access::new(Vec::new(), Some(tokens.expect("it is well formed")), true), token)
    }

    #[test]
    fn a_session_is_its_token_until_either_ends() {
        let (access, token) = one_token("support");
        let here = ClientAddress::new(IpAddr::from([127, 0, 0, 1]));
        let id = access.login(&token, here).expect("the token is right");
        let asked = headers(header::HOST, "localhost:31211");
        let line = access.cookie(&asked, &id);
        let line = line.to_str().expect("it is ASCII");
        let (pair, attributes) = line.split_once("; ").expect("it has attributes");
        assert_eq!(pair, format!("tollgate_session_31211={id}"));
        assert_eq!(attributes, "Max-Age=43200; Path=/; HttpOnly; SameSite=Strict; Secure");
        let mut sent = asked.clone();
        let value = HeaderValue::from_str(&format!("a=b; {pair}; c=d")).expect("a header value");
        sent.insert(header::COOKIE, value);
        let caller = access.caller(&sent, here).expect("the session runs");
        assert_eq!((caller.name.as_str(), caller.role), ("alice", TokenRole::Support));
        assert!(caller.has_session && caller.keys == "a:" && caller.address == here);
        // The session is of this port.
        let mut elsewhere = sent.clone();
        elsewhere.insert(header::HOST, HeaderValue::from_static("localhost:31212"));
        assert!(access.caller(&elsewhere, here).is_err());
        let other = format!("bob admin {}\n", new_token([2; 32]).1);
        access.set_tokens(Tokens::parse(Path::new("tokens"), &other).expect("it is well formed"));
        assert!(access.caller(&sent, here).is_err(), "the token is gone");
        let (access, token) = one_token("viewer");
        let id = access.login(&token, here).expect("the token is right");
        let sent = headers(header::COOKIE, &format!("tollgate_session={id}"));
        assert!(access.caller(&sent, here).is_ok());
        access.logout(&sent, here);
        let refused = access.caller(&sent, here).expect_err("the session has ended");
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn wrong_tokens_lock_their_address_only() {
        let (access, token) = one_token("viewer");
        let here = ClientAddress::new(IpAddr::from([10, 0, 0, 1]));
        let status = |token: &str, address| {
            let sent = headers(header::AUTHORIZATION, &format!("Bearer {token}"));
            access.caller(&sent, address).map_err(|problem| problem.status.as_u16()).err()
        };
        assert_eq!(status(&token, here), None);
        for _ in 0..WRONG_TOKENS_MAX {
            assert_eq!(status("tg_wrong", here), Some(401));
        }
        assert_eq!(status("tg_wrong", here), Some(429));
        assert_eq!(status(&token, here), Some(429));
        assert_eq!(access.login(&token, here).map_err(|p| p.retry_s.is_some()), Err(true));
        assert_eq!(status(&token, ClientAddress::default()), None);
    }

    #[test]
    fn writes_of_other_sites_are_refused() {
        for (pairs, is_right) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin"), ("origin", "http://a.example")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("sec-fetch-site", "same-site"), ("origin", "http://b.example")], false),
            (&[("origin", "http://a.example:1")], true),
            (&[("origin", "HTTP://A.example:1")], true),
            (&[("origin", "http://a.example")], false),
            (&[("origin", "null")], false),
            (&[("origin", "")], false),
        ] {
            let pairs = pairs.iter().chain(&[("host", "a.example:1")]);
            let sent = pairs.map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let sent: HeaderMap = sent.collect();
            for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH] {
                assert_eq!(Access::check_origin(&method, &sent).is_ok(), is_right, "{sent:?}");
            }
            assert_eq!(Access::check_origin(&Method::GET, &sent), Ok(()));
        }
    }
}
