//! How the allocator is made to give back what was freed: a gateway that had many sessions is as small again as before.
//!
//! All of this is glibc's; other allocators do as they do.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often every thread was asked to exchange the blocks it keeps.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Makes the allocator give every large block back to the system as soon as it is freed.
///
/// Left alone, glibc raises its own bound to the largest block it ever saw freed, and from then on a
/// few large results stay resident for good (mallopt(3), `M_MMAP_THRESHOLD`). To be called before
/// the first of them.
pub fn return_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // Results of a megabyte or two are common: for them, fresh pages each time would cost more
        // than the work on their bytes.
        const LARGE_BLOCK: libc::c_int = 4 * 1024 * 1024;
        // SAFETY: sets two numbers in the allocator, under its own lock.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK);
            libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BLOCK);
        }
    }
}

/// Gives free memory back to the system, also what lies between blocks in use; takes about a
/// millisecond. glibc keeps it otherwise, so that the memory of many sessions stays resident after
/// they ended. What threads keep for themselves is not among it: see [`ask_threads`].
pub fn return_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: releases pages that hold no block, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has every thread exchange the blocks it keeps, the next time it has nothing to do and calls
/// [`exchange_kept_blocks`]; a later [`return_free_memory`] then finds more.
pub fn ask_threads() {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

/// Exchanges the blocks this thread keeps for its next allocations, if that was asked for since the last time; takes less
/// than a tenth of a millisecond then.
///
/// Of each small size glibc keeps the last few blocks that a thread freed (its `tcache`). After many sessions they lie
/// scattered, and each holds a page that is free otherwise: a megabyte or two for each thread. No call empties that
/// store, but whoever takes as many blocks again as it holds and frees those first leaves blocks in it that lie together.
pub fn exchange_kept_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        /// Room of the smallest and of the largest blocks that are kept, and from one size to the next, on 64 bits.
        const SIZES: std::ops::RangeInclusive<usize> = 24..=1032;
        const APART: usize = 16;
        thread_local! {
            static HEARD: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
        }
        let asked = ASKED.load(Ordering::Relaxed);
        if HEARD.replace(asked) != asked {
            SIZES.step_by(APART).for_each(exchange);
        }
    }
}

/// How many blocks of a size a thread keeps (glibc's default).
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: usize = 7;

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn exchange(size: usize) {
    // The first come from what is kept, the others from elsewhere. Those are freed first, and fill what is kept: some
    // are a little larger than asked for, and count as another size.
    let mut blocks: [Vec<u8>; 3 * KEPT] = std::array::from_fn(|_| Vec::with_capacity(size));
    // Or nothing would be allocated: nobody uses it.
    std::hint::black_box(&mut blocks);
    blocks.iter_mut().rev().for_each(|block| *block = Vec::new());
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::{KEPT, ask_threads, exchange_kept_blocks};

    const SIZE: usize = 520;

    fn blocks(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|_| std::hint::black_box(Vec::with_capacity(SIZE))).collect()
    }

    fn places(blocks: &[Vec<u8>]) -> Vec<usize> {
        blocks.iter().map(|block| block.as_ptr().addr()).collect()
    }

    #[test]
    fn a_thread_that_was_asked_keeps_other_blocks() {
        // A thread of its own: what it keeps is known.
        let thread = std::thread::spawn(|| {
            let mut all = blocks(50 * KEPT);
            let scattered: Vec<Vec<u8>> = (0..KEPT).map(|number| std::mem::take(&mut all[number * 50])).collect();
            let before = places(&scattered);
            drop(scattered);
            let still = blocks(KEPT);
            assert!(places(&still).iter().all(|place| before.contains(place)), "what it keeps it hands out again");
            drop(still);
            ask_threads();
            exchange_kept_blocks();
            let after = places(&blocks(KEPT));
            assert!(!after.iter().any(|place| before.contains(place)), "{before:?} {after:?}");
        });
        thread.join().expect("the thread ends well");
    }
}
