//! A recorded decision, as the observer hands it to the recorder.
//!
//! Here: its plain form, and the receiver. Not here: its place in a worker's ring and the choice of
//! keys (`probe`), the recorder's memory (`recorder`).

pub(crate) use crate::probe::{KeySample, RECORD_BITS, SampledVerb, SampledVerdict, record_mask};

/// A recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordedSample {
    /// The time, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    /// The hash of the key under which the limit counted; of the key itself without a limit. The
    /// mask applies to it, so the keys that share a count are recorded together.
    pub(crate) hash: u64,
    /// The key as the client wrote it.
    pub(crate) key: KeySample,
    /// The cost in units.
    pub(crate) cost: u64,
    /// The verdict.
    pub(crate) verdict: SampledVerdict,
    /// The verb.
    pub(crate) verb: SampledVerb,
}

/// Receives recorded decisions, oldest first, on the observer's thread.
pub(crate) trait RecordSink: Send {
    /// Keeps a decision, or drops it if its key has left the sample.
    fn record(&mut self, sample: &RecordedSample);

    /// Returns the number of times that the sample of keys was halved: one key in `2^halvings` is
    /// recorded, at most `2^RECORD_BITS`. Read after each drain; workers follow.
    fn halvings(&self) -> u32;

    /// Halves the sample of keys, as far as it can be: there are more decisions than are wanted.
    fn halve(&mut self);
}
