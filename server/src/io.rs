//! The event loop and the sockets of clients: threads, connections, the listener.
//!
//! Not here: requests and replies (`session`).

pub(crate) mod connection;
pub(crate) mod listener;
pub(crate) mod worker;
pub(crate) mod worker_handle;
