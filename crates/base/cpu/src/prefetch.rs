//! Asks the processor for cache lines before they are needed, so that several are on their way at one time.

/// What is to be done with bytes that are asked for ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes are read: other cores may keep them.
    Read,
    /// Bytes are written: other cores' copies become invalid, which else the first write had to wait for.
    Write,
}

/// Asks the processor for the cache line at an address, which may be any.
#[inline(always)]
pub fn prefetch<T>(address: *const T, access: Access) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching changes no memory and never faults. Processors without PREFETCHW take it for a
    // no-op.
    unsafe {
        match access {
            Access::Read => std::arch::asm!(
                "prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)
            ),
            Access::Write => std::arch::asm!(
                "prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)
            ),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, access);
}
