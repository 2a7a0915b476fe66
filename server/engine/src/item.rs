//! An item as bytes: one run of memory holding figures, key and value.
//!
//! ```text
//! 0        8        12         17     18        19         19+n          19+n+k
//! | cas u64 | access | deadline | bits | k = key | number n | key k bytes | value  | client flags |
//!             u32      40 bits    u8     bytes u8  3, 4 or 8 bytes          (blob)   (u32, if not 0)
//! ```
//!
//! `number` is the count itself in 4 or 8 bytes, or the length of a blob in 4 or of a limit's state in 3.
//! A counter with a 20-byte key takes 43 bytes. A state has the number of its rule in place of `access`:
//! it is not its last use that says when it may go. Not here: where items lie (`arena`), how they are
//! found (`index`).

use std::hint::cold_path;

use protocol::Value;

use crate::algorithms::StateBytes;
use crate::policy_table::{INLINE, inline};
use crate::time::{Deadline, Now};

const ACCESS: usize = 8;
/// Of a state, in place of `ACCESS`.
const RULE: usize = ACCESS;
const DEADLINE: usize = 12;
const BITS: usize = 17;
const KEY_BYTES: usize = 18;
const NUMBER: usize = 19;
/// Up to the end of a number of four bytes.
const HEAD_BYTES: usize = NUMBER + 4;
/// Of the length of a state: more than any state has.
const STATE_LENGTH_BYTES: usize = 3;

/// The last two bits of `bits` tell the layout.
const LAYOUT_MASK: u8 = 0b11;
/// Client flags lie behind everything else. Few clients that count have any.
const FLAGGED: u8 = 0b1000_0000;
const FLAGS_BYTES: usize = 4;

/// What is kept behind the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemLayout {
    /// A value of so many bytes.
    Blob(usize),
    /// A count up to `u32::MAX`.
    Narrow,
    /// Any count.
    Wide,
    /// The state of a limit, so many bytes.
    State(usize),
}

/// What is written into an item.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// What clients stored, or counted.
    Value(Value<'a>),
    /// The state of a limit.
    State(LimitState<'a>),
}

/// The state of a limit as it lies in an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitState<'a> {
    /// The number of the rule that it was written under, or [`INLINE`].
    pub(crate) policy_id: u32,
    /// Holds, leases and the algorithm's own bytes (`take`), the policy before them where it is
    /// inline; fewer than 2^24.
    pub(crate) body: &'a [u8],
}

impl<'a> LimitState<'a> {
    /// The body without a policy before it.
    pub(crate) fn own(self) -> &'a [u8] {
        if self.policy_id == INLINE {
            cold_path();
            return inline(self.body).map_or(&[], |(_, own)| own);
        }
        self.body
    }
}

impl ItemLayout {
    /// The layout that holds `content`.
    pub(crate) fn of(content: Content<'_>) -> Self {
        match content {
            Content::Value(Value::Bytes(bytes)) => Self::Blob(bytes.len()),
            Content::Value(Value::Number(number)) if u32::try_from(number).is_ok() => Self::Narrow,
            Content::Value(Value::Number(_)) => Self::Wide,
            Content::State(state) => Self::State(state.body.len()),
        }
    }

    /// Size of an item with a key of `key_bytes` and these client flags.
    pub(crate) fn item_bytes(self, key_bytes: usize, client_flags: u32) -> usize {
        let flags_bytes = if client_flags == 0 { 0 } else { FLAGS_BYTES };
        self.bytes_to_flags(key_bytes) + flags_bytes
    }

    fn bytes_to_flags(self, key_bytes: usize) -> usize {
        let behind_key = match self {
            Self::Blob(bytes) | Self::State(bytes) => bytes,
            Self::Narrow | Self::Wide => 0,
        };
        NUMBER + self.number_bytes() + key_bytes + behind_key
    }

    fn number_bytes(self) -> usize {
        NUMBER_BYTES[usize::from(self.code())]
    }

    fn code(self) -> u8 {
        match self {
            Self::Blob(_) => 0,
            Self::Narrow => 1,
            Self::Wide => 2,
            Self::State(_) => 3,
        }
    }
}

/// What `number` takes, by the code of the layout.
const NUMBER_BYTES: [usize; 4] = [4, 4, 8, STATE_LENGTH_BYTES];

/// One-bit marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemFlag(u8);

impl ItemFlag {
    /// Fetched at least once.
    pub(crate) const FETCHED: Self = Self(0b0000_0100);
    /// Invalidated: answered as stale.
    pub(crate) const STALE: Self = Self(0b0000_1000);
    /// A client has been told to recache it.
    pub(crate) const WON: Self = Self(0b0001_0000);
    /// The key came in base64.
    pub(crate) const BASE64: Self = Self(0b0010_0000);
    /// A limit has refused the key since it was idle.
    pub(crate) const REFUSED: Self = Self(0b0100_0000);
    /// Those that another node must know of.
    pub(crate) const COPIED: u8 = Self::STALE.0 | Self::WON.0 | Self::BASE64.0 | Self::REFUSED.0;
}

/// The figures of an item that are not its key or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemHeader {
    pub(crate) cas: u64,
    pub(crate) client_flags: u32,
    pub(crate) deadline: Deadline,
    pub(crate) marks: u8,
}

impl ItemHeader {
    pub(crate) fn new(cas: u64, client_flags: u32, deadline: Deadline) -> Self {
        Self { cas, client_flags, deadline, marks: 0 }
    }

    pub(crate) fn mark(mut self, mark: ItemFlag, on: bool) -> Self {
        if on {
            self.marks |= mark.0;
        } else {
            self.marks &= !mark.0;
        }
        self
    }
}

/// When an item was last used, in tenths of a second on the monotonic clock; wraps after 13 years,
/// which costs at worst one wrong choice of what to evict.
fn access_time(now: Now) -> u32 {
    (now.mono.millis() / 100) as u32
}

/// An item to look at.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a>(pub(crate) &'a [u8]);

impl<'a> Item<'a> {
    /// What all items have. It is asked for as a whole, so that its length is compared once, however
    /// much of it is read.
    #[inline]
    fn head(self) -> &'a [u8; HEAD_BYTES] {
        self.0.first_chunk().expect("a slot has room for a head")
    }

    #[inline]
    fn read<const N: usize>(self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.head()[at..at + N]);
        bytes
    }

    pub(crate) fn cas(self) -> u64 {
        u64::from_le_bytes(self.read(0))
    }

    pub(crate) fn client_flags(self) -> u32 {
        if !self.is_flagged() {
            return 0;
        }
        let flags = self.0[self.bytes_to_flags()..].first_chunk();
        flags.map_or(0, |flags| u32::from_le_bytes(*flags))
    }

    fn is_flagged(self) -> bool {
        self.head()[BITS] & FLAGGED != 0
    }

    pub(crate) fn deadline(self) -> Deadline {
        Deadline::from_bytes(self.read(DEADLINE))
    }

    /// Seconds since the last use.
    pub(crate) fn idle_seconds(self, now: Now) -> u32 {
        self.idle(now) / 10
    }

    /// Tenths of a second since the last use of a value or counter: the greater, the sooner evicted.
    pub(crate) fn idle(self, now: Now) -> u32 {
        let idle = access_time(now).wrapping_sub(u32::from_le_bytes(self.read(ACCESS)));
        // Another worker, whose batch is younger, has used it meanwhile.
        if idle > u32::MAX / 2 { 0 } else { idle }
    }

    pub(crate) fn has(self, mark: ItemFlag) -> bool {
        self.head()[BITS] & mark.0 != 0
    }

    #[inline]
    pub(crate) fn header(self) -> ItemHeader {
        ItemHeader {
            cas: self.cas(),
            client_flags: self.client_flags(),
            deadline: self.deadline(),
            marks: self.head()[BITS] & !(LAYOUT_MASK | FLAGGED),
        }
    }

    pub(crate) fn layout(self) -> ItemLayout {
        match self.head()[BITS] & LAYOUT_MASK {
            0 => ItemLayout::Blob(u32::from_le_bytes(self.read(NUMBER)) as usize),
            1 => ItemLayout::Narrow,
            2 => ItemLayout::Wide,
            _ => {
                let [a, b, c] = self.read(NUMBER);
                ItemLayout::State(u32::from_le_bytes([a, b, c, 0]) as usize)
            }
        }
    }

    fn key_start(self) -> usize {
        NUMBER + NUMBER_BYTES[usize::from(self.head()[BITS] & LAYOUT_MASK)]
    }

    pub(crate) fn key(self) -> &'a [u8] {
        let start = self.key_start();
        &self.0[start..start + usize::from(self.head()[KEY_BYTES])]
    }

    /// Whether it is the item of this key. Most keys are too short for a call that compares.
    #[inline]
    pub(crate) fn has_key(self, key: &[u8]) -> bool {
        let own = self.key();
        if own.len() != key.len() {
            return false;
        }
        let (Some(own_end), Some(end)) = (own.last_chunk::<8>(), key.last_chunk::<8>()) else {
            return own == key;
        };
        let eights = own.as_chunks::<8>().0.iter().zip(key.as_chunks::<8>().0);
        own_end == end && eights.into_iter().all(|(own, other)| own == other)
    }

    pub(crate) fn value(self) -> Value<'a> {
        match self.layout() {
            ItemLayout::Narrow => Value::Number(u64::from(u32::from_le_bytes(self.read(NUMBER)))),
            ItemLayout::Wide => {
                let low = u32::from_le_bytes(self.read(NUMBER));
                let mut high = [0; 4];
                high.copy_from_slice(&self.0[HEAD_BYTES..HEAD_BYTES + 4]);
                Value::Number(u64::from(u32::from_le_bytes(high)) << 32 | u64::from(low))
            }
            ItemLayout::Blob(_) => Value::Bytes(self.behind_key()),
            // Nobody sees a state as it is: callers ask `state` first.
            ItemLayout::State(_) => Value::Bytes(b""),
        }
    }

    /// The state of a limit, where that is what the item holds.
    pub(crate) fn state(self) -> Option<LimitState<'a>> {
        let ItemLayout::State(_) = self.layout() else { return None };
        Some(LimitState { policy_id: u32::from_le_bytes(self.read(RULE)), body: self.behind_key() })
    }

    fn behind_key(self) -> &'a [u8] {
        let start = self.key_start() + usize::from(self.head()[KEY_BYTES]);
        match self.layout() {
            ItemLayout::Blob(bytes) | ItemLayout::State(bytes) => &self.0[start..start + bytes],
            ItemLayout::Narrow | ItemLayout::Wide => b"",
        }
    }

    /// What it takes in memory, without rounding.
    pub(crate) fn bytes(self) -> usize {
        self.bytes_to_flags() + if self.is_flagged() { FLAGS_BYTES } else { 0 }
    }

    /// Where the client flags begin, behind all else: the end of a state.
    #[inline]
    pub(crate) fn bytes_to_flags(self) -> usize {
        self.layout().bytes_to_flags(usize::from(self.head()[KEY_BYTES]))
    }
}

/// An item to change. The slot may be longer than the item.
pub(crate) struct ItemMut<'a>(pub(crate) &'a mut [u8]);

impl<'a> ItemMut<'a> {
    /// The item as it is now.
    pub(crate) fn as_item(&self) -> Item<'_> {
        Item(self.0)
    }

    /// The item, which nobody changes any more.
    pub(crate) fn into_item(self) -> Item<'a> {
        Item(self.0)
    }

    fn head(&mut self) -> &mut [u8; HEAD_BYTES] {
        self.0.first_chunk_mut().expect("a slot has room for a head")
    }

    /// Writes a whole item over whatever was there.
    pub(crate) fn fill(&mut self, now: Now, header: ItemHeader, key: &[u8], content: Content<'_>) {
        let layout = ItemLayout::of(content);
        let slot = &mut *self.0;
        slot[BITS] = layout.code() | if header.client_flags == 0 { 0 } else { FLAGGED };
        slot[KEY_BYTES] = key.len() as u8;
        let key_start = NUMBER + layout.number_bytes();
        slot[key_start..key_start + key.len()].copy_from_slice(key);
        let value_start = key_start + key.len();
        match content {
            Content::Value(value @ Value::Number(_)) => self.set_number_of(layout, value),
            Content::Value(Value::Bytes(bytes))
            | Content::State(LimitState { body: bytes, .. }) => {
                let length = (bytes.len() as u32).to_le_bytes();
                self.0[NUMBER..key_start].copy_from_slice(&length[..key_start - NUMBER]);
                self.0[value_start..value_start + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.set_header(header);
        match content {
            Content::Value(_) => self.touch(now),
            Content::State(state) => {
                self.head()[RULE..RULE + 4].copy_from_slice(&state.policy_id.to_le_bytes());
            }
        }
    }

    fn set_number_of(&mut self, layout: ItemLayout, value: Value<'_>) {
        let Value::Number(number) = value else { return };
        match layout {
            ItemLayout::Narrow => {
                self.head()[NUMBER..].copy_from_slice(&(number as u32).to_le_bytes());
            }
            ItemLayout::Wide => self.0[NUMBER..NUMBER + 8].copy_from_slice(&number.to_le_bytes()),
            ItemLayout::Blob(_) | ItemLayout::State(_) => {}
        }
    }

    /// Changes the count of a counter; false when it does not fit the item's layout.
    #[inline]
    pub(crate) fn set_number(&mut self, number: u64) -> bool {
        let layout = Item(self.0).layout();
        let fits = match layout {
            ItemLayout::Blob(_) | ItemLayout::State(_) => false,
            ItemLayout::Narrow => u32::try_from(number).is_ok(),
            ItemLayout::Wide => true,
        };
        if fits {
            self.set_number_of(layout, Value::Number(number));
        }
        fits
    }

    /// Writes over the end of a state, which is [there](Item::bytes_to_flags), as far as `end` goes.
    #[inline]
    pub(crate) fn set_state_end(&mut self, behind_state: usize, end: impl StateBytes) {
        end.write_at_end(&mut self.0[..behind_state]);
    }

    /// Writes the figures; client flags that are not 0 need an item that was [filled](Self::fill) with some.
    pub(crate) fn set_header(&mut self, header: ItemHeader) {
        self.set_cas(header.cas);
        self.set_deadline(header.deadline);
        let bits = &mut self.head()[BITS];
        *bits = *bits & (LAYOUT_MASK | FLAGGED) | header.marks;
        if self.as_item().is_flagged() {
            self.set_client_flags(header.client_flags);
        } else {
            debug_assert_eq!(header.client_flags, 0, "there is no room for client flags");
        }
    }

    pub(crate) fn set_cas(&mut self, cas: u64) {
        self.head()[..ACCESS].copy_from_slice(&cas.to_le_bytes());
    }

    pub(crate) fn set_deadline(&mut self, deadline: Deadline) {
        self.head()[DEADLINE..BITS].copy_from_slice(&deadline.to_bytes());
    }

    pub(crate) fn set_mark(&mut self, mark: ItemFlag) {
        self.head()[BITS] |= mark.0;
    }

    /// Takes marks and client flags off, as of an item that is written anew.
    pub(crate) fn clear_marks(&mut self) {
        let bits = &mut self.head()[BITS];
        *bits &= LAYOUT_MASK | FLAGGED;
        if self.as_item().is_flagged() {
            self.set_client_flags(0);
        }
    }

    fn set_client_flags(&mut self, client_flags: u32) {
        let at = self.as_item().bytes_to_flags();
        self.0[at..at + FLAGS_BYTES].copy_from_slice(&client_flags.to_le_bytes());
    }

    /// Notes that a value or counter is used now.
    pub(crate) fn touch(&mut self, now: Now) {
        self.head()[ACCESS..DEADLINE].copy_from_slice(&access_time(now).to_le_bytes());
    }
}
