//! The pictures of the documentation: pages of a real node of a cluster, under a shop's traffic.
//!
//! Run by `just pictures`, which takes ten minutes, for charts with a past. Not here: the flows on
//! these pages (`api::pages`).

use std::thread;
use std::time::Duration;

use super::steered::steered_with;
use crate::api::pages::{make_team, run_flows};
use crate::api::shop::{ShopTraffic, log_users_in, put_limits};

/// The time that the chart of the overview covers.
const PAST: Duration = Duration::from_mins(10);

#[test]
fn pictures_are_taken() {
    // It writes docs/operations/images anew, from ten minutes of traffic.
    if std::env::var_os("PICTURES").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (tokens, path) = make_team(folder.path());
    let (cluster, apis) = steered_with(&["--tokens", &path], tokens.first().map(String::as_str));
    put_limits(&apis[0]);
    log_users_in(cluster.addresses()[0]);
    let traffic = ShopTraffic::start(&cluster.addresses());
    thread::sleep(PAST);
    let site = format!("http://{}", apis[0].address);
    let mut words = vec![site.as_str(), "docs/operations/images"];
    words.extend(tokens.iter().map(String::as_str));
    run_flows("pictures.js", &words);
    drop(traffic);
}
