//! Asking for a cache line before it is needed.
#![allow(unsafe_code)]

/// Asks the processor to bring the cache line of `slice[index]` nearer. Only a hint: any index is
/// allowed, one past the end asks for a line that nobody will read.
#[inline(always)]
pub fn prefetch<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(index).cast::<i8>();
        // SAFETY: PREFETCHT0 belongs to SSE, which every x86-64 has. It reads no memory as far as
        // the program can see and does not fault, whatever the address; `wrapping_add` makes the
        // address without the promise that it lies inside the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}
