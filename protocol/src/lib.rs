//! memcached's text protocol as pure functions: bytes to requests, outcomes to bytes.
//!
//! Here: the classic verbs, the meta verbs, their errors, and every bound on what a client may
//! send. Not here: what a command does to an item (`engine`), sockets and clocks (`server`).
//!
//! ```
//! use tollgate_protocol::{Bounds, Decoded, Outcome, Request, decode, encode};
//!
//! let Ok(Decoded::Request { request, consumed }) = decode(b"incr hits 5\r\n", 0, Bounds::default())
//! else { panic!("a whole line is a whole request") };
//! assert_eq!(consumed, 13);
//! let Request::Command { command, form } = request else { panic!("incr names one key") };
//! let mut out = Vec::new();
//! encode(&mut out, &command, &form, &Outcome::number(42));
//! assert_eq!(out, b"42\r\n");
//! ```

mod bounds;
mod decode;
mod error;
mod key;
mod meta;
mod number;
mod policy;
mod reply;
mod request;
mod text;

pub use bounds::{
    Bounds, GET_LINE_BYTES_MAX, ITEM_OVERHEAD_BYTES, KEY_BYTES_MAX, LINE_BYTES_MAX,
    OPAQUE_BYTES_MAX,
};
pub use decode::{Decoded, Refusal, decode, likely_key};
pub use error::ProtocolError;
pub use key::Key;
pub use number::{canonical_u64, lenient_u64};
pub use policy::{
    Algorithm, COUNT_MAX, CalendarUnit, Oldest, PERIOD_NANOS_MAX, Phase, Policy, Rate, Warm, Window,
};
pub use reply::{ItemView, Outcome, Value, encode, encode_hit, encode_inspection};
pub use request::{
    Admin, Arithmetic, Command, Delete, Exptime, Form, Get, Keys, Operation, Request, Set, SetMode,
    StatsTopic,
};
