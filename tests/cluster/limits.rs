//! Limits in a cluster of several nodes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::nodes::{Cluster, Line};

#[test]
fn a_limit_is_one_limit_whoever_dies() {
    // With `deny` no node admits by itself. By default each admits its share, marked `degraded=1`,
    // while the owner is out of reach: on a busy machine that may be longer than a request waits.
    let mut cluster = Cluster::start(3, &["--on-unavailable", "deny"]);
    let stop = AtomicBool::new(false);
    let places = cluster.addresses();
    let admitted: u64 = thread::scope(|scope| {
        let clients: Vec<_> = (0..6_usize)
            .map(|number| {
                let (stop, places) = (&stop, &places);
                scope.spawn(move || {
                    let (mut admitted, mut turn, mut line) = (0_u64, number, None);
                    while !stop.load(Ordering::Relaxed) {
                        let Some(open) = &mut line else {
                            line = Line::connect(places[turn % places.len()]).ok();
                            turn += 1;
                            thread::sleep(Duration::from_millis(2));
                            continue;
                        };
                        match open.ask("take login 1 log:100/60s\r\n") {
                            Ok(Some(reply)) => admitted += u64::from(reply.starts_with("ALLOW")),
                            _ => line = None,
                        }
                    }
                    admitted
                })
            })
            .collect();
        let start = Instant::now();
        thread::sleep(Duration::from_millis(300));
        cluster.join();
        cluster.until_at_rest(4);
        cluster.kill(1);
        thread::sleep(Duration::from_millis(500));
        cluster.until_at_rest(3);
        assert!(cluster.end(2).success(), "{}", cluster.log(2));
        cluster.until_at_rest(2);
        assert!(start.elapsed() < Duration::from_secs(55), "the window has moved on");
        stop.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("it asks")).sum()
    });
    assert!(admitted <= 100, "{admitted} admitted");
    // A request without a reply may have been charged; no other request was.
    assert!(admitted >= 90, "{admitted} admitted");
}
