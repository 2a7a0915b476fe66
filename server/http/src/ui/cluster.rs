//! The nodes and settings of the cluster, and the operations on them.

use askama::Template;
use axum::http::StatusCode;

use crate::host::{NodeView, NodesView};

use super::chart::{self, CircleArc};
use super::confirm::{ConfirmPage, ConflictPage};
use super::format as f;
use super::visit::{PageFrame, PageRefusal, PageResult, Posted, Visit, page, redirect};

const CLUSTER: &str = "/ui/cluster";

#[derive(Template)]
#[template(path = "cluster.html")]
struct ClusterPage {
    frame: PageFrame,
    nodes: Option<NodesView>,
    arcs: Vec<CircleArc>,
    can_change: bool,
}

impl ClusterPage {
    /// The time since a node was heard.
    fn heard(node: &NodeView) -> String {
        f::or_dash(&node.heard_ms_ago.map(f::span), " ago")
    }

    /// The operations of a node in a second.
    fn rate(node: &NodeView) -> String {
        f::or_dash(&node.ops_per_second.map(f::count), "/s")
    }
}

pub(super) async fn show(visit: Visit) -> PageResult {
    let nodes = visit.host().nodes();
    let shares: Vec<(String, u64)> = nodes
        .iter()
        .flat_map(|view| &view.nodes)
        .map(|node| (node.id.clone(), node.primaries))
        .collect();
    Ok(page(&ClusterPage {
        frame: visit.frame("Cluster", CLUSTER),
        nodes,
        arcs: chart::circle(&shares),
        can_change: visit.caller.administers(),
    }))
}

/// An operation on a node.
#[derive(Debug, Clone, Copy)]
enum NodeDeed {
    Drain,
    Forget,
}

pub(super) async fn drain(posted: Posted) -> PageResult {
    change_node(posted, NodeDeed::Drain).await
}

pub(super) async fn forget(posted: Posted) -> PageResult {
    change_node(posted, NodeDeed::Forget).await
}

/// Asks for the node's name, compares its incarnation, and sends the operation.
async fn change_node(posted: Posted, deed: NodeDeed) -> PageResult {
    let visit = &posted.visit;
    if !visit.caller.administers() {
        return Err(PageRefusal::forbidden("change nodes"));
    }
    let id = posted.field("node").to_owned();
    let nodes = visit.host().nodes().map(|view| view.nodes).unwrap_or_default();
    let Some(node) = nodes.into_iter().find(|node| node.id == id) else {
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "There is no node of this name."));
    };
    let typed = posted.field("typed");
    if !posted.is_confirmed() || typed != id {
        let error = posted.is_confirmed().then_some("The name that you typed is another one.");
        return Ok(question(&posted, &node, deed, error).reply());
    }
    if posted.field("incarnation") != node.incarnation.to_string() {
        let conflict = ConflictPage {
            frame: visit.frame("The node has restarted", CLUSTER),
            subject: format!("The node {id}"),
            present: Some(format!("incarnation {}, {}", node.incarnation, node.state)),
            yours: Some(format!("incarnation {}", posted.field("incarnation"))),
            diff: Vec::new(),
            action: "",
            hidden: Vec::new(),
            button: String::new(),
            back: CLUSTER.to_owned(),
        };
        return Ok(conflict.reply());
    }
    let (host, actor) = (visit.host(), visit.actor());
    match deed {
        NodeDeed::Drain => host.drain_node(id, actor).await?,
        NodeDeed::Forget => host.forget_node(id, actor).await?,
    }
    Ok(redirect(
        CLUSTER,
        match deed {
            NodeDeed::Drain => "draining",
            NodeDeed::Forget => "forgotten",
        },
    ))
}

fn question(
    posted: &Posted,
    node: &NodeView,
    deed: NodeDeed,
    error: Option<&'static str>,
) -> ConfirmPage {
    let id = &node.id;
    let primaries = f::count(node.primaries);
    let (title, effect, action, button) = match deed {
        NodeDeed::Drain => (
            format!("Drain {id}?"),
            format!(
                "The node {id} ({}) gives its {primaries} partitions and all copies to other \
                 nodes. It serves clients until then; afterwards it can be stopped.",
                node.ring_name
            ),
            "/ui/cluster/drain",
            "Drain the node",
        ),
        NodeDeed::Forget => (
            format!("Forget {id}?"),
            format!(
                "The cluster removes the node {id} ({}) for good. Copies that only it holds are \
                 lost. Do this only if the node does not come back.",
                node.ring_name
            ),
            "/ui/cluster/forget",
            "Forget the node",
        ),
    };
    // The first question takes the present incarnation; a repeated one keeps that of the first.
    let incarnation = posted.given("incarnation").unwrap_or_else(|| node.incarnation.to_string());
    ConfirmPage {
        frame: posted.visit.frame(title, CLUSTER),
        effects: vec![effect],
        diff: Vec::new(),
        action,
        hidden: vec![("node", id.clone()), ("incarnation", incarnation)],
        button,
        back: CLUSTER.to_owned(),
        typed: Some(id.clone()),
        error,
    }
}

pub(super) async fn setting(posted: Posted) -> PageResult {
    let visit = &posted.visit;
    if !visit.caller.administers() {
        return Err(PageRefusal::forbidden("change settings"));
    }
    let [name, value, was] = ["name", "value", "was"].map(|field| posted.field(field).to_owned());
    let settings = visit.host().nodes().map(|view| view.settings).unwrap_or_default();
    let Some((_, present)) = settings.into_iter().find(|(known, _)| *known == name) else {
        return Err(PageRefusal::new(StatusCode::NOT_FOUND, "There is no setting of this name."));
    };
    let fields = |was: String| vec![("name", name.clone()), ("value", value.clone()), ("was", was)];
    if present != was {
        let hidden = fields(present.clone());
        let conflict = ConflictPage {
            frame: visit.frame("The setting has changed", CLUSTER),
            subject: format!("The setting {name}"),
            present: Some(present),
            yours: Some(value),
            diff: Vec::new(),
            action: "/ui/cluster/setting",
            hidden,
            button: "Change it all the same".to_owned(),
            back: CLUSTER.to_owned(),
        };
        return Ok(conflict.reply());
    }
    if present == value {
        return Ok(redirect(CLUSTER, "same"));
    }
    if !posted.is_confirmed() {
        let confirm = ConfirmPage {
            frame: visit.frame(format!("Change {name}?"), CLUSTER),
            effects: vec![format!("{name} changes from {present} to {value} on all nodes.")],
            diff: Vec::new(),
            action: "/ui/cluster/setting",
            hidden: fields(was),
            button: "Change the setting",
            back: CLUSTER.to_owned(),
            typed: None,
            error: None,
        };
        return Ok(confirm.reply());
    }
    visit.host().put_setting(name, value, visit.actor()).await?;
    Ok(redirect(CLUSTER, "setting"))
}
