//! Bytes per second: 50 KiB/s for a client, however its data is split, with one plain `incr`.
//!
//! ```text
//! tollgate --limits examples/limits.toml
//! cargo run -p tests --example bytes -- [host:port]
//! ```
//!
//! After a refused chunk, it reads `#retry`, waits exactly that time, and the chunk passes.

use std::{
    env,
    error::Error,
    thread,
    time::{Duration, Instant},
};

use memcache::Client;

/// The capacity in `limits.toml`: a reply above it is a refusal.
const CAPACITY: u64 = 16 << 10;
const BYTES_PER_SECOND: u64 = 50 << 10;
const CHUNK: u64 = 8 << 10;
const TOTAL: u64 = 96 << 10;

/// The wait before a chunk may be sent; `None`: send it now.
fn wait(cache: &Client, client: &str, bytes: u64) -> Result<Option<Duration>, Box<dyn Error>> {
    let key = format!("bytes:{client}");
    if cache.increment(&key, bytes)? <= CAPACITY {
        return Ok(None);
    }
    let retry_ms: u64 = cache.get(&format!("{key}#retry"))?.ok_or("no such limit")?;
    Ok(Some(Duration::from_millis(retry_ms)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:11211".to_owned());
    let cache = memcache::connect(format!(
        "memcache://{address}?protocol=ascii&timeout=1&connect_timeout=1"
    ))?;
    // The key is deleted, so that this example can run again at once.
    cache.delete("bytes:mirror")?;

    let start = Instant::now();
    let (mut sent, mut waits) = (0, 0);
    while sent < TOTAL {
        if let Some(pause) = wait(&cache, "mirror", CHUNK)? {
            thread::sleep(pause);
            waits += 1;
            let again = wait(&cache, "mirror", CHUNK)?;
            assert_eq!(again, None, "waiting as long as told suffices");
        }
        sent += CHUNK;
        println!("{:4} ms: {:3} KiB", start.elapsed().as_millis(), sent >> 10);
    }
    let elapsed = start.elapsed();
    println!("{} KiB, {waits} waits", sent >> 10);

    // The initial capacity, the largest debt, and 50 KiB for each second.
    let most = 2 * CAPACITY + BYTES_PER_SECOND * elapsed.as_millis() as u64 / 1000;
    assert!(sent <= most, "{sent} bytes in {elapsed:?}, at most {most}");
    assert!(waits > 0, "{sent} bytes in {elapsed:?} without a wait");
    Ok(())
}
