//! The only file that requests randomness.
//!
//! Not here: the use of it. In a simulated world it comes from the world's seed.

use std::io;

/// Fills `bytes` with unpredictable values.
///
/// # Errors
///
/// The system has no source of randomness.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    #[cfg(feature = "simulation")]
    if crate::net::world::fill(bytes) {
        return Ok(());
    }
    getrandom::fill(bytes).map_err(io::Error::other)
}
