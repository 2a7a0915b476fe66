//! Operators' commands, and their authors.

use cluster::map::command::{Setting, YES};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::*;
use crate::limits::service::lone_control::control;

/// Sets a setting as the founder of the cluster does.
async fn set(control: &Control, setting: Setting) {
    let proposed = control.propose(MapCommand::Set(setting), COMMAND_TTL).await;
    proposed.expect("it leads").answer.expect("a setting");
}

fn copies(count: u8) -> OperatorRequest {
    OperatorRequest::Command(MapCommand::Set(Setting::Replicas(count)))
}

#[tokio::test(start_paused = true)]
async fn setting_during_the_founding_is_kept() {
    let control = control().await;
    let founder = control.clone();
    let (reply, ()) = tokio::join!(copies(3).carry_out(&control), async move {
        // The founder begins again after an error.
        for _ in 0..2 {
            set(&founder, Setting::Replicas(2)).await;
            yield_now().await;
        }
        let (name, value) = (FOUNDED.to_owned(), Some(YES.to_owned()));
        set(&founder, Setting::Other { name, value }).await;
    });
    assert_eq!(reply, OK);
    assert_eq!(control.map().settings().replicas, 3);
}

#[tokio::test(start_paused = true)]
async fn setting_before_the_founding_is_refused() {
    let control = control().await;
    let before = control.map().settings().replicas;
    let started = Instant::now();
    assert_eq!(copies(3).carry_out(&control).await, STARTING);
    assert!(started.elapsed() < COMMAND_TTL * 2);
    assert_eq!(control.map().settings().replicas, before);
}

#[test]
fn author_of_a_change_is_the_address_alone() {
    for (peer, name) in [
        ("tcp:192.0.2.7:40112", "192.0.2.7"),
        ("tcp6:[2001:db8::7]:40112", "2001:db8::7"),
        ("tcp6:[::ffff:192.0.2.7]:40112", "192.0.2.7"),
    ] {
        let actor = actor_of(peer);
        assert_eq!(actor.name, name);
        assert_eq!(actor.address, name.parse().ok());
    }
    for peer in ["-", "unix:/run/tollgate.sock", "tcp:unknown"] {
        let actor = actor_of(peer);
        assert_eq!((actor.name.as_str(), actor.address), (peer, None));
    }
}
