//! Tests of exemptions on each kind of store: imports, files, versions, removal of their limits.

use super::*;

const LIST: &str = "exempt = [\"a:vip\"]\n";

#[tokio::test]
async fn exemptions_travel_with_the_limits() {
    for world in World::both().await {
        let toml = limit("a", "fixed:5/s", "");
        let put = world.put("a", &toml, 0).await.expect("a good limit");
        let plan = world.import(LIST, ImportMode::Merge).await.expect("it matches a key");
        assert_eq!(plan.put, ["@exempt"]);
        assert_eq!(
            (world.policy("a:vip"), world.policy("a:b")),
            (String::new(), "fixed:5/s".into())
        );
        assert!(world.store.export().starts_with(LIST), "{}", world.store.export());
        assert_eq!(world.names(), "a");
        // A text without a list keeps it.
        let other = limit("b", "fixed:5/s", "");
        world.import(&other, ImportMode::Merge).await.expect("a good limit");
        assert_eq!((world.policy("a:vip"), world.names()), (String::new(), "b a".into()));
        let plan = world.import(&world.store.export(), ImportMode::Merge).await.expect("no change");
        assert_eq!((plan.same.len(), plan.put.len()), (3, 0), "{plan:?}");
        // Its limit may go and come back.
        let remove = |version| LimitsRequest::Remove {
            name: "a".to_owned(),
            version: Some(version),
            note: None,
            actor: actor(false),
        };
        world.change(remove(put.version)).await.expect("it may go");
        world.put("a", &toml, 0).await.expect("it comes back");
        assert_eq!(world.policy("a:vip"), "");
        let plan = world.import(&toml, ImportMode::Replace).await.expect("a good file");
        assert_eq!(plan.removed, ["@exempt", "b"]);
        assert_eq!(world.policy("a:vip"), "fixed:5/s");
        let history = world.store.history(Some("@exempt"));
        let bodies: Vec<Option<&str>> = history.iter().map(|one| one.body.as_deref()).collect();
        assert_eq!(bodies, [None, Some(LIST)]);
    }
}

#[tokio::test]
async fn an_exemption_that_cannot_match_is_refused() {
    for world in World::both().await {
        world.put("a", &limit("a", "fixed:5/s", ""), 0).await.expect("a good limit");
        for entry in ["b:1", "10.0.0.0/8"] {
            let refused = world.import(&format!("exempt = ['{entry}']"), ImportMode::Merge).await;
            let Err(ServiceError::Invalid { detail, .. }) = refused else {
                panic!("{entry}: {refused:?}")
            };
            let expected = format!("limit @exempt: `{entry}`: it cannot match: no limit ");
            assert!(detail.starts_with(&expected), "{detail}");
        }
        let within = format!("{LIST}{}", limit("c", "fixed:5/s", ""));
        let refused = world.put("c", &within, 0).await;
        let Err(ServiceError::Invalid { detail, line: Some(1) }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(detail, "`exempt` is for all limits, and stands in no limit's text");
    }
}

#[tokio::test]
async fn a_file_decides_about_its_exemptions() {
    let file = format!("{LIST}{}", limit("a", "fixed:5/s", ""));
    let world = World::start(Some(&file)).await;
    assert_eq!(world.policy("a:vip"), "");
    let refused = world.import("exempt = ['a:b']", ImportMode::Merge).await;
    assert!(matches!(&refused, Err(ServiceError::Conflict(_))), "{refused:?}");
    world.reload(&file.replace("a:vip", "a:b")).await.expect("a good file");
    assert_eq!((world.policy("a:vip"), world.policy("a:b")), ("fixed:5/s".into(), String::new()));
    let error = world.reload(&file.replace("a:vip", "c:b")).await.expect_err("no such key");
    assert!(error.to_string().ends_with(":1: `c:b`: it cannot match: no limit has such a key"));
    assert_eq!(world.policy("a:b"), "");
    world.reload(&limit("a", "fixed:5/s", "")).await.expect("a good file");
    assert_eq!(world.policy("a:b"), "fixed:5/s");
}

#[tokio::test]
async fn exemptions_wait_for_the_last_old_node() {
    let control = control().await;
    let mut world = World::at(std::path::Path::new("-"));
    world.control = Some(control.clone());
    world.restart(None).await;
    for (version, is_put) in [(RECORDS_VERSION, false), (LIMITS_VERSION, true)] {
        let version = MapCommand::Set(Setting::Version(version));
        let proposed = control.propose(version, Duration::from_secs(5)).await;
        proposed.expect("it leads").answer.expect("a version");
        world.import(&limit("a", "fixed:5/s", ""), ImportMode::Merge).await.expect("known to all");
        let imported = world.import(LIST, ImportMode::Merge).await;
        if is_put {
            imported.expect("all nodes know it");
        } else {
            let reason = "the cluster is being updated: until no older node is in it, the limits \
                          cannot have `exempt`";
            assert_eq!(imported, Err(ServiceError::Unavailable(reason.to_owned())));
        }
        assert_eq!(world.policy("a:vip").is_empty(), is_put);
    }
}
