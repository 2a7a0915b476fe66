//! Hints to the processor: this memory is needed soon.
//!
//! The one module with unsafe code, because the hints have no safe form in stable Rust. Measured with
//! 1 M keys at 50 connections × 16 requests, in docs/internals/decisions.

/// Bytes of a cache line, of all processors we know.
pub const CACHE_LINE_BYTES: usize = 64;

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

/// As [`prefetch`], for a value that is to be changed: another processor that has the line gives it up.
#[inline]
pub fn prefetch_for_write<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(
        unsafe_code,
        reason = "assembly has no safe form, and the intrinsic asks for a processor that has the instruction"
    )]
    // SAFETY: as above. x86-64 processors from 2006 on know the instruction or take it for none.
    unsafe {
        std::arch::asm!(
            "prefetchw [{}]",
            in(reg) std::ptr::from_ref(value),
            options(nostack, preserves_flags, readonly)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
