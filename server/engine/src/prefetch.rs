//! Prefetch hints to the processor.
//!
//! Here: the engine's only unsafe code, because the hints have no safe form in stable Rust
//! (`docs/internals/decisions/0023-one-unsafe-instruction.md`). Not here: which memory to prefetch
//! (`store/prefetch`).

/// Bytes of a cache line on every common processor.
pub const CACHE_LINE_BYTES: usize = 64;

/// Requests the cache line of `value` without waiting for it. Has no other effect.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "the intrinsic is unsafe for want of a safe form")]
    // SAFETY: the hint never faults, has no effect that the program can observe, and the address is
    // that of a live reference; SSE, which it needs, is part of every x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// Like [`prefetch`], for a value that will be changed: another processor that has the line
/// releases it.
#[inline]
pub fn prefetch_for_write<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    #[expect(
        unsafe_code,
        reason = "assembly has no safe form, and the intrinsic asks for a processor that has the instruction"
    )]
    // SAFETY: as above. x86-64 processors from 2006 on execute the instruction or treat it as a
    // no-op.
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
