//! The requests of `tollgate limits` to the HTTP API, and the printing of their replies.
//!
//! Not here: the command line (`api_limits`), the conversation (`admin_client`), the text of tables
//! (`api_show`).

use std::io::{self, Read as _, Write};
use std::path::Path;

use hyper::Method;
use serde_json::{Value, json};
use tollgate_limits::LimitsError;

use super::admin_client::{AdminBody, AdminClient, AdminVersion, encode};
use super::api_limits::{ChangeFlags, KeyFlags, LimitsVerb};
use super::{CliError, api_show};

/// Limits of a page, and overrides of a page: as many as a server gives.
const PAGE: usize = 1000;
/// Maximum size of a file, in bytes: as many as a server takes.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// The requests of `tollgate limits` to one server.
pub(super) struct LimitsApi {
    pub(super) client: AdminClient,
    pub(super) json: bool,
}

impl LimitsApi {
    pub(super) fn run(&self, verb: &LimitsVerb, out: &mut impl Write) -> Result<(), CliError> {
        match verb {
            LimitsVerb::List { text, source, owner } => {
                let parameters = [("q", text), ("source", source), ("owner", owner)];
                self.list(&parameters, out)
            }
            LimitsVerb::Get { name } => {
                let reply = self.client.get(&limit_path(name))?;
                let value = reply.json();
                let toml = api_show::clean_lines(value["toml"].as_str().unwrap_or_default());
                self.print(out, reply.text(), &toml)
            }
            LimitsVerb::History { name } => {
                let reply =
                    self.client.get(&format!("{}/history?limit={PAGE}", limit_path(name)))?;
                let value = reply.json();
                let text = api_show::changes(api_show::entries(&value, "changes"));
                self.print(out, reply.text(), &text)
            }
            LimitsVerb::Match { key } => {
                let reply = self.client.get(&format!("/api/v1/match?key={}", encode(key)))?;
                self.print(out, reply.text(), &api_show::matched(&reply.json()))
            }
            LimitsVerb::Report { name, minutes } => self.report(name, *minutes, out),
            LimitsVerb::Try { file, minutes, cluster } => {
                self.try_limit(file, *minutes, *cluster, out)
            }
            LimitsVerb::Export => {
                let reply = self.client.get("/api/v1/limits.toml")?;
                let text = api_show::clean_lines(reply.text());
                self.print(out, &json!({ "toml": reply.text() }).to_string(), &text)
            }
            LimitsVerb::Allow(key) => self.put_override(key, "allow", out),
            LimitsVerb::Block(key) => self.put_override(key, "block", out),
            LimitsVerb::Override { key, policy: Some(policy), .. } => {
                self.put_override(key, policy, out)
            }
            LimitsVerb::Override { key, policy: None, .. } => self.remove_override(key, out),
            LimitsVerb::Put { file, before, dry_run, adopt, change } => {
                self.put(file, before.as_deref(), (*dry_run, *adopt), change, out)
            }
            LimitsVerb::Remove { name, change } => self.remove(name, change, out),
            LimitsVerb::Revert { name, seq, if_version } => {
                let path = limit_path(name);
                let version = self.version(&path, *if_version)?;
                let body = json!({ "seq": seq });
                self.change(&Method::POST, &format!("{path}/revert"), version, body, out)
            }
            LimitsVerb::Import { file, replace, dry_run } => {
                self.import(file, *replace, *dry_run, out)
            }
        }
    }

    fn put(
        &self,
        file: &Path,
        before: Option<&str>,
        (dry_run, adopt): (bool, bool),
        change: &ChangeFlags,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let (name, toml) = one_limit(file)?;
        let path = limit_path(&name);
        let query = if dry_run { "?dry_run=true" } else { "" };
        let body = json!({ "toml": toml, "before": before, "note": change.note, "adopt": adopt });
        let version = self.version(&path, change.if_version)?;
        self.change(&Method::PUT, &format!("{path}{query}"), version, body, out)
    }

    fn remove(
        &self,
        name: &str,
        change: &ChangeFlags,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let path = limit_path(name);
        let version = match self.version(&path, change.if_version)? {
            AdminVersion::Is(0) => {
                return Err(CliError::Input(format!("there is no limit {name}")));
            }
            version => version,
        };
        let path = format!("{path}?note={}", encode(change.note.as_deref().unwrap_or_default()));
        self.change(&Method::DELETE, &path, version, Value::Null, out)
    }

    fn import(
        &self,
        file: &Path,
        replace: bool,
        dry_run: bool,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let mode = if replace { "replace" } else { "merge" };
        let path = format!("/api/v1/limits.toml?mode={mode}&dry_run={dry_run}");
        let body = AdminBody::Toml(read(file)?);
        let reply = self.client.send(&Method::PUT, &path, AdminVersion::Any, Some(body))?;
        let plan = api_show::fields(&reply.json(), &["put", "moved", "removed", "same"]);
        self.print(out, reply.text(), &plan)
    }

    fn print(&self, out: &mut impl Write, json: &str, text: &str) -> Result<(), CliError> {
        if self.json {
            return api_show::print_json(out, json);
        }
        out.write_all(text.as_bytes())?;
        Ok(())
    }

    /// The version that a change of the thing at `path` replaces.
    fn version(&self, path: &str, given: Option<u64>) -> Result<AdminVersion, CliError> {
        if let Some(version) = given {
            return Ok(AdminVersion::Is(version));
        }
        let present = self.client.find(path)?;
        let version = present.and_then(|reply| reply.json()["version"].as_u64());
        Ok(AdminVersion::Is(version.unwrap_or(0)))
    }

    fn change(
        &self,
        method: &Method,
        path: &str,
        version: AdminVersion,
        body: Value,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let body = (!body.is_null()).then_some(AdminBody::Json(body));
        let reply = self.client.send(method, path, version, body)?;
        self.print(out, reply.text(), "ok\n")
    }

    /// Prints all limits that fit the parameters, page by page.
    fn list(
        &self,
        parameters: &[(&str, &Option<String>)],
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let mut path = format!("/api/v1/limits?limit={PAGE}");
        for (name, value) in parameters {
            if let Some(value) = value {
                path.extend(["&", name, "=", &encode(value)]);
            }
        }
        let (mut limits, mut page) = (Vec::new(), path.clone());
        loop {
            let reply = self.client.get(&page)?.json();
            limits.extend_from_slice(api_show::entries(&reply, "limits"));
            let Some(next) = reply["next"].as_str() else { break };
            page = format!("{path}&after={}", encode(next));
        }
        let columns =
            ["name", "policy", "source", "owner", "version", "minute.allowed", "minute.denied"];
        let text = api_show::table(&columns, &limits);
        self.print(out, &Value::Array(limits).to_string(), &text)
    }

    fn report(&self, name: &str, minutes: u64, out: &mut impl Write) -> Result<(), CliError> {
        let reply = self.client.get(&format!("{}/report?minutes={minutes}", limit_path(name)))?;
        let value = reply.json();
        let names = [
            "limit",
            "minutes",
            "allowed",
            "denied",
            "shadow_denied",
            "near",
            "units",
            "active_keys",
        ];
        let mut text = api_show::fields(&value, &names);
        for (title, list) in
            [("denied", "top_denied"), ("shadow denied", "top_shadow"), ("requests", "top_taken")]
        {
            let keys = api_show::entries(&value, list);
            if !keys.is_empty() {
                text.extend(["\nkeys by ", title, "\n"]);
                text.push_str(&api_show::table(&["key", "rate", "rate_at_least"], keys));
            }
        }
        self.print(out, reply.text(), &text)
    }

    fn try_limit(
        &self,
        file: &Path,
        minutes: u64,
        cluster: bool,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let (name, toml) = one_limit(file)?;
        let scope = if cluster { "cluster" } else { "node" };
        let body = AdminBody::Json(json!({ "toml": toml, "minutes": minutes, "scope": scope }));
        let path = format!("{}/try", limit_path(&name));
        let reply = self.client.send(&Method::POST, &path, AdminVersion::Any, Some(body))?;
        let value = reply.json();
        let names =
            ["span_ms", "keys", "requests", "scale", "too_few", "fidelity", "parents", "missing"];
        let mut text = api_show::fields(&value, &names);
        let shares: Vec<Value> = ["now", "then"]
            .map(|name| json!({ "limit": name, "denied": value[name]["denied"], "error": value[name]["standard_error"] }))
            .into();
        text.extend(["\n", &api_show::table(&["limit", "denied", "error"], &shares)]);
        text.extend(["\n", &api_show::fields(&value, &["newly_denied", "newly_allowed"])]);
        self.print(out, reply.text(), &text)
    }

    /// The version of an override of the API; 0 if there is none.
    fn override_version(&self, flags: &KeyFlags) -> Result<u64, CliError> {
        let path = format!(
            "/api/v1/overrides?limit={}&q={}&n={PAGE}",
            encode(&flags.name),
            encode(&flags.key)
        );
        let mut skip = 0;
        loop {
            let reply = self.client.get(&format!("{path}&skip={skip}"))?.json();
            let page = api_show::entries(&reply, "overrides");
            let is_it = |row: &&Value| row["key"] == flags.key.as_str() && row["source"] == "api";
            if let Some(version) = page.iter().find(is_it).and_then(|row| row["version"].as_u64()) {
                return Ok(version);
            }
            if page.len() < PAGE {
                return Ok(0);
            }
            skip += page.len();
        }
    }

    fn put_override(
        &self,
        flags: &KeyFlags,
        policy: &str,
        out: &mut impl Write,
    ) -> Result<(), CliError> {
        let version = AdminVersion::Is(self.override_version(flags)?);
        let body = json!({ "policy": policy, "for_ms": flags.life_ms, "note": flags.note });
        self.change(&Method::PUT, &override_path(flags), version, body, out)
    }

    fn remove_override(&self, flags: &KeyFlags, out: &mut impl Write) -> Result<(), CliError> {
        let note = encode(flags.note.as_deref().unwrap_or_default());
        let path = format!("{}?note={note}", override_path(flags));
        let version = self.override_version(flags)?;
        if version == 0 {
            let detail = format!("{} has no override of the API for {}", flags.name, flags.key);
            return Err(CliError::Input(detail));
        }
        let version = AdminVersion::Is(version);
        self.change(&Method::DELETE, &path, version, Value::Null, out)
    }
}

fn limit_path(name: &str) -> String {
    format!("/api/v1/limits/{}", encode(name))
}

fn override_path(flags: &KeyFlags) -> String {
    format!("{}/overrides/{}", limit_path(&flags.name), encode(&flags.key))
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<String, CliError> {
    if file != Path::new("-") {
        let bytes = tollgate_limits::read(file)?;
        return String::from_utf8(bytes)
            .map_err(|_| CliError::Input(format!("{}: it is not UTF-8", file.display())));
    }
    let mut text = String::new();
    let count = io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    let count = count.map_err(|error| CliError::Input(format!("standard input: {error}")))?;
    if count as u64 > FILE_BYTES_MAX {
        return Err(CliError::Input(format!(
            "standard input has more than {FILE_BYTES_MAX} bytes"
        )));
    }
    Ok(text)
}

/// Reads the only limit of a file: its name and the text of the file.
fn one_limit(file: &Path) -> Result<(String, String), CliError> {
    let text = read(file)?;
    let wrong = |reason: String| CliError::Input(format!("{}: {reason}", file.display()));
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
    let limits = table.get("limit").and_then(toml::Value::as_array);
    match limits.map(Vec::as_slice) {
        Some([limit]) => match limit.get("name").and_then(toml::Value::as_str) {
            Some(name) if !name.is_empty() => Ok((name.to_owned(), text)),
            _ => Err(wrong("the limit has no name".to_owned())),
        },
        None | Some([]) => Err(LimitsError::Empty { path: file.to_owned() }.into()),
        Some(_) => Err(wrong("it has several limits: use tollgate limits import".to_owned())),
    }
}
