//! The pictures of the documentation: pages of a real node of a cluster, under a shop's traffic.
//!
//! Run by `just pictures`, which takes ten minutes, for charts with a past. Not here: the flows on
//! these pages (`api::pages`).

use std::thread;
use std::time::Duration;

use super::steered::steered;
use crate::api::pages::run_flows;
use crate::api::shop::{ShopTraffic, put_limits};

/// The time that the chart of the overview covers.
const PAST: Duration = Duration::from_mins(10);

#[test]
fn pictures_are_taken() {
    // It writes docs/operations/images anew, from ten minutes of traffic.
    if std::env::var_os("PICTURES").is_none() {
        return;
    }
    let (cluster, apis) = steered();
    put_limits(&apis[0]);
    let traffic = ShopTraffic::start(&cluster.addresses());
    thread::sleep(PAST);
    let site = format!("http://{}", apis[0].address);
    run_flows("pictures.js", &[&site, "docs/operations/images"]);
    drop(traffic);
}
