//! The reply to `stats conns`: the listeners and the clients.
//!
//! Not here: accepting and counting them (`runtime::connections`).

use std::sync::Arc;

use engine::Now;

use super::StatLines;
use crate::net::ListenerInfo;
use crate::runtime::connections::ConnectionInfo;
use crate::runtime::service::Service;

/// Writes each socket by its descriptor: the listeners and the clients.
pub(super) fn write(service: &Service, asking: i32, now: Now, lines: &mut StatLines<'_>) {
    let now_ms = now.mono.millis();
    let connections = service.connections();
    let mut sockets: Vec<(i32, ConnsEntry)> = connections
        .listeners()
        .into_iter()
        .map(|listener| (listener.fd, ConnsEntry::Listener(listener)))
        .chain(connections.list().into_iter().map(|client| (client.fd, ConnsEntry::Client(client))))
        .collect();
    sockets.sort_by_key(|(fd, _)| *fd);
    for (fd, socket) in sockets {
        let mut stat = |name: &str, value: &str| lines.stat(&format!("{fd}:{name}"), value);
        match socket {
            ConnsEntry::Listener(listener) => {
                stat("addr", &listener.address);
                stat("state", "conn_listening");
                let idle = service.clock().uptime_seconds();
                stat("secs_since_last_cmd", &idle.to_string());
            }
            ConnsEntry::Client(client) => {
                stat("addr", &client.peer);
                stat("listen_addr", &client.local);
                let is_asking = asking == fd;
                let state = if is_asking { "conn_parse_cmd" } else { client.activity().word() };
                stat("state", state);
                let idle = if is_asking { 0 } else { client.idle_seconds(now_ms) };
                stat("secs_since_last_cmd", &idle.to_string());
            }
        }
    }
}

/// A socket in `stats conns`.
enum ConnsEntry {
    Listener(ListenerInfo),
    Client(Arc<ConnectionInfo>),
}
