//! Commands without a key, such as `flush_all`, `stats` and `version`.
//!
//! Here: executing them. Not here: the content of `stats` (`stats`), `quit` and other commands that
//! concern one connection (`session`).

use protocol::Admin;

use crate::commands::context::{ExecContext, RequestOutcome};
use crate::commands::items::line;

/// From this value on `cache_memlimit` refuses the number, which must be one of bytes: memcached's
/// bound.
const MEMORY_LIMIT_MEGABYTES_ABOVE: u64 = 1_000_000_001;

pub(crate) const SHUTDOWN_NOT_ENABLED: &[u8] = b"SERVER_ERROR: shutdown not enabled\r\n";

impl ExecContext<'_> {
    pub(crate) fn admin(&self, admin: Admin<'_>, quiet: bool, out: &mut Vec<u8>) -> RequestOutcome {
        let service = self.service;
        let answer: &[u8] = match admin {
            Admin::FlushAll(_) if !service.config().flush_all => {
                b"CLIENT_ERROR flush_all not allowed\r\n"
            }
            Admin::FlushAll(delay) => {
                self.counters.cmd_flush.add(1);
                service.shards().flush(self.now, delay);
                b"OK\r\n"
            }
            Admin::Verbosity(level) => {
                service.set_verbosity(level);
                b"OK\r\n"
            }
            Admin::Version => {
                line(out, &format!("VERSION {}", crate::MEMCACHED_VERSION));
                return RequestOutcome::Given;
            }
            Admin::Noop => b"MN\r\n",
            Admin::Stats(topic) => {
                let asking = (self.now, self.client.map_or(-1, |client| client.fd));
                crate::commands::stats::write(service, self.active_limits, asking, topic, out);
                return RequestOutcome::Given;
            }
            Admin::CacheMemlimit(MEMORY_LIMIT_MEGABYTES_ABOVE..) => {
                b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"
            }
            Admin::CacheMemlimit(megabytes) if service.set_memory_limit(megabytes) => b"OK\r\n",
            Admin::CacheMemlimit(_) => {
                b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"
            }
            Admin::Shutdown if !service.config().shutdown_command => SHUTDOWN_NOT_ENABLED,
            Admin::Shutdown => {
                service.stop();
                return RequestOutcome::Close;
            }
            Admin::Machinery => b"OK\r\n",
            Admin::Watch if !service.config().watching => {
                b"CLIENT_ERROR watch commands not allowed\r\n"
            }
            Admin::Dump if !service.config().dumping => b"ERROR metadump not allowed\r\n",
            Admin::ConfigGet
                if service.node().is_some_and(|node| node.write_config(self.now, out)) =>
            {
                return RequestOutcome::Given;
            }
            // `watch` and the metadump are not built; `config` is no verb of memcached.
            Admin::Watch | Admin::Dump | Admin::ConfigGet => b"ERROR\r\n",
            Admin::Cluster(_) => b"SERVER_ERROR not in a cluster\r\n",
            Admin::Quit => return RequestOutcome::Close,
        };
        if !quiet {
            out.extend_from_slice(answer);
        }
        RequestOutcome::Given
    }
}
