//! One sample: a request, a denial or a recorded decision, as a worker hands it to the observer.
//!
//! Here: the place in a worker's ring, and its plain form for the recorder. Not here: the ring and
//! the choice of samples (`probe`), what becomes of them (`observer`).

/// Longest key of a sample, in bytes; a longer one is cut.
pub(crate) const SAMPLE_KEY_BYTES_MAX: usize = 96;

/// The first of the bits of a key's hash that choose the recorded keys.
pub(crate) const RECORD_SHIFT: u32 = 24;
/// The number of these bits.
pub(crate) const RECORD_BITS: u32 = 16;

/// Returns the mask under which the hash of a recorded key is zero: one key in `2^halvings`.
pub(crate) fn record_mask(halvings: u32) -> u64 {
    ((1 << halvings.min(RECORD_BITS)) - 1) << RECORD_SHIFT
}

/// The first bytes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeySample {
    bytes: [u8; SAMPLE_KEY_BYTES_MAX],
    len: u8,
    is_cut: bool,
}

impl KeySample {
    /// Takes the front of `key`.
    pub(crate) fn new(key: &[u8]) -> Self {
        let front = &key[..key.len().min(SAMPLE_KEY_BYTES_MAX)];
        let mut bytes = [0; SAMPLE_KEY_BYTES_MAX];
        bytes[..front.len()].copy_from_slice(front);
        Self { bytes, len: front.len() as u8, is_cut: front.len() < key.len() }
    }

    /// Returns the bytes that were kept.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns whether the key is longer than these bytes.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// The verdict of a recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampledVerdict {
    /// The attempt passed, or no limit binds the key.
    Allowed,
    /// The attempt was denied.
    Denied,
    /// A shadow limit would have denied the attempt, which passed.
    ShadowDenied,
}

/// The verb of a recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampledVerb {
    /// `incr`.
    Incr,
    /// `ma`.
    MetaArithmetic,
    /// `take`.
    Take,
    /// `takem`, one sample a key.
    TakeMany,
}

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

    /// Returns how often the sample of keys was halved: one key in `2^halvings` is recorded, at
    /// most `2^RECORD_BITS`. Read after each drain; workers follow.
    fn halvings(&self) -> u32;
}
