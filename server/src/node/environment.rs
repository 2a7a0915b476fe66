//! The node as its replicas see it: links to other copies, replica sets and dedup logs.
//!
//! Not here: the use that a replica makes of them (`cluster::replica`), links (`links`).

use std::sync::Arc;

use cluster::dedup_log::CopyGeneration;
use cluster::frames::{ChunkWriter, RecordResult};
use cluster::id::{CopyId, Partition};
use cluster::replica::{Environment, NodeTime};
use cluster::replica_set::{ReplicaSet, SetIndex};
use cluster::{LinkIndex, OpStreamId};

use super::Node;
use super::links::{PeerLink, TouchedLinks};
use super::replicas::Replicas;

/// The node, as one of its replicas sees it during a call.
pub(super) struct NodeEnvironment<'a> {
    pub(super) node: &'a Node,
    pub(super) replicas: &'a Replicas,
    /// Links that the thread has to flush.
    pub(super) touched: &'a mut TouchedLinks,
    /// The first shard of the partition: its records go over the link of that index.
    pub(super) shard: usize,
}

impl NodeEnvironment<'_> {
    fn link(&self, link: LinkIndex) -> Option<Arc<PeerLink>> {
        self.node.links().get(link)
    }
}

impl Environment for NodeEnvironment<'_> {
    fn link_to(&self, copy: CopyId, _: Partition) -> Option<LinkIndex> {
        self.node.links().link_to(copy.node, copy.incarnation, self.shard)
    }

    fn append(
        &mut self,
        link: LinkIndex,
        now: NodeTime,
        write: &mut dyn FnMut(&mut Vec<u8>),
    ) -> u64 {
        // A link that has ended acknowledges nothing: replies that need this position wait until
        // the map has removed the copy.
        let Some(link) = self.link(link) else { return u64::MAX };
        self.touched.add(&link);
        link.append_with(now.mono_ns, write)
    }

    fn acked(&self, link: LinkIndex) -> u64 {
        self.link(link).map_or(0, |link| link.acked.get())
    }

    fn end(&self, link: LinkIndex) -> u64 {
        self.link(link).map_or(u64::MAX, |link| link.end())
    }

    fn quarters(&self, link: LinkIndex) -> usize {
        self.link(link).map_or(0, |link| link.quarters())
    }

    fn silence_ns(&self, link: LinkIndex, now: NodeTime) -> u64 {
        self.link(link).map_or(u64::MAX, |link| link.silence_ns(now.mono_ns))
    }

    fn peer_time_ns(&self, copy: CopyId) -> u64 {
        self.node.links().peer_time_ns(copy.node, copy.incarnation)
    }

    fn acquire_set(&mut self, set: ReplicaSet) -> Option<SetIndex> {
        self.replicas.sets.lock().acquire(set)
    }

    fn release_set(&mut self, index: SetIndex) {
        self.replicas.sets.lock().release(index);
    }

    fn set(&self, index: SetIndex) -> ReplicaSet {
        self.replicas.set_table().get(index)
    }

    fn export_results(
        &mut self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)> {
        self.replicas.logs().export(copy, from, bytes_max, chunk)
    }

    fn import_result(
        &mut self,
        stream: OpStreamId,
        done: u64,
        result: Option<(u64, CopyGeneration, RecordResult<'_>)>,
    ) {
        let log = self.replicas.logs().log_for_records(stream);
        let mut log = log.lock();
        log.advance_done(done);
        if let Some((number, copy, result)) = result {
            log.add(number, copy, result);
        }
    }
}
