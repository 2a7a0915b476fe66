//! One sample in a worker's ring: 128 bytes.
//!
//! Here: its parts and their encoding. Not here: the ring and the choice of samples (`probe`).

/// Longest key of a sample, in bytes; a longer one is cut.
pub(crate) const SAMPLE_KEY_BYTES_MAX: usize = 96;

/// The kind of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampleKind {
    /// A request, taken where it came from its client.
    Taken = 0,
    /// An attempt that was denied.
    Denied = 1,
    /// An attempt that a shadow limit would have denied.
    Shadow = 2,
    /// A decision on a recorded key.
    Recorded = 3,
}

impl SampleKind {
    pub(crate) const ALL: [Self; 4] = [Self::Taken, Self::Denied, Self::Shadow, Self::Recorded];
}

/// The verdict of a recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampledVerdict {
    /// The attempt passed, or no limit binds the key.
    Allowed = 0,
    /// The attempt was denied.
    Denied = 1,
    /// A shadow limit would have denied the attempt, which passed.
    ShadowDenied = 2,
}

/// The verb of a recorded decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SampledVerb {
    /// `incr`.
    Incr = 0,
    /// `ma`.
    MetaArithmetic = 1,
    /// `take`.
    Take = 2,
    /// `takem`, one sample a key.
    TakeMany = 3,
}

impl SampledVerb {
    /// Returns the verb of this number.
    pub(crate) fn of_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Incr,
            1 => Self::MetaArithmetic,
            2 => Self::Take,
            3 => Self::TakeMany,
            _ => return None,
        })
    }
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

/// Marks a retry time that is not known or never comes.
const NO_RETRY: u32 = u32::MAX;
/// Marks a key that was cut.
const CUT: u8 = 0x80;
const KIND_BITS: u8 = 2;
const VERDICT_BITS: u8 = 2;

/// A place in the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProbeSample {
    hash: u64,
    cost: u64,
    /// The low bits of the time: it is read within days.
    at_ms: u32,
    limit: u32,
    retry_ms: u32,
    weight: u16,
    /// The kind, the verdict and the verb.
    tags: u8,
    key_len: u8,
    key: [u8; SAMPLE_KEY_BYTES_MAX],
}

const _: () = assert!(size_of::<ProbeSample>() == 128, "a place of the ring");

impl ProbeSample {
    /// Creates a sample with weight 1 and cost 0, of no limit.
    pub(super) fn new(kind: SampleKind, unix_ms: u64, (hash, key): (u64, &[u8])) -> Self {
        let KeySample { bytes, len, is_cut } = KeySample::new(key);
        Self {
            hash,
            cost: 0,
            at_ms: unix_ms as u32,
            limit: 0,
            retry_ms: NO_RETRY,
            weight: 1,
            tags: kind as u8,
            key_len: len | if is_cut { CUT } else { 0 },
            key: bytes,
        }
    }

    pub(super) fn limit(self, limit: u32) -> Self {
        Self { limit, ..self }
    }

    /// Sets the number of events that the sample stands for, at most 65,535.
    pub(super) fn weight(self, weight: u64) -> Self {
        Self { weight: u16::try_from(weight).unwrap_or(u16::MAX), ..self }
    }

    pub(super) fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    pub(super) fn retry_ns(self, retry_ns: Option<u64>) -> Self {
        let rounded = retry_ns.map(|nanos| nanos.div_ceil(1_000_000));
        let short = rounded.and_then(|millis| u32::try_from(millis).ok());
        Self { retry_ms: short.unwrap_or(NO_RETRY), ..self }
    }

    pub(super) fn decision(self, verb: SampledVerb, verdict: SampledVerdict) -> Self {
        let decision = ((verb as u8) << VERDICT_BITS) | verdict as u8;
        Self { tags: self.tags | (decision << KIND_BITS), ..self }
    }

    /// Returns the kind.
    pub(crate) fn kind(&self) -> SampleKind {
        match self.tags & 3 {
            0 => SampleKind::Taken,
            1 => SampleKind::Denied,
            2 => SampleKind::Shadow,
            _ => SampleKind::Recorded,
        }
    }

    /// Returns the hash of the key under which it counts.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the key.
    pub(crate) fn key(&self) -> KeySample {
        KeySample { bytes: self.key, len: self.key_len & !CUT, is_cut: self.key_len & CUT != 0 }
    }

    /// Returns the number of the limit; 0 for none.
    pub(crate) fn limit_number(&self) -> u32 {
        self.limit
    }

    /// Returns the cost in units.
    pub(crate) fn cost_units(&self) -> u64 {
        self.cost
    }

    /// Returns the number of events that it stands for.
    pub(crate) fn stands_for(&self) -> u64 {
        u64::from(self.weight)
    }

    /// Returns the time after which the attempt would pass, in milliseconds, if it is known.
    pub(crate) fn retry_ms(&self) -> Option<u64> {
        (self.retry_ms != NO_RETRY).then_some(u64::from(self.retry_ms))
    }

    /// Returns the time in milliseconds since the Unix epoch, if it is within 24 days of `now_ms`.
    pub(crate) fn unix_ms(&self, now_ms: u64) -> u64 {
        let ahead_ms = self.at_ms.wrapping_sub(now_ms as u32).cast_signed();
        now_ms.saturating_add_signed(i64::from(ahead_ms))
    }

    /// Returns the verb and the verdict of a recorded decision.
    pub(crate) fn verb_and_verdict(&self) -> (SampledVerb, SampledVerdict) {
        let decision = self.tags >> KIND_BITS;
        let told = match decision & 3 {
            0 => SampledVerdict::Allowed,
            1 => SampledVerdict::Denied,
            _ => SampledVerdict::ShadowDenied,
        };
        let verb = SampledVerb::of_code((decision >> VERDICT_BITS) & 3);
        (verb.unwrap_or(SampledVerb::TakeMany), told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_keeps_its_parts() {
        let now_ms = 1_800_000_000_123;
        for verb in [
            SampledVerb::Incr,
            SampledVerb::MetaArithmetic,
            SampledVerb::Take,
            SampledVerb::TakeMany,
        ] {
            for told in
                [SampledVerdict::Allowed, SampledVerdict::Denied, SampledVerdict::ShadowDenied]
            {
                let sample = ProbeSample::new(SampleKind::Recorded, now_ms - 99, (7, b"key"))
                    .cost(protocol::COUNT_MAX)
                    .decision(verb, told);
                assert_eq!(sample.verb_and_verdict(), (verb, told));
                assert_eq!(sample.kind(), SampleKind::Recorded);
                assert_eq!(sample.unix_ms(now_ms), now_ms - 99);
                assert_eq!(sample.unix_ms(now_ms - 200), now_ms - 99, "a clock went back");
                assert_eq!((sample.hash(), sample.cost_units()), (7, protocol::COUNT_MAX));
                assert_eq!(sample.key(), KeySample::new(b"key"));
            }
        }
        for kind in SampleKind::ALL {
            assert_eq!(ProbeSample::new(kind, 0, (0, b"")).kind(), kind);
        }
    }

    #[test]
    fn long_key_is_cut_and_marked() {
        let long = [b'k'; SAMPLE_KEY_BYTES_MAX + 1];
        let sample = ProbeSample::new(SampleKind::Denied, 0, (1, &long));
        assert_eq!(sample.key().as_bytes(), &long[..SAMPLE_KEY_BYTES_MAX]);
        assert!(sample.key().is_cut());
        let whole = ProbeSample::new(SampleKind::Denied, 0, (1, &long[1..]));
        assert!(!whole.key().is_cut());
        assert_eq!(whole.key().as_bytes().len(), SAMPLE_KEY_BYTES_MAX);
    }

    #[test]
    fn weight_and_retry_saturate() {
        let sample = ProbeSample::new(SampleKind::Denied, 0, (1, b"a"));
        assert_eq!(sample.weight(1 << 20).stands_for(), u64::from(u16::MAX));
        assert_eq!(sample.retry_ns(Some(1)).retry_ms(), Some(1));
        assert_eq!(sample.retry_ns(Some(u64::MAX)).retry_ms(), None);
        assert_eq!(sample.retry_ns(None).retry_ms(), None);
    }
}
