//! Links that peers open.
//!
//! Here: who waits at the door, who is in, and that neither grows. Not here: what is said first
//! (`greeting`), the link itself (`link`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::id::{Incarnation, NodeId};
use cluster::message::hello::{Farewell, Hello, NONCE_BYTES, Side};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::data_link::NewDataLink;
use super::greeting::{Greeted, Unwelcome, greet};
use super::outbox::Outbox;
use super::security::Wire;
use super::{Ending, Event, Hub, Identity, Lane, Peer, Phase, Whom, farewell, stopping};
use crate::net::{Listener, Stream};

/// Most connections that have not shown who they are. One more, and the oldest goes.
pub const STRANGERS_MAX: usize = 64;
/// Most links that peers have opened.
const GUESTS_MAX: usize = 4096;
/// Pause after the system refused a connection: file descriptors run out and come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Who is at the door, and who is in.
#[derive(Default)]
pub(super) struct Doors {
    /// Counts those who came.
    pub(super) came: u64,
    /// Of them, those who were not let in.
    pub(super) refused: u64,
    /// In the order in which they came.
    pub(super) strangers: BTreeMap<u64, AbortHandle>,
    guests: BTreeMap<Seat, Guest>,
}

/// Each core of a node has one link to us. Nodes that are in no cluster yet have no names to be told
/// apart by, and most of them are in their first life: each link of theirs has a seat of its own, by
/// its nonce.
type Seat = (NodeId, u16, Option<[u8; NONCE_BYTES]>);

struct Guest {
    incarnation: Incarnation,
    link: u64,
    replaced: Arc<Notify>,
}

fn seat(theirs: &Hello) -> Seat {
    let nonce = (theirs.node == NodeId(0)).then_some(theirs.nonce);
    (theirs.node, theirs.core, nonce)
}

/// Accepts on one listener until everything stops.
pub(super) async fn accept(hub: Arc<Hub>, mut phase: watch::Receiver<Phase>, listener: Listener) {
    loop {
        let stream = tokio::select! {
            biased;
            () = stopping(&mut phase) => return,
            stream = listener.accept_peer() => stream,
        };
        match stream {
            Ok(stream) => let_knock(&hub, &phase, stream),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a peer");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn let_knock(hub: &Arc<Hub>, phase: &watch::Receiver<Phase>, stream: Stream) {
    // The task looks for itself here, so it waits until it is in.
    let mut doors = hub.doors.lock();
    while doors.strangers.len() >= STRANGERS_MAX
        && let Some((_, oldest)) = doors.strangers.pop_first()
    {
        oldest.abort();
        doors.refused += 1;
    }
    doors.came += 1;
    let number = doors.came;
    let task = hub.runtime.spawn(receive(Arc::clone(hub), phase.clone(), number, stream));
    doors.strangers.insert(number, task.abort_handle());
}

/// Lets somebody in, and stays with the link to its end.
async fn receive(hub: Arc<Hub>, mut phase: watch::Receiver<Phase>, number: u64, stream: Stream) {
    let address = stream.peer();
    let identity = phase.borrow().identity;
    let outcome = tokio::select! {
        biased;
        () = stopping(&mut phase) => return,
        outcome = timeout(hub.timing.hello, welcome(&hub, identity, stream)) => outcome,
    };
    let link = {
        let mut doors = hub.doors.lock();
        if doors.strangers.remove(&number).is_none() {
            // Hung up on just now.
            return;
        }
        match outcome {
            Ok(Ok((wire, greeted))) if greeted.theirs.data_link.is_some() => {
                drop(doors);
                return hand_over(&hub, wire, greeted);
            }
            Ok(Ok((wire, greeted))) => doors.seat(&hub, wire, greeted),
            Ok(Err(why)) => {
                doors.refused += 1;
                tracing::info!(address, ?why, "no peer of ours");
                return;
            }
            Err(_) => {
                doors.refused += 1;
                tracing::info!(address, "no greeting in time");
                return;
            }
        }
    };
    let Some((mut link, seat, replaced)) = link else {
        tracing::warn!(address, "more peers than there can be");
        return;
    };
    let number = link.peer.link;
    hub.handler.link(Event::Up(link.peer.clone()));
    hub.hurry(&Whom::Node(link.peer.node));
    let ending = tokio::select! {
        biased;
        word = farewell(&mut phase, identity) => Ending::Ours(word),
        () = replaced.notified() => Ending::Replaced,
        ending = link.run() => ending,
    };
    {
        let mut doors = hub.doors.lock();
        if doors.guests.get(&seat).is_some_and(|guest| guest.link == number) {
            doors.guests.remove(&seat);
        }
    }
    link.peer.lane.outbox.close();
    hub.end(link, ending).await;
}

/// Gives a data link to the node.
fn hand_over(hub: &Hub, wire: Wire, greeted: Greeted) {
    let Some(id) = greeted.theirs.data_link else { return };
    match NewDataLink::new(greeted, id, false, wire) {
        Ok(link) => hub.handler.data_link(link),
        Err(error) => tracing::info!(%error, "a data link cannot be handed over"),
    }
}

async fn welcome(
    hub: &Hub,
    identity: Identity,
    stream: Stream,
) -> Result<(Wire, Greeted), Unwelcome> {
    let guard = hub.guard();
    let mut wire = guard.accept(stream).await?;
    let ours = hub.hello(identity)?;
    let greeted = greet(&mut wire, Side::Accepting, &ours, &guard.key, |theirs| {
        let doors = hub.doors.lock();
        let known = doors.guests.get(&seat(theirs));
        if known.is_some_and(|guest| guest.incarnation > theirs.incarnation) {
            return Err(Farewell::OldIncarnation);
        }
        drop(doors);
        hub.handler.vet(theirs)
    });
    let greeted = greeted.await?;
    Ok((wire, greeted))
}

impl Doors {
    /// Gives a link its place. The one that had it before goes: who opens a second has lost the first.
    fn seat(
        &mut self,
        hub: &Hub,
        wire: Wire,
        greeted: Greeted,
    ) -> Option<(super::link::Link, Seat, Arc<Notify>)> {
        let Greeted { theirs, version, rest } = greeted;
        let seat = seat(&theirs);
        if self.guests.len() >= GUESTS_MAX && !self.guests.contains_key(&seat) {
            self.refused += 1;
            return None;
        }
        let figures = hub.figures_of(&Whom::Node(theirs.node));
        let peer = Peer {
            node: theirs.node,
            incarnation: theirs.incarnation,
            core: theirs.core,
            cluster: theirs.cluster,
            version,
            link: hub.next_link(),
            is_dialled: false,
            lane: Lane { outbox: Arc::new(Outbox::new(hub.windows, figures)) },
        };
        let replaced = Arc::new(Notify::new());
        let guest = Guest {
            incarnation: theirs.incarnation,
            link: peer.link,
            replaced: Arc::clone(&replaced),
        };
        if let Some(before) = self.guests.insert(seat, guest) {
            before.replaced.notify_one();
        }
        Some((hub.link(peer, wire, rest), seat, replaced))
    }
}
