//! The only module that names socket types.
//!
//! Here: `stream` has the streams of clients and peers, `listener` the listeners, `conversation`
//! the stream of a program that waits for each reply, `shared` a stream that several threads write,
//! `clock` and `random` the other sources outside the process, `simulated` and `world` those of a
//! simulated world (only with the feature `simulation`). Not here: the content of streams
//! (`connection`, `transport`).

pub mod clock;
mod conversation;
mod listener;
pub mod random;
pub(crate) mod shared;
#[cfg(feature = "simulation")]
pub(crate) mod simulated;
mod stream;
#[cfg(feature = "simulation")]
pub(crate) mod world;

pub use self::conversation::{Conversation, is_local, try_connect};
pub(crate) use self::listener::ListenerInfo;
pub use self::listener::{BoundListener, Listener};
pub use self::stream::{DetachedStream, Stream};
pub(crate) use self::stream::{UNIX_PEER, UNIX_UNNAMED};
