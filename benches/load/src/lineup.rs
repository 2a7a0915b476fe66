//! A run beside the peers: which servers, which requests, which loads.
//!
//! Not here: the order of the cells (`peers`), Tollgate's goals (`peers::targets`).

use crate::rate::RateOf;
use crate::server::Recipe;

/// The name of Tollgate on the page.
pub const OURS: &str = "tollgate";
/// The server that memcached's verbs are compared with.
pub const MEMCACHED: &str = "memcached";
/// The bare server, a lower bound for counting over TCP.
pub const FLOOR: &str = "floor";

/// Each server has one thread where it can choose, the same memory, and writes nothing to a disk.
const SERVERS: [&str; 6] = [
    "memcached=memcached:/usr/bin/memcached -u root -t 1 -m {memory} -c 20000 -l 127.0.0.1 -p {port} -U 0",
    "redis=redis:/usr/bin/redis-server --port {port} --bind 127.0.0.1 --save --appendonly no \
     --maxmemory {memory}mb --maxmemory-policy allkeys-lru",
    "redis-cell=redis-cell:/usr/bin/redis-server --port {port} --bind 127.0.0.1 --save --appendonly no \
     --maxmemory {memory}mb --maxmemory-policy allkeys-lru \
     --loadmodule target/peers/redis-cell-0.2.2/libredis_cell.so",
    "throttlecrab=throttlecrab:target/peers/bin/throttlecrab-server --redis --redis-host 127.0.0.1 \
     --redis-port {port} --store-capacity 2000000 --log-level error",
    "floor=floor:target/release/floor {port}",
    "tollgate=target/release/tollgate -t 1 -m {memory} -c 20000 -l 127.0.0.1 -p {port}",
];

/// Verbs that memcached and Redis have.
pub const PLAIN: [&str; 5] = ["incr", "incr-hot", "get", "set", "get100"];
/// Cells of limits; a peer has the first, or both.
pub const LIMITS: [&str; 2] = ["take-bucket", "take-window"];
/// The open-loop cells, and the closed loop whose throughput their load refers to.
pub const OPEN: [(&str, RateOf); 3] =
    [("incr", RateOf::Slowest), ("incr", RateOf::Own), ("take-bucket", RateOf::Own)];
/// The open loop's load as a share of the closed loop's throughput.
pub const SHARES: [f64; 3] = [0.5, 0.7, 0.9];
/// The number of connections of every cell.
pub const CONNECTIONS: u32 = 50;

/// The installed servers, and sentences about the others.
#[must_use]
pub fn servers() -> (Vec<Recipe>, Vec<String>) {
    let recipes = SERVERS.iter().filter_map(|recipe| recipe.parse::<Recipe>().ok());
    let (there, absent): (Vec<_>, Vec<_>) = recipes.partition(|recipe| recipe.missing().is_none());
    let sentence = |recipe: &Recipe| {
        let missing = recipe.missing().unwrap_or_default();
        format!("absent: {}, for there is no `{missing}`", recipe.name)
    };
    let sentences = absent.iter().map(sentence).collect();
    (there, sentences)
}

/// The kinds of cells.
#[must_use]
pub fn cells() -> Vec<String> {
    PLAIN.iter().chain(&LIMITS).map(ToString::to_string).collect()
}
