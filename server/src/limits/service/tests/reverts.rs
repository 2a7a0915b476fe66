//! Tests of removed limits that a revert brings back to their places.

use cluster::map::Put;

use super::*;
use crate::limits::service::book::StoredChange;

const VIP: &str = "[[limit]]\nname = 'vip'\nmatch = 'a:vip-{x}'\npolicy = 'fixed:9/s'\n";
const USER: &str = "[[limit]]\nname = 'user'\nmatch = 'a:{x}'\npolicy = 'fixed:5/s'\n";

impl World {
    async fn remove(&self, name: &str) {
        let name = name.to_owned();
        let actor = actor(false);
        let gone = LimitsRequest::Remove { name, version: None, note: None, actor };
        self.change(gone).await.expect("it is there");
    }

    async fn revert(&self, name: &str, seq: u64) -> Result<ChangedLimit, ServiceError> {
        let version = self.store.limit(name).map(|limit| limit.version);
        let name = name.to_owned();
        self.change(LimitsRequest::Revert { name, seq, version, actor: actor(false) }).await
    }

    /// Makes a removal one of an earlier version, which stored no place.
    async fn forget_place(&self, seq: u64) {
        let (put, change) = {
            let state = self.store.state.read();
            let change = StoredChange { place: None, ..state.book.changes[&seq].clone() };
            (state.book.put_of_change(&change), change)
        };
        let body = String::from_utf8(put.body.clone().expect("a text")).expect("JSON");
        assert!(!body.contains("place") && change.body.is_none(), "{body}");
        let puts: Vec<Put> = vec![put];
        self.store.records().expect("set").change(puts).await.expect("its version");
    }
}

#[tokio::test]
async fn removed_limit_returns_to_its_place() {
    for world in World::both().await {
        let z = limit("z", "fixed:1/s", "");
        for (name, toml) in [("vip", VIP), ("user", USER), ("z", &z)] {
            world.put(name, toml, 0).await.expect("a new limit");
        }
        world.remove("vip").await;
        assert_eq!(world.policy("a:vip-1"), "fixed:5/s");
        world.revert("vip", 1).await.expect("it is reached there");
        assert_eq!(
            (world.names().as_str(), world.policy("a:vip-1").as_str()),
            ("vip user z", "fixed:9/s")
        );
        // A limit that is there keeps its place.
        world.revert("z", 3).await.expect("a kept change");
        // Neighbours that were removed too, in each order.
        for (first, second) in [(("vip", 1), ("user", 2)), (("user", 2), ("vip", 1))] {
            world.remove("user").await;
            world.remove("vip").await;
            world.revert(first.0, first.1).await.expect("it is reached");
            world.revert(second.0, second.1).await.expect("it is reached");
            assert_eq!(world.names(), "vip user z");
        }
        // The last place stays before limits that came later.
        world.remove("z").await;
        world.put("new", &limit("new", "block", ""), 0).await.expect("a new limit");
        world.revert("z", 3).await.expect("it is reached");
        assert_eq!(world.names(), "vip user z new");
    }
}

#[tokio::test]
async fn limit_of_unknown_place_returns_where_it_is_reached() {
    for world in World::both().await {
        let (y, z) = (limit("y", "block", ""), limit("z", "block", ""));
        for (name, toml) in [("y", y.as_str()), ("vip", VIP), ("user", USER), ("z", &z)] {
            world.put(name, toml, 0).await.expect("a new limit");
        }
        world.import("exempt = ['a:root']", ImportMode::Merge).await.expect("it matches");
        world.remove("vip").await;
        world.forget_place(6).await;
        world.revert("vip", 2).await.expect("it goes before `user`");
        assert_eq!(world.names(), "y vip user z");
        world.remove("y").await;
        world.forget_place(8).await;
        world.revert("y", 1).await.expect("it is reached everywhere");
        assert_eq!(world.names(), "vip user z y");
        // Another limit counts the same keys: no place is good.
        world.remove("z").await;
        world
            .put("other", &limit("z", "block", "").replace("\"z\"", "\"other\""), 0)
            .await
            .expect("a new limit");
        let refused = world.revert("z", 4).await.expect_err("never reached").to_string();
        assert!(refused.contains("takes all its keys"), "{refused}");
    }
}
