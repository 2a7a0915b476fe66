//! Tests of a limits file that changes on a running node.

use std::path::PathBuf;

use cluster::map::command::{Setting, YES};
use cluster::map::{LIMITS_VERSION, MapCommand};
use tempfile::TempDir;
use tokio::time::timeout;
use tollgate_limits::Limits;

use super::*;
use crate::limits::service::lone_control::control;
use crate::records::MapRecords;

/// A node whose limits file the cluster follows.
struct FileNode {
    _folder: TempDir,
    path: PathBuf,
    service: Arc<Service>,
    node: Arc<Node>,
    control: Control,
}

fn limit(name: &str, pattern: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nmatch = \"{pattern}\"\npolicy = \"fixed:5/s\"\n")
}

fn service(path: &Path) -> Arc<Service> {
    let path = path.to_str().expect("the path is text");
    let flags = ["--limits", path, "--seeds=127.0.0.1:1", "--insecure"];
    Arc::new(Service::of_flags(&flags, Limits::default()))
}

impl FileNode {
    /// Founds a cluster of one node with a limits file of this text.
    async fn start(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory for a file");
        let path = folder.path().join("limits.toml");
        std::fs::write(&path, text).expect("the directory is ours");
        let (service, control) = (service(&path), control().await);
        let node = Node::of(&service).expect("it has a cluster");
        service.limits_store().set_records(Arc::new(MapRecords::new(control.clone())));
        let mark = Setting::Other { name: FOUNDED.to_owned(), value: Some(YES.to_owned()) };
        for setting in [Setting::Version(LIMITS_VERSION), mark] {
            let proposed = control.propose(MapCommand::Set(setting), Duration::from_secs(5)).await;
            proposed.expect("it leads").answer.expect("a setting");
        }
        let this = Self { _folder: folder, path, service, node, control };
        this.node.limits_file.change(LimitText::load(&this.path).expect("a good file").limits);
        this
    }

    fn follow(&self) {
        let both = (Arc::clone(&self.service), Arc::clone(&self.node));
        let last = self.node.limits_file.get();
        tokio::spawn(follow_file(both, self.control.clone(), last));
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.path, text).expect("the directory is ours");
        self.node.limits_file.reload(&self.path).expect("a good file");
    }

    /// Puts a limit as an operator does.
    async fn put(&self, toml: &str) {
        let texts = LimitText::each("-", toml.as_bytes()).expect("a good text");
        let put = |entries: &mut Vec<OrderedLimit>| {
            texts.iter().try_for_each(|text| map_text::put(entries, text.clone(), None))
        };
        change(&self.control, put).await.expect("a good limit");
    }

    /// Waits until the fault ends with this text; an empty text is no fault.
    async fn until_fault(&self, end: &str) {
        let is_there = || {
            let fault = self.service.limits().fault().unwrap_or_default();
            fault.is_empty() == end.is_empty() && fault.ends_with(end)
        };
        let waited = timeout(Duration::from_secs(10), async {
            while !is_there() {
                sleep(POLL).await;
            }
        });
        let fault = || self.service.limits().fault();
        waited.await.unwrap_or_else(|_| panic!("`{end}` is awaited, not {:?}", fault()));
    }
}

#[tokio::test]
async fn changed_file_that_is_refused_is_a_fault() {
    let of_file = limit("a", "a:{x}");
    let world = FileNode::start(&of_file).await;
    world.follow();
    world.put(&limit("cr", "cr:{x}")).await;
    let refused = of_file.clone() + &limit("own", "cr:{x}");
    world.write(&refused);
    world.until_fault("limit cr: never reached: `own` takes all its keys").await;
    let fault = world.service.limits().fault().expect("it lasts");
    assert!(fault.starts_with(&world.path.display().to_string()), "{fault}");
    assert_eq!(world.service.limits().refused(), 1);
    // Other limits in force say nothing about the file.
    world.service.limits().replace(Limits::default());
    assert!(world.service.limits().fault().is_some());
    world.write(&of_file);
    world.until_fault("").await;
    world.write(&refused);
    world.until_fault("takes all its keys").await;
    world.write(&(of_file + &limit("own", "own:{x}")));
    world.until_fault("").await;
    assert!(world.control.map().limits().contains_key("own"));
}

#[tokio::test]
async fn first_file_that_is_refused_is_a_fault_and_applies_once_corrected() {
    let right = limit("right", "right:{x}");
    let world = FileNode::start(&(right.clone() + &limit("own", "cr:{x}"))).await;
    world.put(&limit("cr", "cr:{x}")).await;
    world.follow();
    world.until_fault("takes all its keys").await;
    // The same text stays refused.
    world.write(&(right.clone() + &limit("own", "cr:{x}")));
    sleep(POLL * 5).await;
    world.until_fault("takes all its keys").await;
    world.write(&(right + &limit("own", "own:{x}")));
    world.until_fault("").await;
    let map = world.control.map();
    let names: Vec<&str> = map.limits().keys().map(String::as_str).collect();
    assert_eq!(names, ["cr", "own", "right"]);
}
