//! The value of `-o`: memcached's list of extended options.
//!
//! Here: the names that are obeyed, accepted without effect, or refused. Not here: flags (`raw`).
//! Source: each name was tried on memcached 1.6.18, with and without a value; names that it refuses
//! are refused here with the same text.

use std::path::PathBuf;

/// Options without effect: they tune a mechanism that this server does not have. Their value is
/// optional.
const IGNORED: &[&str] = &[
    "modern",
    "no_modern",
    "track_sizes",
    "lru_crawler",
    "no_lru_crawler",
    "lru_maintainer",
    "no_lru_maintainer",
    "slab_reassign",
    "no_slab_reassign",
    "slab_automove",
    "slab_sizes",
    "no_chunked_items",
    "no_hashexpand",
    "inline_ascii_resp",
    "no_inline_ascii_resp",
    "drop_privileges",
    "no_drop_privileges",
    "resp_obj_mem_limit",
    "sock_cookie_id",
    "ext_drop_unread",
];

/// Options without effect for which memcached requires a value.
const IGNORED_WITH_VALUE: &[&str] = &[
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_chunk_max",
    "hash_algorithm",
    "tail_repair_time",
    "worker_logbuf_size",
    "read_buf_mem_limit",
    "ext_page_size",
    "ext_wbuf_size",
    "ext_threads",
    "ext_io_depth",
    "ext_item_size",
    "ext_item_age",
    "ext_low_ttl",
    "ext_recache_rate",
    "ext_compact_under",
    "ext_drop_under",
    "ext_max_sleep",
    "ext_max_frag",
];

/// Options that need TLS.
const TLS: &[&str] = &[
    "ssl_ca_cert",
    "ssl_verify_mode",
    "ssl_min_version",
    "ssl_keyformat",
    "ssl_ciphers",
    "ssl_wbuf_size",
    "ssl_session_cache",
    "ssl_kernel_tls",
];

/// Options that promise a feature this server does not have, each with the reason.
const REFUSED: &[(&str, &str)] = &[
    ("ext_path", "items are kept in memory only; leave it out"),
    ("proxy_config", "requests are not routed to other servers; leave it out"),
    ("proxy_arg", "requests are not routed to other servers; leave it out"),
    ("proxy_uring", "requests are not routed to other servers; leave it out"),
];

/// Maximum of `idle_timeout` in seconds: memcached stores it in 31 bits.
const IDLE_TIMEOUT_S_MAX: u64 = i32::MAX as u64;
/// Maximum of `watcher_logbuf_size` in kilobytes: one gigabyte.
const WATCHER_LOGBUF_KB_MAX: u64 = 1 << 20;

/// The options of one `-o`, or of several merged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extended {
    /// `idle_timeout`, in seconds; 0 disables it.
    pub(super) idle_timeout_s: Option<u64>,
    /// `maxconns_fast` or `no_maxconns_fast`.
    pub(super) maxconns_fast: Option<bool>,
    /// `hashpower`: initial size of the item table, as a power of two.
    pub(super) hashpower: Option<u8>,
    /// `watcher_logbuf_size`, in kilobytes.
    pub(super) watcher_logbuf_kb: Option<usize>,
    /// `ssl_chain_cert`: file of the admin listener's certificate and its chain.
    pub(super) ssl_chain_cert: Option<PathBuf>,
    /// `ssl_key`: file of the certificate's private key.
    pub(super) ssl_key: Option<PathBuf>,
    /// Names accepted without effect, each once, in the order of first occurrence.
    pub(super) ignored: Vec<String>,
}

impl Extended {
    /// Parses a comma-separated list. Empty parts are skipped, because templates leave commas
    /// behind.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            options.apply(part)?;
        }
        Ok(options)
    }

    /// Overwrites each option that `later` sets.
    pub(super) fn update(&mut self, later: Self) {
        self.idle_timeout_s = later.idle_timeout_s.or(self.idle_timeout_s);
        self.maxconns_fast = later.maxconns_fast.or(self.maxconns_fast);
        self.hashpower = later.hashpower.or(self.hashpower);
        self.watcher_logbuf_kb = later.watcher_logbuf_kb.or(self.watcher_logbuf_kb);
        self.ssl_chain_cert = later.ssl_chain_cert.or(self.ssl_chain_cert.take());
        self.ssl_key = later.ssl_key.or(self.ssl_key.take());
        for name in later.ignored {
            self.ignore(name);
        }
    }

    fn apply(&mut self, part: &str) -> Result<(), String> {
        let (name, value) = match part.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (part, None),
        };
        match name {
            "idle_timeout" => {
                self.idle_timeout_s = Some(number(name, value, 0, IDLE_TIMEOUT_S_MAX)?);
            }
            "maxconns_fast" => self.maxconns_fast = Some(true),
            "no_maxconns_fast" => self.maxconns_fast = Some(false),
            // 12 to 32: memcached's own bounds.
            "hashpower" => self.hashpower = Some(number(name, value, 12, 32)?),
            "watcher_logbuf_size" => {
                self.watcher_logbuf_kb = Some(number(name, value, 1, WATCHER_LOGBUF_KB_MAX)?);
            }
            "ssl_chain_cert" => self.ssl_chain_cert = Some(file(name, value)?),
            "ssl_key" => self.ssl_key = Some(file(name, value)?),
            _ if TLS.contains(&name) => {
                return Err(format!("{name}: TLS is not built yet; leave it out"));
            }
            _ if IGNORED.contains(&name) => self.ignore(name.to_owned()),
            _ if IGNORED_WITH_VALUE.contains(&name) => {
                if value.is_none_or(str::is_empty) {
                    return Err(format!("Missing {name} argument"));
                }
                self.ignore(name.to_owned());
            }
            _ => return Err(refusal(name, part)),
        }
        Ok(())
    }

    fn ignore(&mut self, name: String) {
        if !self.ignored.contains(&name) {
            self.ignored.push(name);
        }
    }
}

fn refusal(name: &str, part: &str) -> String {
    match REFUSED.iter().find(|(refused, _)| *refused == name) {
        Some((_, reason)) => format!("{name}: {reason}"),
        None => format!("Illegal suboption \"{part}\""),
    }
}

fn file(name: &str, value: Option<&str>) -> Result<PathBuf, String> {
    match value {
        None | Some("") => Err(format!("Missing {name} argument")),
        Some(path) => Ok(PathBuf::from(path)),
    }
}

fn number<T: TryFrom<u64>>(
    name: &str,
    value: Option<&str>,
    low: u64,
    high: u64,
) -> Result<T, String> {
    let value = value.ok_or_else(|| format!("Missing numeric argument for {name}"))?;
    let number = value.parse().ok().filter(|number| (low..=high).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("{name}={value}: expected a whole number from {low} to {high}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(written: &str, expected: &Extended) {
        assert_eq!(Extended::parse(written).as_ref(), Ok(expected), "{written}");
    }

    #[test]
    fn obeyed_names_set_their_option_and_the_last_wins() {
        check(
            "idle_timeout=30,no_maxconns_fast,hashpower=20,watcher_logbuf_size=64",
            &Extended {
                idle_timeout_s: Some(30),
                maxconns_fast: Some(false),
                hashpower: Some(20),
                watcher_logbuf_kb: Some(64),
                ssl_chain_cert: None,
                ssl_key: None,
                ignored: Vec::new(),
            },
        );
        check(
            " idle_timeout = 30 , idle_timeout=0, no_maxconns_fast,maxconns_fast",
            &Extended { idle_timeout_s: Some(0), maxconns_fast: Some(true), ..Extended::default() },
        );
    }

    #[test]
    fn ignored_names_are_kept_once_for_one_warning() {
        let ignored = ["modern", "track_sizes", "hash_algorithm"].map(str::to_owned).to_vec();
        check(
            "modern,,track_sizes, modern,hash_algorithm=xxh3,",
            &Extended { ignored, ..Extended::default() },
        );
        check("", &Extended::default());
    }

    #[test]
    fn later_options_win_one_by_one() {
        let mut options = Extended::parse("idle_timeout=5,hashpower=12,modern").expect("good");
        options.update(Extended::parse("idle_timeout=0,modern,track_sizes").expect("good"));
        assert_eq!(options.idle_timeout_s, Some(0));
        assert_eq!(options.hashpower, Some(12));
        assert_eq!(options.ignored, ["modern", "track_sizes"]);
    }

    #[test]
    fn every_refusal_names_what_was_written() {
        for (written, reason) in [
            ("bogus", "Illegal suboption \"bogus\""),
            ("bogus=1", "Illegal suboption \"bogus=1\""),
            ("no_track_sizes", "Illegal suboption \"no_track_sizes\""),
            ("Modern", "Illegal suboption \"Modern\""),
            ("idle_timeout", "Missing numeric argument for idle_timeout"),
            ("idle_timeout=x", "idle_timeout=x: expected a whole number from 0 to 2147483647"),
            ("idle_timeout=-1", "idle_timeout=-1: expected a whole number from 0 to 2147483647"),
            ("hashpower=11", "hashpower=11: expected a whole number from 12 to 32"),
            ("hashpower=33", "hashpower=33: expected a whole number from 12 to 32"),
            ("hot_lru_pct", "Missing hot_lru_pct argument"),
            ("hot_lru_pct=", "Missing hot_lru_pct argument"),
            ("ext_path=/f:1G", "ext_path: items are kept in memory only; leave it out"),
            ("ssl_ca_cert=/k", "ssl_ca_cert: TLS is not built yet; leave it out"),
            ("ssl_key", "Missing ssl_key argument"),
        ] {
            assert_eq!(Extended::parse(written), Err(reason.to_owned()), "{written}");
        }
        for name in ["proxy_config=/c", "proxy_arg=a", "proxy_uring"] {
            let reason = Extended::parse(name).expect_err(name);
            assert!(reason.contains("not routed"), "{reason}");
        }
    }
}
