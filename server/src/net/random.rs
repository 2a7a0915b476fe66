//! The only file that asks for randomness.
//!
//! Not here: what becomes of it. In a simulated world it comes from the world's seed.

use std::io;

/// Fills `bytes` with what nobody can guess.
///
/// # Errors
///
/// A system that has none.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if crate::net::world::fill(bytes) {
        return Ok(());
    }
    getrandom::fill(bytes).map_err(io::Error::other)
}
