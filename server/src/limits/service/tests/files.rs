//! Files of overrides while the server runs: new versions, mistakes, provenance.

use super::*;

impl World {
    fn list(&self) -> PathBuf {
        self.folder.join("list.txt")
    }

    fn write_list(&self, text: &str) {
        // A rename makes another version even within one tick of the clock.
        let part = self.folder.join("list.part");
        std::fs::write(&part, text).expect("the directory is ours");
        std::fs::rename(part, self.list()).expect("the directory is ours");
    }

    /// Reads changed files, as SIGHUP does.
    async fn look(&self) {
        self.store.follow_override_files(true);
        // The task locks this first, as the tests' runtime has one thread.
        tokio::task::yield_now().await;
        drop(self.store.reloading.lock().await);
    }

    fn source_of(&self, key: &str) -> String {
        let active = self.store.handle.load();
        let mut scratch = Vec::new();
        let found = active.limits().find(key.as_bytes(), &mut scratch).expect("a short key");
        let found = found.expect("a limited key");
        let source = found.overridden().map_or("limit", |id| id.source.word());
        format!("{} {source}", found.policy())
    }

    fn fault(&self) -> String {
        let fault = self.store.handle.fault().unwrap_or_default();
        fault.replace(&self.list().display().to_string(), "list.txt")
    }
}

fn with_file(path: &str) -> String {
    limit("a", "fixed:5/m", &format!("overrides_file = \"{path}\"\n"))
}

#[tokio::test]
async fn file_of_overrides_is_read_when_it_changes() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let mut world = World::at(folder.path());
    world.write_list("a:1 block\n");
    world.restart(Some(&with_file("list.txt"))).await;
    assert_eq!(world.source_of("a:1"), "block file");
    world.write_list("a:2 allow\n");
    world.look().await;
    assert_eq!(
        (world.source_of("a:1"), world.source_of("a:2")),
        ("fixed:5/m limit".to_owned(), "unlimited file".to_owned())
    );
    // A change that is not looked at `at_once` waits until it has stayed the same.
    world.write_list("a:3 block\n");
    world.store.follow_override_files(false);
    assert_eq!(world.store.override_files.lock().fault(), None);
    assert_eq!(world.source_of("a:3"), "fixed:5/m limit");
    world.look().await;
    assert_eq!(world.source_of("a:3"), "block file");

    world.write_list("a:3 block\nb:1 block\n");
    world.look().await;
    let fault = "list.txt:2: it cannot match: the limit counts no such key";
    assert_eq!(world.fault(), fault);
    assert_eq!(world.source_of("a:3"), "block file");
    let refused = world.store.handle.refused();
    world.look().await;
    assert_eq!(world.store.handle.refused(), refused, "one version is read once");
    // Other changes leave the fault, and the overrides.
    world.set("a", "a:4", Some("block"), 0).await.expect("a good override");
    assert_eq!((world.fault().as_str(), world.source_of("a:3").as_str()), (fault, "block file"));
    std::fs::remove_file(world.list()).expect("it is there");
    world.look().await;
    assert_eq!(world.source_of("a:3"), "block file", "a file that is gone changes nothing");
    world.write_list("a:5 block\n");
    world.look().await;
    assert_eq!((world.fault().as_str(), world.source_of("a:5").as_str()), ("", "block file"));
    assert_eq!(world.source_of("a:4"), "block api");
}

#[tokio::test]
async fn limits_file_with_a_bad_file_of_overrides_is_refused() {
    let mut world = World::start(Some(&limit("a", "fixed:5/m", ""))).await;
    world.write_list("a:1 block\na:1 block\n");
    let error = world.reload(&with_file("list.txt")).await.expect_err("a repeated line");
    assert!(error.to_string().ends_with("list.txt:2: there is an override of it already"));
    assert_eq!(world.source_of("a:1"), "fixed:5/m limit");
    world.write_list("a:1 block\n");
    world.reload(&with_file("list.txt")).await.expect("good files");
    assert_eq!(world.source_of("a:1"), "block file");
    // A limits file that changes elsewhere does not read the list again.
    world.write_list("x\n");
    let more = with_file("list.txt") + &limit("b", "fixed:5/m", "");
    world.reload(&more).await.expect("the list is read by itself");
    assert_eq!(world.source_of("a:1"), "block file");
    world.restart(None).await;
    assert_eq!(world.source_of("a:1"), "fixed:5/m limit", "the store keeps the limit");
    assert!(world.fault().starts_with("list.txt:1: a line is"), "{}", world.fault());
}

#[tokio::test]
async fn limit_of_the_api_names_an_absolute_good_file() {
    for world in World::both().await {
        let folder = tempfile::tempdir().expect("a directory for a file");
        let list = folder.path().join("list.txt");
        let path = list.to_str().expect("the path is text");
        let relative = world.put("a", &with_file("list.txt"), 0).await;
        let reason = "`overrides_file`: a limit that is in no limits file names an absolute path";
        assert_eq!(
            relative,
            Err(ServiceError::Invalid { detail: reason.to_owned(), line: Some(5) })
        );
        let missing = world.put("a", &with_file(path), 0).await.expect_err("there is no file");
        assert!(missing.to_string().contains("cannot read "), "{missing}");
        std::fs::write(&list, "a:1 secret\n").expect("the directory is ours");
        let bad = world.put("a", &with_file(path), 0).await.expect_err("no policy");
        let told = bad.to_string();
        assert!(told.contains("list.txt:1: bad policy") && !told.contains("secret"), "{told}");
        std::fs::write(&list, "a:1 block\n").expect("the directory is ours");
        world.put("a", &with_file(path), 0).await.expect("a good file");
        assert_eq!(world.source_of("a:1"), "block file");
        let view = world.store.limit("a").expect("it is there");
        assert_eq!((view.overrides_file.as_deref(), view.overrides_of_file), (Some(path), 1));
        assert!(world.store.overrides(None, None).is_empty());
        assert_eq!(world.store.overrides(Some("a"), Some(":1"))[0].source, "file");
        // A limit before it may not take a key of the file.
        let first = limit("first", "block", "").replace("first:{x}", "a:?");
        let mut change = wanted("first", &first, 0);
        change.before = Some("a".to_owned());
        let taken = world.change(LimitsRequest::Put(Box::new(change))).await;
        let taken = taken.expect_err("it takes a key").to_string();
        assert!(taken.contains("`a:1` cannot match: `first` takes that key"), "{taken}");
        assert_eq!(world.source_of("a:1"), "block file");
    }
}

#[tokio::test]
async fn version_that_was_not_looked_at_twice_is_not_read() {
    let folder = tempfile::tempdir().expect("a directory for a few files");
    let mut world = World::at(folder.path());
    world.write_list("a:1 block\n");
    world.restart(Some(&with_file("list.txt"))).await;
    world.write_list("a:2 block\n");
    // Two looks find the same version, and the file changes before the second task reads.
    world.store.follow_override_files(true);
    world.store.follow_override_files(true);
    world.write_list("a:3 bl");
    world.look().await;
    assert_eq!(world.store.handle.refused(), 1, "only the version of the last look");
    let fault = world.fault();
    assert!(fault.starts_with("list.txt:1: bad policy"), "{fault}");
    assert_eq!(world.source_of("a:1"), "block file");
}
