//! Tests of limits of a limits file that the server runs without, and of faults of the file.

use super::*;

const LIST: &str = "exempt = [\"a:vip\"]\n";

fn removal(name: &str) -> LimitsRequest {
    let name = name.to_owned();
    LimitsRequest::Remove { name, version: None, note: None, actor: actor(false) }
}

/// Starts with a file of exemptions and two limits once, and then without the file.
async fn world() -> World {
    let file = format!("{LIST}{}{}", limit("a", "fixed:5/s", ""), limit("b", "fixed:6/s", ""));
    let mut world = World::start(Some(&file)).await;
    let refused = world.change(removal("b")).await;
    assert!(matches!(refused, Err(ServiceError::Conflict(_))), "{refused:?}");
    world.restart(None).await;
    assert_eq!((world.names().as_str(), world.policy("a:vip").as_str()), ("a b", ""));
    world
}

#[tokio::test]
async fn limit_without_its_file_is_removed() {
    let mut world = world().await;
    world.change(removal("b")).await.expect("no file decides about it");
    world.change(removal("@exempt")).await.expect("no file decides about them");
    assert_eq!((world.names().as_str(), world.policy("a:vip").as_str()), ("a", "fixed:5/s"));
    // A change needs an admin.
    let version = world.store.limit("a").expect("it stays").version;
    let mut adopt = wanted("a", &limit("a", "block", ""), version);
    let refused = world.change(LimitsRequest::Put(Box::new(adopt.clone()))).await;
    assert!(matches!(refused, Err(ServiceError::Conflict(_))), "{refused:?}");
    (adopt.adopt, adopt.actor) = (true, actor(true));
    world.change(LimitsRequest::Put(Box::new(adopt))).await.expect("an admin may");
    // The file decides about the rest of its limits again.
    world.restart(Some(&limit("b", "fixed:7/s", ""))).await;
    assert_eq!([world.policy("a:1"), world.policy("b:1")], ["block", "fixed:7/s"]);
    let refused = world.change(removal("b")).await;
    assert!(matches!(refused, Err(ServiceError::Conflict(_))), "{refused:?}");
}

#[tokio::test]
async fn import_adopts_limits_without_their_file() {
    let world = world().await;
    let list = LIST.replace("vip", "new");
    let text = list.clone() + &limit("a", "fixed:5/s", "");
    let refused = world.import(&text, ImportMode::Merge).await;
    let Err(ServiceError::Conflict(reason)) = refused else { panic!("{refused:?}") };
    assert_eq!(reason, "only an admin may adopt a limit of a file");
    let file = Arc::new(LimitText::of_file("l.toml", text.as_bytes()).expect("a good file"));
    let request = |is_admin, file: &Arc<_>, mode| LimitsRequest::Import {
        file: Arc::clone(file),
        mode,
        actor: actor(is_admin),
    };
    let plan = world.store.change(request(true, &file, ImportMode::Merge), NOW, None).await;
    let plan = plan.expect("an admin may").import;
    assert_eq!((plan.put.join(" "), plan.same.join(" ")), ("@exempt".into(), "a".into()));
    assert_eq!([world.policy("a:vip"), world.policy("a:new")], ["fixed:5/s", ""]);
    let source = |name| world.store.limit(name).expect("stored").source;
    assert_eq!([source("@exempt"), source("a"), source("b")], ["api", "file", "file"]);
    // A replacement removes what the text lacks.
    let plan = world.import(&limit("a", "fixed:5/s", ""), ImportMode::Replace).await;
    assert_eq!(plan.expect("nothing is adopted").removed, ["@exempt", "b"]);
    assert_eq!((world.names().as_str(), world.policy("a:new").as_str()), ("a", "fixed:5/s"));
}

#[tokio::test]
async fn import_of_an_expired_limit_is_refused() {
    for world in World::both().await {
        let past = limit("old", "block", "expires = \"2020-01-01T00:00:00Z\"\n");
        for mode in [ImportMode::Merge, ImportMode::Replace] {
            let refused = world.import(&(limit("a", "block", "") + &past), mode).await;
            let Err(ServiceError::Invalid { detail, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(detail, "limit old: `expires` is in the past");
        }
        assert_eq!((world.names().as_str(), world.store.history(None).len()), ("", 0));
    }
}

#[tokio::test]
async fn fault_of_the_file_outlasts_other_changes() {
    let good = limit("a", "fixed:5/s", "");
    let world = World::start(Some(&good)).await;
    world.put("b", &limit("b", "block", ""), 0).await.expect("a new limit");
    world.reload(&(good.clone() + "garbage\n")).await.expect_err("no TOML");
    let fault = world.store.handle.fault().expect("the file is refused");
    world.set("a", "a:1", Some("block"), 0).await.expect("a good override");
    world.put("c", &limit("c", "block", ""), 0).await.expect("a new limit");
    assert_eq!(world.store.handle.fault(), Some(fault));
    // The text in force is good again, although nothing changes.
    world.reload(&good).await.expect("a good file");
    assert_eq!(world.store.handle.fault(), None);
    assert_eq!(world.store.handle.refused(), 1);
}
