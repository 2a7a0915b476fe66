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

/// Limits whose children take the key of a parent that ends: of one, and of two in a circle.
fn takers(ends: &str) -> [(&'static str, String); 5] {
    let limit = |name: &str, key: &str, policy: &str, more: &str| {
        format!("[[limit]]\nname = \"{name}\"\nmatch = \"{key}\"\npolicy = \"{policy}\"\n{more}")
    };
    let total = "parents = [{ key = \"org:total\", cost = 2 }]\n";
    let (all, of_user) = ("parents = [\"all:a\"]\n", "parents = [\"user:{x}\"]\n");
    [
        ("total", limit("total", "org:total", "fixed:9/s", ends)),
        ("org", limit("org", "org:{user}", "fixed:5/s", total)),
        ("end", limit("end", "all:a", "fixed:8/s", ends)),
        ("user", limit("user", "user:{x}", "fixed:7/s", all)),
        ("all", limit("all", "all:{x}", "fixed:6/s", of_user)),
    ]
}

#[tokio::test]
async fn parent_ends_although_its_child_takes_its_key() {
    for mut world in World::both().await {
        for (name, toml) in takers(ENDS) {
            world.put(name, &toml, 0).await.expect("a new limit");
        }
        world.put("other", &limit("other", "block", ENDS), 0).await.expect("a new limit");
        world.store.expire(NOW + 61_000).await;
        world.settle();
        assert_eq!(world.names(), "org user all");
        for is_restarted in [false, true] {
            let policies = ["org:total", "org:a", "user:a", "all:a", "other:1"];
            let policies = policies.map(|key| world.policy(key));
            let expected = ["fixed:5/s", "fixed:5/s", "fixed:7/s", "fixed:6/s", ""];
            assert_eq!(policies, expected, "restarted: {is_restarted}");
            assert_eq!(world.store.handle.fault(), None);
            world.restart(None).await;
        }
        // Others are changed as before, and a mistake is refused as before.
        world.put("b", &limit("b", "block", ""), 0).await.expect("a new limit");
        let own = limit("c", "block", "parents = [\"c:{x}\"]\n");
        let refused = world.put("c", &own, 0).await;
        assert!(matches!(refused, Err(ServiceError::Invalid { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn file_whose_child_takes_an_expired_key_is_in_force() {
    let past = takers("expires = \"2020-01-01T00:00:00Z\"\n").map(|(_, toml)| toml).concat();
    let mut world = World::start(Some(&past)).await;
    assert_eq!([world.policy("org:total"), world.policy("all:a")], ["fixed:5/s", "fixed:6/s"]);
    world.reload(&past.replace("fixed:5/s", "fixed:4/s")).await.expect("a good file");
    assert_eq!([world.policy("org:total"), world.policy("all:a")], ["fixed:4/s", "fixed:6/s"]);
    world.restart(Some(&past)).await;
    assert_eq!([world.policy("org:total"), world.policy("all:a")], ["fixed:5/s", "fixed:6/s"]);
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
