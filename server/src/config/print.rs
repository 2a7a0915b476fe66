//! `Config` → TOML, for `--check-config`.
//!
//! Here: one line per setting, under the names and units of a `--config` file, so that the output
//! is itself such a file with the same settings. Not here: parsing (`source`).
//!
//! No setting is a secret: paths are not, and passwords stay in the file of `-Y`. A future secret
//! must be printed as `"***"`.

use std::fmt::Write;
use std::path::Path;

use toml::Value;

use super::{Config, LogFormat};

impl Config {
    /// The effective configuration as a `--config` file. It begins with the warnings, as comments.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut page = Page(String::new());
        for warning in &self.warnings {
            // A word may contain a line end, which would end the comment.
            page.line(&format!("# {}", warning.replace(char::is_control, " ")));
        }
        self.print_listening(&mut page);
        self.print_items(&mut page);
        self.print_clients(&mut page);
        self.print_http(&mut page);
        if let Some(cluster) = &self.cluster {
            cluster.print(&mut page);
        }
        self.print_process(&mut page);
        page.0
    }

    fn print_listening(&self, page: &mut Page) {
        match &self.unix_socket {
            Some(socket) => {
                page.path("unix_socket", Some(&socket.path));
                page.set("unix_mask", format!("{:o}", socket.mask));
            }
            None if self.listen.is_empty() => page.set("port", 0),
            None => {
                let addresses: Vec<_> = self.listen.iter().map(ToString::to_string).collect();
                page.set("listen", addresses);
            }
        }
        if let Some(path) = &self.port_file {
            let path = path.display().to_string().replace(char::is_control, " ");
            page.line(&format!("# MEMCACHED_PORT_FILENAME={path}"));
        }
        page.set("listen_backlog", i64::from(self.backlog));
    }

    fn print_items(&self, page: &mut Page) {
        page.set("memory_limit", count(self.memory_bytes >> 20));
        page.set("disable_evictions", !self.evict);
        page.set("max_item_size", count(self.item_bytes_max as u64));
        page.path("memory_file", self.snapshot_file.as_deref());
        let interval = self.snapshot_interval.map_or(0, |interval| interval.as_secs());
        page.set("snapshot_interval", count(interval));
        page.set("disable_cas", !self.cas);
        page.set("enable_largepages", self.large_pages);
        page.set("lock_memory", self.lock_memory);
    }

    fn print_clients(&self, page: &mut Page) {
        page.set("conn_limit", count(self.connections_max as u64));
        page.set("threads", count(self.threads as u64));
        page.set("max_reqs_per_event", count(self.requests_per_event as u64));
        let mut options = vec![
            format!("idle_timeout={}", self.idle_timeout.map_or(0, |idle| idle.as_secs())),
            if self.connections_fast { "maxconns_fast" } else { "no_maxconns_fast" }.to_owned(),
            format!("watcher_logbuf_size={}", self.watcher_buffer_bytes >> 10),
        ];
        options.extend(self.hashpower.map(|power| format!("hashpower={power}")));
        if let Some(tls) = self.http.as_ref().and_then(|http| http.tls.as_ref()) {
            options.push(format!("ssl_chain_cert={}", tls.certificates.display()));
            options.push(format!("ssl_key={}", tls.key.display()));
        }
        page.set("extended", options);
        page.path("auth_file", self.auth_file.as_deref());
        page.path("limits", self.limits_file.as_deref());
        page.path("limits_store", self.limits_store.as_deref());
        page.set("enable_shutdown", self.shutdown_command);
        page.path("admin_socket", self.admin_socket.as_deref());
        page.set("admin_loopback", self.admin_loopback);
        page.set("disable_flush_all", !self.flush_all);
        page.set("disable_dumping", !self.dumping);
        page.set("disable_watch", !self.watching);
        if self.detail_enabled {
            page.set("prefix_delimiter", char::from(self.prefix_delimiter).to_string());
        }
    }

    fn print_http(&self, page: &mut Page) {
        let Some(http) = &self.http else { return page.set("http", "off") };
        if http.is_named {
            page.set("http", http.address.to_string());
        } else {
            page.line(&format!("# http = \"{}\", unless it is taken", http.address));
        }
        page.set("http_tls", http.tls.is_some());
        if !http.hosts.is_empty() {
            page.set("http_host", http.hosts.clone());
        }
        page.set("http_insecure", http.insecure);
        page.path("tokens", http.tokens.as_deref());
        page.set("recorder", count(http.recorder_bytes as u64));
    }

    fn print_process(&self, page: &mut Page) {
        page.set("daemon", self.daemon);
        if let Some(user) = &self.user {
            page.set("user", user.as_str());
        }
        page.path("pidfile", self.pidfile.as_deref());
        page.set("enable_coredumps", self.coredumps);
        page.set("verbose", i64::from(self.log_level.verbosity()));
        let format = match self.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        };
        page.set("log_format", format);
        page.set("key_display", self.key_display.word());
    }
}

/// The text of the file.
pub(super) struct Page(String);

impl Page {
    pub(super) fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    pub(super) fn set(&mut self, field: &str, value: impl Into<Value>) {
        writeln!(self.0, "{field} = {}", value.into()).expect("a String takes every write");
    }

    pub(super) fn path(&mut self, field: &str, path: Option<&Path>) {
        if let Some(path) = path {
            self.set(field, path.to_string_lossy().into_owned());
        }
    }
}

/// TOML numbers are signed; every count here is bounded far below the maximum.
pub(super) fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
