//! Links that we open: when something waits, and again after a pause while something does.
//!
//! Here: the task behind each lane. Not here: what is said first (`greeting`), the link itself
//! (`link`).
//!
//! A link that is lost without a word is dialled again at once though nothing waits: that the host
//! refuses is the fastest sign that the process is gone.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cluster::message::hello::{Farewell, Hello, Side};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::greeting::{Greeted, Unwelcome, greet};
use super::link::Link;
use super::outbox::Outbox;
use super::security::{Wire, tls_error};
use super::{Ending, Event, Hub, Identity, Lane, NoLink, Peer, Phase, Whom, farewell, stopping};
use crate::net::Stream;

/// What links to addresses are told apart by from those to nodes, of which each has a core's number.
const CORE_OF_ADDRESSES: u16 = u16::MAX;
/// Most reasons that are told while there is no link.
const REASONS_MAX: usize = 8;

/// A lane that we open links for.
#[derive(Debug, Clone)]
pub(super) struct Way {
    whom: Whom,
    address: String,
    pub(super) outbox: Arc<Outbox>,
    /// Notified when other news shows that the peer lives: a pending attempt to connect restarts.
    pub(super) is_near: Arc<Notify>,
}

/// The lane to somebody, made if there is none at this address.
pub(super) fn way(hub: &Arc<Hub>, whom: Whom, address: &str) -> Lane {
    let mut ways = hub.ways.lock();
    if let Some(way) = ways.get(&whom)
        && way.address == address
    {
        return Lane { outbox: Arc::clone(&way.outbox) };
    }
    let outbox = Arc::new(Outbox::new(hub.windows, hub.figures_of(&whom)));
    let lane = Lane { outbox: Arc::clone(&outbox) };
    let is_near = Arc::default();
    let way = Way { whom: whom.clone(), address: address.to_owned(), outbox, is_near };
    if let Some(old) = ways.insert(whom, way.clone()) {
        old.outbox.close();
    }
    drop(ways);
    hub.runtime.spawn(keep(Arc::clone(hub), hub.phase.subscribe(), way));
    lane
}

/// Keeps a lane until it is closed or everything stops.
async fn keep(hub: Arc<Hub>, mut phase: watch::Receiver<Phase>, way: Way) {
    let mut pause = hub.timing.pause_min;
    let mut told = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            () = poll_fn(|context| way.outbox.poll_wanted(context)) => {}
        }
        if way.outbox.is_closed() {
            break;
        }
        hub.handler.link(Event::Opening(way.whom.clone()));
        let identity = phase.borrow().identity;
        let opened = tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            opened = timeout(hub.timing.hello, open(&hub, &way, identity)) => opened,
        };
        match opened.unwrap_or(Err(NoLink::Late)) {
            Ok(link) => {
                told.clear();
                if serve(&hub, &mut phase, identity, &way, link).await {
                    pause = hub.timing.pause_min;
                    continue;
                }
            }
            Err(why) => {
                tell(&way, &why, &mut told);
                way.outbox.clear(0);
                let Way { whom, address, .. } = way.clone();
                hub.handler.link(Event::Failed { whom, address, why });
            }
        }
        tokio::select! {
            biased;
            () = stopping(&mut phase) => break,
            () = way.is_near.notified() => pause = hub.timing.pause_min,
            () = sleep(pause) => pause = (pause * 2).min(hub.timing.pause_max),
        }
    }
    way.outbox.close();
    way.outbox.clear(0);
}

/// Lets a link run to its end. Whether the next may be opened without a pause.
async fn serve(
    hub: &Hub,
    phase: &mut watch::Receiver<Phase>,
    identity: Identity,
    way: &Way,
    mut link: Link,
) -> bool {
    hub.handler.link(Event::Up(link.peer.clone()));
    let ending = tokio::select! {
        biased;
        word = farewell(phase, identity) => Ending::Ours(word),
        ending = link.run() => ending,
    };
    let has_lasted = link.has_lasted();
    hub.end(link, ending).await;
    match ending {
        Ending::Lost(_) | Ending::Silent => {
            way.outbox.probe();
            has_lasted
        }
        Ending::Ours(Farewell::Idle) | Ending::Theirs(Farewell::Idle) => true,
        _ => false,
    }
}

/// Once for each reason, until there is a link: a peer that is down is dialled every second, and the
/// reason may change each time.
fn tell(way: &Way, why: &NoLink, told: &mut Vec<NoLink>) {
    let Way { whom, address, .. } = way;
    let is_seed = matches!(whom, Whom::Address(_));
    let is_myself =
        matches!(why, NoLink::Ours(Farewell::Myself) | NoLink::Theirs(Farewell::Myself));
    if is_seed && is_myself {
        // All nodes may have the same seeds, so each has its own address among them.
        tracing::debug!(address, "this seed is the node itself");
    } else if told.contains(why) || told.len() >= REASONS_MAX {
        tracing::debug!(%whom, address, %why, "still no link");
    } else {
        let is_strange = matches!(
            why,
            NoLink::Ours(Farewell::OtherCluster) | NoLink::Theirs(Farewell::OtherCluster)
        );
        if is_seed && is_strange {
            tracing::warn!(
                "{address} is ignored: it is in another cluster than the data directory of this node. To \
                 join that one, start with an empty data directory"
            );
        } else {
            tracing::warn!(%whom, address, %why, "no link");
        }
        told.push(why.clone());
    }
}

async fn open(hub: &Hub, way: &Way, identity: Identity) -> Result<Link, NoLink> {
    way.outbox.figures().dials.fetch_add(1, Relaxed);
    let mut ours = hub.hello(identity).map_err(|error| lost(&error))?;
    if matches!(way.whom, Whom::Address(_)) {
        // Whoever is there may be a node to which there is a lane as well.
        ours.core = CORE_OF_ADDRESSES;
    }
    let near = way.is_near.notified();
    let (wire, greeted) = connect(hub, &way.whom, &way.address, &ours, near).await?;
    let theirs = &greeted.theirs;
    let peer = Peer {
        node: theirs.node,
        incarnation: theirs.incarnation,
        core: theirs.core,
        cluster: theirs.cluster,
        version: greeted.version,
        link: hub.next_link(),
        is_dialled: true,
        lane: Lane { outbox: Arc::clone(&way.outbox) },
    };
    Ok(hub.link(peer, wire, greeted.rest))
}

/// Connects to `whom` and says `ours`. When `near` is ready a pending attempt to connect restarts.
pub(super) async fn connect(
    hub: &Hub,
    whom: &Whom,
    address: &str,
    ours: &Hello,
    near: impl Future<Output = ()>,
) -> Result<(Wire, Greeted), NoLink> {
    let connect = || timeout(hub.timing.connect, Stream::connect(address));
    let connected = tokio::select! {
        // The system repeats a lost SYN after a second and more.
        () = near => connect().await,
        connected = connect() => connected,
    };
    let stream = connected.map_err(|_| NoLink::Late)?.map_err(|error| lost(&error))?;
    let guard = hub.guard();
    let mut wire = guard.connect(address, stream).await.map_err(|error| lost(&error))?;
    let mut other = None;
    let greeted = greet(&mut wire, Side::Connecting, ours, &guard.key, |theirs| {
        if let Whom::Node(node) = *whom
            && node != theirs.node
        {
            other = Some(theirs.node);
            // The nearest there is: the map that it should be in says otherwise.
            return Err(Farewell::OldIncarnation);
        }
        hub.handler.vet(theirs)
    });
    let greeted = greeted.await.map_err(|why| match (other, why) {
        (Some(node), _) => NoLink::OtherNode(node),
        (None, Unwelcome::Lost(error)) => lost(&error),
        (None, Unwelcome::Ours(farewell)) => NoLink::Ours(farewell),
        (None, Unwelcome::Theirs(farewell)) => NoLink::Theirs(farewell),
        (None, Unwelcome::Fault(fault)) => NoLink::Fault(fault),
    })?;
    Ok((wire, greeted))
}

pub(super) fn lost(error: &io::Error) -> NoLink {
    match tls_error(error) {
        Some(tls) => NoLink::Tls(tls.to_string()),
        None if error.kind() == io::ErrorKind::ConnectionRefused => NoLink::Refused,
        None => NoLink::Lost(error.to_string()),
    }
}
