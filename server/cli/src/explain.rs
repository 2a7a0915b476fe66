//! `tollgate explain`: the reasons behind the verdict on a key, over the HTTP API.

use std::ffi::OsString;
use std::io::Write;

use tollgate::config::ConfigError;

use super::admin_client::{AdminClient, AdminFlags, encode};
use super::{CliError, Parsed, api_show, help_or, parse_words};

/// Show the reasons behind the verdict on a key, through the admin listener of a server; nothing is
/// charged
#[derive(Debug, Clone, PartialEq, Eq, clap::Parser)]
#[command(name = "tollgate explain", term_width = 100)]
pub struct ExplainRequest {
    /// The key
    #[arg(value_name = "KEY")]
    key: String,
    /// Cost of the attempt
    #[arg(value_name = "COST", default_value_t = 1)]
    cost: u64,
    #[command(flatten)]
    admin: AdminFlags,
}

/// Parses the words after `explain`.
pub(crate) fn parse(words: &[OsString]) -> Result<Parsed, ConfigError> {
    match parse_words::<ExplainRequest>(words) {
        Ok(request) => {
            request.admin.check()?;
            Ok(Parsed::Explain(request))
        }
        Err(error) => help_or(error, "write tollgate explain KEY [COST]"),
    }
}

impl ExplainRequest {
    /// Asks the server and prints the reasons on `out`.
    ///
    /// # Errors
    ///
    /// The server does not answer or refuses.
    pub fn run(&self, out: &mut impl Write) -> Result<(), CliError> {
        let client = AdminClient::new(&self.admin)?;
        let path = format!("/api/v1/explain?key={}&cost={}", encode(&self.key), self.cost);
        let reply = client.get(&path)?;
        if self.admin.json {
            return api_show::print_json(out, reply.text());
        }
        let value = reply.json();
        let verdict = api_show::fields(&value, &["allowed", "refused_by", "retry_ms", "value"]);
        out.write_all(verdict.as_bytes())?;
        if value["shadow_refused_by"].as_array().is_some_and(|names| !names.is_empty()) {
            let names = api_show::plain(&value["shadow_refused_by"]);
            writeln!(out, "in shadow   {names} would refuse it")?;
        }
        if let Some(limit) = value["ban"]["limit"].as_str() {
            let ends_ms = api_show::plain(&value["ban"]["ends_ms"]);
            writeln!(out, "banned      by {} for {ends_ms} ms", api_show::clean(limit))?;
        }
        writeln!(out)?;
        out.write_all(api_show::matched(&value["matched"]).as_bytes())?;
        let standings = api_show::entries(&value, "standings");
        if !standings.is_empty() {
            let columns = [
                "limit",
                "key",
                "policy",
                "shadow",
                "cost",
                "hold_ms",
                "verdict.remaining",
                "verdict.reset_ms",
                "owner",
                "copies",
                "fault",
            ];
            writeln!(out)?;
            out.write_all(api_show::table(&columns, standings).as_bytes())?;
        }
        Ok(())
    }
}
