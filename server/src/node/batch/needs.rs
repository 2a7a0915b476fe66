//! The positions that the replies of a batch wait for.
//!
//! Not here: the records that end there (`batch`), the replies that wait (`cluster::parked_reply`).

use arrayvec::ArrayVec;
use cluster::LinkIndex;
use cluster::parked_reply::{NEEDS_MAX, Need};
use cluster::replica_set::LINKS_MAX;

use super::Recorder;
use crate::node::link_cache::LinkCache;
use crate::node::links::Links;
use crate::node::serving::Serving;
use crate::shards::BATCH_SHARDS_MAX;

/// The positions that the replies of a batch wait for.
#[derive(Default)]
pub(crate) struct Needs {
    /// The needs of the first reply, then those of the second, and so on.
    all: ArrayVec<Need, { BATCH_SHARDS_MAX * LINKS_MAX }>,
    /// For each reply, where its needs end in `all`.
    ends: ArrayVec<u8, BATCH_SHARDS_MAX>,
}

impl Needs {
    /// The needs of all replies.
    pub(crate) fn all(&self) -> &[Need] {
        &self.all
    }

    /// The needs of the reply at this position of the batch.
    #[inline]
    pub(crate) fn of(&self, position: usize) -> &[Need] {
        let from = position.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.all[usize::from(from)..usize::from(self.ends[position])]
    }
}

impl Recorder {
    /// The positions that copies must hold before the replies of the first `count` operations are
    /// sent. Called after [`Recorder::finish`].
    pub(crate) fn needs(
        &self,
        count: usize,
        serving: &Serving<'_>,
        (links, cache): (&Links, &mut LinkCache),
    ) -> Needs {
        let mut known: ArrayVec<(LinkIndex, u64), NEEDS_MAX> = ArrayVec::new();
        let mut suffices_to = |index: LinkIndex| {
            if let Some((_, position)) = known.iter().find(|(link, _)| *link == index) {
                return *position;
            }
            let position = cache.get(links, index).map_or(u64::MAX, |link| {
                let may_be_early = serving.answers_early()
                    && link.age_ns(serving.now().mono_ns) < serving.early_lag_ns();
                if may_be_early { u64::MAX } else { link.acked.get() }
            });
            // A link that finds no room is asked again.
            let _ = known.try_push((index, position));
            position
        };
        let mut needs = Needs::default();
        for row in self.rows.iter().take(count) {
            let partition = serving.partition(row.hash);
            for (slot, &link) in row.set.mandatory().iter().enumerate() {
                let position = serving.record_ends().get(partition, slot);
                if suffices_to(link) < position {
                    needs.all.push(Need { link, position });
                }
            }
            needs.ends.push(needs.all.len() as u8);
        }
        needs
    }
}
