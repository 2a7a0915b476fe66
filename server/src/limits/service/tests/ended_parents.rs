//! Tests of limits whose parent ends with its time.

use super::*;

/// A minute after [`NOW`].
const ENDS: &str = "expires = \"2027-01-15T08:01:00Z\"\n";
const PARENT: &str = "parents = [\"org:{x}\"]\n";

#[tokio::test]
async fn parent_ends_with_its_time() {
    for world in World::both().await {
        world.put("org", &limit("org", "fixed:9/s", ENDS), 0).await.expect("a new limit");
        world.put("a", &limit("a", "fixed:5/s", PARENT), 0).await.expect("a new limit");
        world.put("other", &limit("other", "block", ENDS), 0).await.expect("a new limit");
        let (name, note) = ("org".to_owned(), None);
        let removal = LimitsRequest::Remove { name, version: None, note, actor: actor(false) };
        let refused = world.change(removal).await;
        assert!(matches!(refused, Err(ServiceError::Invalid { .. })), "{refused:?}");
        world.store.expire(NOW + 59_000).await;
        world.settle();
        assert_eq!(world.names(), "org a other");
        world.store.expire(NOW + 61_000).await;
        world.settle();
        assert_eq!(world.names(), "a");
        let policies = ["a:1", "org:1", "other:1"].map(|key| world.policy(key));
        assert_eq!(policies, ["fixed:5/s", "", ""]);
        // Others are changed as before, and a mistake is refused as before.
        world.put("b", &limit("b", "block", ""), 0).await.expect("a new limit");
        let typo = limit("c", "block", "parents = [\"typo:{x}\"]\n");
        let refused = world.put("c", &typo, 0).await;
        assert!(matches!(refused, Err(ServiceError::Invalid { .. })), "{refused:?}");
        let version = world.store.limit("a").expect("it stays").version;
        world.put("a", &limit("a", "fixed:6/s", ""), version).await.expect("its version");
        assert_eq!((world.names().as_str(), world.policy("a:1").as_str()), ("a b", "fixed:6/s"));
    }
}

#[tokio::test]
async fn file_with_an_expired_parent_is_in_force() {
    let past = "expires = \"2020-01-01T00:00:00Z\"\n";
    let parent = "exempt = [\"org:vip\"]\n".to_owned() + &limit("org", "fixed:9/s", past);
    let mut world = World::start(Some(&(parent.clone() + &limit("a", "fixed:5/s", PARENT)))).await;
    assert_eq!([world.policy("a:1"), world.policy("org:1")], ["fixed:5/s", ""]);
    world.reload(&(parent.clone() + &limit("a", "fixed:6/s", PARENT))).await.expect("a good file");
    assert_eq!([world.policy("a:1"), world.policy("org:1")], ["fixed:6/s", ""]);
    world.restart(Some(&(parent + &limit("a", "fixed:7/s", PARENT)))).await;
    assert_eq!([world.policy("a:1"), world.policy("org:1")], ["fixed:7/s", ""]);
}

#[tokio::test]
async fn an_operator_puts_no_expired_limit() {
    for world in World::both().await {
        let toml = limit("a", "block", "expires = \"2020-01-01T00:00:00Z\"\n");
        let text = LimitText::of_one("a", toml.as_bytes()).expect("a good text");
        let put = LimitsRequest::PutAny { text, before: None, actor: actor(true) };
        let refused = world.change(put).await;
        assert!(matches!(refused, Err(ServiceError::Invalid { .. })), "{refused:?}");
        assert_eq!(world.names(), "");
    }
}
