//! A hint to the processor: this memory is needed soon.
//!
//! The one module with unsafe code, because the hint has no safe form in stable Rust. Measured with
//! 1 M keys at 50 connections × 16 requests, in ARCHITECTURE.md.

/// Asks for the cache line of `value` without waiting for it. Changes nothing else.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the intrinsic is unsafe for want of a safe form")]
    // SAFETY: the hint never faults, reads nothing that the program can see, and the address is
    // that of a live reference; SSE, which it needs, is part of every x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
