//! memcached's text protocol and the native verbs as pure functions: bytes to requests, outcomes to
//! bytes.
//!
//! Here: the classic, the meta and the native verbs, their errors, the policy token, and every
//! bound on the input of a client. Not here: the effect of a command on an item (`engine`), sockets
//! and clocks (`server`).
//!
//! ```
//! use tollgate_protocol::{Bounds, Decoded, Outcome, Request, decode, encode};
//!
//! let line = b"incr hits 5\r\n";
//! let Ok(Decoded::Request { request, consumed }) = decode(line, 0, Bounds::default())
//! else { panic!("a whole line is a whole request") };
//! assert_eq!(consumed, 13);
//! let Request::Command { command, form } = request else { panic!("incr names one key") };
//! let mut out = Vec::new();
//! encode(&mut out, &command, &form, &Outcome::number(42));
//! assert_eq!(out, b"42\r\n");
//! ```

mod backwards;
mod bounds;
mod classic;
mod cluster_admin;
mod decimal;
mod decode;
mod decode_fast;
mod encode;
mod error;
mod key;
mod line;
mod machinery;
mod meta;
mod native;
mod near;
mod number;
mod policy;
mod reply;
mod request;
mod text;
mod text_reply;

pub use bounds::{
    Bounds, GET_LINE_BYTES_MAX, ID_BYTES_MAX, ITEM_OVERHEAD_BYTES, KEY_BYTES_MAX, LIMIT_BYTES_MAX,
    LINE_BYTES_MAX, OPAQUE_BYTES_MAX, POLICY_BYTES_MAX, TAKE_KEYS_MAX,
};
pub use decode::{decode, likely_key};
pub use decode_fast::{CONFIGURED_POLICY, FastRequest, decode_fast};
pub use encode::encode;
pub use error::ProtocolError;
pub use key::{Key, write_escaped_key};
pub use line::{DecodeError, Decoded};
pub use native::groups::{DecidingLimit, KeyFigures, add_groups, name_decider};
pub use native::lines::{encode_allow, encode_deny, encode_verdict, name_hold, name_refusal};
pub use near::is_near;
pub use number::{canonical_u64, lenient_u64};
pub use policy::{
    Algorithm, BAN_REFUSALS_MAX, Ban, BanError, COUNT_MAX, CalendarUnit, LIST_BYTES_MAX,
    LIST_POLICIES_MAX, LISTS_MAX, LOG_ENTRIES_MAX, NamedZone, OffsetChange, Oldest,
    PERIOD_NANOS_MAX, Phase, Policy, PolicyError, PolicyList, PolicyListError, Rate, SLICES_MAX,
    Warm, Window, Zone, duration_nanos, duration_text,
};
pub use reply::{
    CountLine, ItemView, LeaseLine, Outcome, Value, VerdictLine, VerdictWord, encode_hit,
    encode_inspection, encode_number,
};
pub use request::{
    Admin, Arithmetic, CasCondition, ClusterVerb, Command, Costs, Delete, Exptime, Form, Get,
    IncrX, Keys, Lease, Native, Operation, PolicyArg, Request, Set, SetMode, Slide, StatsTopic,
    Take, TakeMany, Ttl, TtlMode,
};
