//! The dedup logs, one for each op stream, which threads share: no operation is performed twice.
//!
//! Not here: the entries of a log and their lifetime (`cluster::dedup_log`).

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::dedup_log::{CopyGeneration, DedupLog, DedupLogs, LogCell, NotAdmitted};
use cluster::frames::{ChunkWriter, StreamDone};
use cluster::id::{Incarnation, NodeId};
use cluster::{OpStreamId, Rules};
use parking_lot::{Mutex, RwLock};

/// The logs of all op streams. A thread that holds the lock of a log acquires no other lock.
pub(crate) struct SharedLogs {
    all: RwLock<DedupLogs<SharedLog>>,
}

struct SharedLog(Arc<Mutex<DedupLog>>);

impl From<DedupLog> for SharedLog {
    fn from(log: DedupLog) -> Self {
        Self(Arc::new(Mutex::new(log)))
    }
}

impl LogCell for SharedLog {
    fn read<T>(&self, work: impl FnOnce(&DedupLog) -> T) -> T {
        work(&self.0.lock())
    }
}

impl SharedLogs {
    pub(super) fn new(rules: Rules) -> Self {
        Self { all: RwLock::new(DedupLogs::new(rules)) }
    }

    /// Returns the log of a stream whose operations are to be performed.
    ///
    /// # Errors
    ///
    /// They must not be performed, because the map does not have this incarnation of the stream's
    /// node.
    pub(crate) fn log_of(&self, stream: OpStreamId) -> Result<Arc<Mutex<DedupLog>>, NotAdmitted> {
        let all = self.all.read();
        all.admit(stream)?;
        let known = all.get(stream).map(|log| Arc::clone(&log.0));
        drop(all);
        Ok(known.unwrap_or_else(|| self.log_for_records(stream)))
    }

    /// Returns the log of a stream for results that arrive with records or a copy, whether or not
    /// the map has the stream's node yet.
    pub(crate) fn log_for_records(&self, stream: OpStreamId) -> Arc<Mutex<DedupLog>> {
        if let Some(log) = self.all.read().get(stream) {
            return Arc::clone(&log.0);
        }
        Arc::clone(&self.all.write().log(stream).0)
    }

    /// Applies a node's report of the done numbers of one of its streams.
    pub(crate) fn advance_done(&self, done: &StreamDone) {
        if let Some(log) = self.all.read().get(done.stream) {
            log.0.lock().advance_done(done.done);
        }
    }

    /// Applies the nodes of the map; see [`DedupLogs::set_incarnations`].
    pub(crate) fn set_incarnations(
        &self,
        incarnations: BTreeMap<NodeId, Incarnation>,
        last_node: u32,
    ) {
        self.all.write().set_incarnations(incarnations, last_node);
    }

    /// See [`DedupLogs::export`].
    pub(in crate::node) fn export(
        &self,
        copy: CopyGeneration,
        from: Option<(OpStreamId, u64)>,
        bytes_max: usize,
        chunk: &mut ChunkWriter<'_>,
    ) -> Option<(OpStreamId, u64)> {
        self.all.read().export(copy, from, bytes_max, chunk)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.all.read().iter().map(|(_, log)| log.0.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use cluster::dedup_log::DedupLookup;
    use cluster::frames::RecordResult;
    use cluster::id::{Partition, Term};

    use super::*;

    #[test]
    fn a_stream_is_admitted_once_its_node_is_in_the_map() {
        let logs = SharedLogs::new(Rules::default());
        let stream = OpStreamId {
            node: NodeId(3),
            incarnation: Incarnation(1),
            worker: 0,
            owner: NodeId(1),
        };
        let copy = CopyGeneration { partition: Partition(7), generation: 0, term: Term(1) };
        logs.log_for_records(stream).lock().add(5, copy, RecordResult::Number(9));
        let refused = |logs: &SharedLogs| logs.log_of(stream).err();
        assert_eq!(refused(&logs), Some(NotAdmitted::NotYet));
        logs.set_incarnations([(NodeId(3), Incarnation(1))].into(), 3);
        let log = logs.log_of(stream).expect("the map has it");
        assert_eq!(log.lock().look_up(5, copy), DedupLookup::Done(RecordResult::Number(9)));
        logs.advance_done(&StreamDone { stream, done: 6 });
        assert_eq!(log.lock().look_up(5, copy), DedupLookup::Stale);
        assert_eq!(logs.len(), 1);
        logs.set_incarnations([(NodeId(3), Incarnation(2))].into(), 3);
        assert_eq!(refused(&logs), Some(NotAdmitted::Over));
        assert_eq!(logs.len(), 0);
    }
}
