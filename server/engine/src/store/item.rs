//! An item as bytes: one run of memory with header, key and value.
//!
//! ```text
//! 0     8        12         17     18   19        19+n      19+n+k
//! | cas | access | deadline | bits | k  | number  | key     | value  | client flags    |
//!   u64   u32      40 bits    u8     u8   n bytes   k bytes   (blob)   (u32, if not 0)
//! ```
//!
//! Here: reading and writing the bytes. `number` is the count itself in 4 or 8 bytes, or the length
//! of a blob in 4 or of a limit state in 3. A counter with a 20-byte key takes 43 bytes. A limit
//! state has its policy id in place of `access`, because its last use does not determine when it
//! may be evicted. Not here: the storage of items (`arena`), finding them (`index`).

use protocol::Value;

use super::state_bytes::StateBytes;
use crate::policy_table::{LimitState, is_same};
use crate::time::{Deadline, Now};

const ACCESS: usize = 8;
/// The offset of the policy id of a limit state, in place of `ACCESS`.
const RULE: usize = ACCESS;
const DEADLINE: usize = 12;
const BITS: usize = 17;
const KEY_BYTES: usize = 18;
const NUMBER: usize = 19;
/// The end of a number of four bytes.
const HEAD_BYTES: usize = NUMBER + 4;
/// Bytes of the length of a limit state: enough for any state.
const STATE_LENGTH_BYTES: usize = 3;

/// The bits of `bits` that encode the layout.
const LAYOUT_MASK: u8 = 0b11;
/// Marks client flags behind all other bytes. Few clients that count set any.
const FLAGGED: u8 = 0b1000_0000;
const FLAGS_BYTES: usize = 4;

/// The content behind the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ItemLayout {
    /// A value of this many bytes.
    Blob(usize),
    /// A count up to `u32::MAX`.
    Narrow,
    /// Any count.
    Wide,
    /// A limit state of this many bytes.
    State(usize),
}

/// The content written into an item.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Content<'a> {
    /// A value that clients stored or counted.
    Value(Value<'a>),
    /// A limit state.
    State(LimitState<'a>),
}

impl ItemLayout {
    /// The layout for `content`.
    pub(crate) fn of(content: Content<'_>) -> Self {
        match content {
            Content::Value(Value::Bytes(bytes)) => Self::Blob(bytes.len()),
            Content::Value(Value::Number(number)) if u32::try_from(number).is_ok() => Self::Narrow,
            Content::Value(Value::Number(_)) => Self::Wide,
            Content::State(state) => Self::State(state.body.len()),
        }
    }

    /// The size of an item with a key of `key_bytes` and these client flags.
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

/// The length of `number`, by the code of the layout.
const NUMBER_BYTES: [usize; 4] = [4, 4, 8, STATE_LENGTH_BYTES];

/// One-bit marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemFlag(u8);

impl ItemFlag {
    /// Fetched at least once.
    pub(crate) const FETCHED: Self = Self(0b0000_0100);
    /// Invalidated: reported as stale.
    pub(crate) const STALE: Self = Self(0b0000_1000);
    /// A client has won the right to recache the item.
    pub(crate) const WON: Self = Self(0b0001_0000);
    /// The key arrived in base64.
    pub(crate) const BASE64: Self = Self(0b0010_0000);
    /// A limit has refused the key since the state was idle.
    pub(crate) const REFUSED: Self = Self(0b0100_0000);
    /// The marks that are replicated to other nodes.
    pub(crate) const COPIED: u8 = Self::STALE.0 | Self::WON.0 | Self::BASE64.0 | Self::REFUSED.0;
}

/// The fields of an item beside its key and value.
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

/// The time of the last use, in tenths of a second on the monotonic clock; wraps after 13 years,
/// which costs at worst one wrong choice of a victim.
fn access_time(now: Now) -> u32 {
    (now.mono.millis() / 100) as u32
}

/// A read-only item.
#[derive(Clone, Copy)]
pub(crate) struct Item<'a>(pub(crate) &'a [u8]);

impl<'a> Item<'a> {
    /// The part that all items have. It is sliced as a whole, so that its length is checked only
    /// once.
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

    /// Whether client flags lie behind the item.
    pub(crate) fn is_flagged(self) -> bool {
        self.head()[BITS] & FLAGGED != 0
    }

    pub(crate) fn deadline(self) -> Deadline {
        Deadline::from_bytes(self.read(DEADLINE))
    }

    /// Seconds since the last use.
    pub(crate) fn idle_seconds(self, now: Now) -> u32 {
        self.idle(now) / 10
    }

    /// Tenths of a second since the last use of a value or counter: the greatest is evicted first.
    pub(crate) fn idle(self, now: Now) -> u32 {
        let idle = access_time(now).wrapping_sub(u32::from_le_bytes(self.read(ACCESS)));
        // Another worker with a later batch has used the item in the meantime.
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

    /// Whether this is the item of `key`.
    #[inline]
    pub(crate) fn has_key(self, key: &[u8]) -> bool {
        is_same(self.key(), key)
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
            // Unreachable: callers check `state` first.
            ItemLayout::State(_) => Value::Bytes(b""),
        }
    }

    /// The limit state, if the item contains one.
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

    /// Bytes in memory, without rounding.
    pub(crate) fn bytes(self) -> usize {
        self.bytes_to_flags() + if self.is_flagged() { FLAGS_BYTES } else { 0 }
    }

    /// The offset of the client flags, behind all other bytes: the end of a limit state.
    #[inline]
    pub(crate) fn bytes_to_flags(self) -> usize {
        self.layout().bytes_to_flags(usize::from(self.head()[KEY_BYTES]))
    }
}

/// A mutable item. The slot may be longer than the item.
pub(crate) struct ItemMut<'a>(pub(crate) &'a mut [u8]);

impl<'a> ItemMut<'a> {
    /// The item as it is now.
    pub(crate) fn as_item(&self) -> Item<'_> {
        Item(self.0)
    }

    /// Converts to a read-only item.
    pub(crate) fn into_item(self) -> Item<'a> {
        Item(self.0)
    }

    fn head(&mut self) -> &mut [u8; HEAD_BYTES] {
        self.0.first_chunk_mut().expect("a slot has room for a head")
    }

    /// Writes a whole item over the former content of the slot.
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

    /// Changes the count of a counter; false if it does not fit the item's layout.
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

    /// Writes `end` over the end of a limit state, which is at
    /// [`behind_state`](Item::bytes_to_flags).
    #[inline]
    pub(crate) fn set_state_end(&mut self, behind_state: usize, end: impl StateBytes) {
        end.write_at_end(&mut self.0[..behind_state]);
    }

    /// Writes the header; client flags other than 0 require an item that was [filled](Self::fill)
    /// with some.
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

    /// Clears marks and client flags, as in an item that is written anew.
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

    /// Records a use of a value or counter.
    pub(crate) fn touch(&mut self, now: Now) {
        self.head()[ACCESS..DEADLINE].copy_from_slice(&access_time(now).to_le_bytes());
    }
}
