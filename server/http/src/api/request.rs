//! A request of the API: its sender, the variables of its path, its query, version and body.
//!
//! Not here: bounds of the body (`body`), the role of a route (`api`).

use std::sync::Arc;
use std::{mem, str};

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Number;

use crate::app::App;
use crate::body::{self, BODY_BYTES_MAX};
use crate::caller::Caller;
use crate::host::{Actor, AdminHost, Via};
use crate::problem::Problem;
use crate::streams::StreamEnd;
use crate::tokens::TokenRole;

/// Maximum of counts, costs and versions: larger integers are not exact in JavaScript.
pub(super) const INTEGER_MAX: u64 = (1 << 53) - 1;
/// Integers that are written as floats are exact below this: from here on the next float, which the
/// parser may take, is an integer too.
const EXACT_END: f64 = 4_503_599_627_370_496.0;
/// The front of the `User-Agent` of this package's command line.
const CLI_AGENT: &str = "tollgate-cli/";

/// The sender and the route of a request that passed the check of its role.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    pub(super) caller: Caller,
    /// The path of the route with its variables in braces.
    pub(super) template: &'static str,
}

/// A request of the API.
pub(super) struct ApiRequest {
    pub(super) app: App,
    pub(super) caller: Caller,
    template: &'static str,
    parts: Parts,
    body: Body,
}

impl FromRequest<App> for ApiRequest {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let admitted = parts.extensions.remove::<Admitted>().ok_or_else(|| {
            Problem::new(StatusCode::FORBIDDEN, "the route does not check its sender")
        })?;
        let Admitted { caller, template } = admitted;
        Ok(Self { app: app.clone(), caller, template, parts, body })
    }
}

impl ApiRequest {
    pub(super) fn host(&self) -> &dyn AdminHost {
        &*self.app.host
    }

    /// The sender, as changes name it.
    pub(super) fn actor(&self) -> Actor {
        let agent = self.parts.headers.get(header::USER_AGENT);
        let is_cli = agent.is_some_and(|agent| agent.as_bytes().starts_with(CLI_AGENT.as_bytes()));
        let via = match (self.caller.has_session, is_cli) {
            (true, _) => Via::Ui,
            (false, true) => Via::Cli,
            (false, false) => Via::Api,
        };
        self.caller.actor(via)
    }

    /// Decodes a variable of the path.
    pub(super) fn bytes(&self, variable: &str) -> Result<Vec<u8>, Problem> {
        let segments = self.template.split('/').zip(self.parts.uri.path().split('/'));
        let is_it = |name: &str| {
            name.strip_prefix('{').and_then(|name| name.strip_suffix('}')) == Some(variable)
        };
        let found = segments.into_iter().find(|(name, _)| is_it(name)).map(|(_, text)| text);
        let value: Vec<u8> = percent_decode_str(found.unwrap_or_default()).collect();
        if value.is_empty() {
            let detail = format!("the path has no {variable}");
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        Ok(value)
    }

    /// Decodes a variable of the path that is text.
    pub(super) fn text(&self, variable: &str) -> Result<String, Problem> {
        String::from_utf8(self.bytes(variable)?).map_err(|_| not_text(variable))
    }

    /// Parses the query, which may have these parameters only.
    pub(super) fn query(&self, known: &[&'static str]) -> Result<ApiQuery, Problem> {
        ApiQuery::parse(self.parts.uri.query().unwrap_or_default(), known)
    }

    /// Returns the version that the request replaces: `If-Match: "7"`, or `None` for the creation
    /// of something, `If-None-Match: *`.
    pub(super) fn version(&self) -> Result<Option<u64>, Problem> {
        version(&self.parts.headers)
    }

    /// Returns the version of something that must exist: `If-Match: "7"`.
    pub(super) fn existing_version(&self) -> Result<u64, Problem> {
        self.version()?.ok_or_else(|| {
            let detail = "send the version that you read: If-Match: \"7\"";
            Problem::new(StatusCode::BAD_REQUEST, detail)
        })
    }

    /// Returns whether the request has a condition on the version.
    pub(super) fn has_version(&self) -> bool {
        let headers = &self.parts.headers;
        headers.contains_key(header::IF_MATCH) || headers.contains_key(header::IF_NONE_MATCH)
    }

    /// Refuses a sender whose role is below `role`.
    pub(super) fn require(&self, role: TokenRole) -> Result<(), Problem> {
        self.caller.require(role)
    }

    /// Reads the body as JSON.
    pub(super) async fn json<T: DeserializeOwned>(&mut self) -> Result<T, Problem> {
        self.must_have_kind(&["application/json"])?;
        let bytes = body::read(mem::take(&mut self.body), BODY_BYTES_MAX).await?;
        parse_object(&bytes)
    }

    /// Reads the body as text of one of these media types.
    pub(super) async fn plain(
        &mut self,
        kinds: &[&str],
        bytes_max: usize,
    ) -> Result<String, Problem> {
        self.must_have_kind(kinds)?;
        let bytes = body::read(mem::take(&mut self.body), bytes_max).await?;
        String::from_utf8(bytes.into()).map_err(|_| not_text("body"))
    }

    /// The end of a stream that a viewer reads.
    pub(super) fn stream_end(&self) -> StreamEnd {
        let listener = self.parts.extensions.get().cloned().unwrap_or_default();
        let access = Arc::clone(&self.app.access);
        let credential = access.credential(&self.parts.headers);
        StreamEnd::new(listener, access, credential, TokenRole::Viewer)
    }

    fn must_have_kind(&self, kinds: &[&str]) -> Result<(), Problem> {
        let sent = self.parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = sent.unwrap_or_default().split(';').next().unwrap_or_default().trim();
        if kinds.iter().any(|known| known.eq_ignore_ascii_case(kind)) {
            return Ok(());
        }
        let detail = format!("send the body with Content-Type: {}", kinds.join(" or "));
        Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
    }
}

/// An integer in a body. JSON has one kind of numbers, so `7.0` is one too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BodyInteger(pub(super) u64);

impl<'de> Deserialize<'de> for BodyInteger {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let number = Number::deserialize(source)?;
        let whole = || {
            let is_exact = |float: &f64| float.fract() == 0.0 && *float < EXACT_END;
            let float = number.as_f64().filter(is_exact)?;
            // A zero may have a sign.
            format!("{:.0}", float + 0.0).parse().ok()
        };
        number.as_u64().or_else(whole).map(Self).ok_or_else(|| {
            D::Error::custom(format!("{number} is no integer from 0 to {INTEGER_MAX}"))
        })
    }
}

/// Parses a JSON object. serde would read the fields of a struct from an array too.
fn parse_object<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(bad("the body must be a JSON object, {...}".to_owned()));
    }
    serde_json::from_slice(body)
        .map_err(|error| bad(format!("the body is not as expected: {error}")))
}

fn version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    match (text(header::IF_MATCH), text(header::IF_NONE_MATCH)) {
        (Some(tag), None) => {
            let digits = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let version = digits.and_then(|digits| decimal(digits, 0, INTEGER_MAX));
            version.map(Some).ok_or_else(|| {
                let detail = "If-Match is one ETag of this server, such as \"7\"";
                Problem::new(StatusCode::BAD_REQUEST, detail)
            })
        }
        (None, Some("*")) => Ok(None),
        (None, None) => {
            let detail = "send If-Match with the version that you read, or If-None-Match: * to \
                          create it";
            Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, detail))
        }
        (_, Some(_)) => {
            let detail = "send either If-Match with a version, or If-None-Match: *";
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        }
    }
}

/// A decimal number without a sign, within bounds.
fn decimal(text: &str, min: u64, max: u64) -> Option<u64> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|number| (min..=max).contains(number))
}

fn not_text(name: &str) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, format!("the {name} is not UTF-8"))
}

/// The parameters of a query, each at most once.
#[derive(Debug, Default)]
pub(super) struct ApiQuery {
    pairs: Vec<(&'static str, Vec<u8>)>,
}

impl ApiQuery {
    fn parse(query: &str, known: &[&'static str]) -> Result<Self, Problem> {
        let bad = |detail: String| Problem::new(StatusCode::BAD_REQUEST, detail);
        let mut pairs: Vec<(&'static str, Vec<u8>)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decode =
                |text: &str| -> Vec<u8> { percent_decode_str(&text.replace('+', " ")).collect() };
            let name = decode(name);
            let Some(name) = known.iter().find(|known| known.as_bytes() == name) else {
                let name = String::from_utf8_lossy(&name).into_owned();
                let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                return Err(bad(format!("no parameter {name:?} here; known are: {list}")));
            };
            if pairs.iter().any(|(other, _)| other == name) {
                return Err(bad(format!("the parameter {name} occurs twice")));
            }
            pairs.push((name, decode(value)));
        }
        Ok(Self { pairs })
    }

    /// Returns a parameter.
    pub(super) fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.pairs.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_slice())
    }

    /// Returns a parameter that is text. An empty one is as good as none.
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>, Problem> {
        let text = self.bytes(name).map(str::from_utf8).transpose().map_err(|_| not_text(name))?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// Returns a parameter that must be there.
    pub(super) fn needed(&self, name: &str) -> Result<&[u8], Problem> {
        self.bytes(name).filter(|value| !value.is_empty()).ok_or_else(|| {
            Problem::new(StatusCode::BAD_REQUEST, format!("the parameter {name} is missing"))
        })
    }

    /// Returns a number within bounds, or `default`.
    pub(super) fn number(
        &self,
        name: &str,
        min: u64,
        max: u64,
        default: u64,
    ) -> Result<u64, Problem> {
        let Some(value) = self.bytes(name) else { return Ok(default) };
        str::from_utf8(value).ok().and_then(|text| decimal(text, min, max)).ok_or_else(|| {
            let detail = format!("{name} is a number from {min} to {max}");
            Problem::new(StatusCode::BAD_REQUEST, detail)
        })
    }

    /// Returns whether a parameter is `true`; without a value it is too.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Problem> {
        self.choice(name, &[("true", true), ("false", false), ("", true)], false)
    }

    /// Returns the meaning of one of some words, or `default`.
    pub(super) fn choice<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, Problem> {
        let Some(value) = self.bytes(name) else { return Ok(default) };
        let found = words.iter().find(|(word, _)| word.as_bytes() == value);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> =
                words.iter().map(|(word, _)| *word).filter(|word| !word.is_empty()).collect();
            let detail = format!("{name} is one of: {}", words.join(", "));
            Problem::new(StatusCode::BAD_REQUEST, detail)
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_query_has_known_parameters_once() {
        let query = ApiQuery::parse("q=a%20b+c&n=7&dry_run&key=%ff", &["q", "n", "dry_run", "key"]);
        let query = query.expect("it is well formed");
        assert_eq!(query.text("q"), Ok(Some("a b c")));
        assert_eq!(query.number("n", 1, 9, 3), Ok(7));
        assert_eq!(query.flag("dry_run"), Ok(true));
        assert_eq!(query.bytes("key"), Some(&[0xff][..]));
        assert!(query.text("key").is_err() && query.number("n", 8, 9, 8).is_err());
        assert_eq!(query.number("m", 1, 9, 3), Ok(3));
        for bad in ["x=1", "q=1&q=2", "Q=1"] {
            assert!(ApiQuery::parse(bad, &["q"]).is_err(), "{bad}");
        }
        for bad in ["", "+7", "-1", "7.0", "1e3", "99999999999999999999", "0x7"] {
            let query = ApiQuery::parse(&format!("n={bad}"), &["n"]).expect("it is well formed");
            assert!(query.number("n", 0, INTEGER_MAX, 0).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_integer_of_a_body_may_be_written_as_a_float() {
        let of =
            |text: &str| serde_json::from_str::<BodyInteger>(text).map(|integer| integer.0).ok();
        for (text, integer) in [
            ("0", 0),
            ("-0.0", 0),
            ("7.0", 7),
            ("1e3", 1000),
            ("900719925474099.0", 900_719_925_474_099),
            ("9007199254740992", INTEGER_MAX + 1),
        ] {
            assert_eq!(of(text), Some(integer), "{text}");
        }
        for text in ["-1", "-1.0", "0.5", "1e300", "9007199254740991.0", "\"7\"", "null", "true"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn a_version_is_one_tag_or_none_at_all() {
        let of = |pairs: &[(header::HeaderName, &'static str)]| {
            let pairs = pairs.iter().cloned();
            let pairs = pairs.map(|(name, value)| (name, HeaderValue::from_static(value)));
            version(&pairs.collect()).map_err(|problem| problem.status.as_u16())
        };
        assert_eq!(of(&[(header::IF_MATCH, "\"7\"")]), Ok(Some(7)));
        assert_eq!(of(&[(header::IF_NONE_MATCH, "*")]), Ok(None));
        assert_eq!(of(&[]), Err(428));
        for tag in ["7", "\"x\"", "W/\"7\"", "*", "\"7\", \"8\"", "\"9007199254740992\"", "\""] {
            assert_eq!(of(&[(header::IF_MATCH, tag)]), Err(400), "{tag}");
        }
        assert_eq!(of(&[(header::IF_NONE_MATCH, "\"7\"")]), Err(400));
        assert_eq!(of(&[(header::IF_MATCH, "\"7\""), (header::IF_NONE_MATCH, "*")]), Err(400));
    }
}
