//! An allocator that refuses the allocations that a test chooses.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size in bytes from which allocations are counted. Smaller allocations are never refused, for two reasons: libraries
/// allocate small objects in places where they cannot return an error, and the sizes of small objects do not depend on
/// the problem. A file buffer has 8 KiB.
pub const LEAST: usize = 12 << 10;

/// Range of the allocations to refuse: the index of the first of them, and the index after the last of them.
static REFUSED: [AtomicUsize; 2] = [AtomicUsize::new(usize::MAX), AtomicUsize::new(usize::MAX)];
/// Number of counted allocations since the last call of [`refusing`] began.
static SEEN: AtomicUsize = AtomicUsize::new(0);
/// Total size in bytes of the counted allocations that have not been freed.
static LIVE: AtomicIsize = AtomicIsize::new(0);
/// Maximum value of [`LIVE`]. An allocation that would raise [`LIVE`] above this value is refused.
static ROOM: AtomicIsize = AtomicIsize::new(isize::MAX);

/// Allocator that passes calls on to the system's allocator, but refuses the chosen allocations.
pub struct Refusing;

/// Returns `true` to refuse an allocation of `bytes` bytes. If a counted allocation is not refused, adds `more` to
/// [`LIVE`].
fn refuses(bytes: usize, more: isize) -> bool {
    if bytes < LEAST {
        return false;
    }
    let number = SEEN.fetch_add(1, SeqCst);
    let listed = REFUSED[0].load(SeqCst) <= number && number < REFUSED[1].load(SeqCst);
    if listed || LIVE.load(SeqCst).saturating_add(more) > ROOM.load(SeqCst) {
        return true;
    }
    LIVE.fetch_add(more, SeqCst);
    false
}

fn counted(bytes: usize) -> isize {
    if bytes < LEAST { 0 } else { bytes as isize }
}

// SAFETY: every call either returns null, which means that no memory is available, or is passed on to the system's
// allocator, whose requirements the caller guarantees.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size(), counted(layout.size())) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees what this call requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size(), counted(layout.size())) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees what this call requires.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if refuses(bytes, counted(bytes) - counted(layout.size())) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller guarantees what this call requires.
        unsafe { System.realloc(data, layout, bytes) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        LIVE.fetch_sub(counted(layout.size()), SeqCst);
        // SAFETY: the caller guarantees what this call requires.
        unsafe { System.dealloc(data, layout) }
    }
}

/// Choice of the allocations to refuse during a call.
#[derive(Clone, Copy, Debug)]
pub enum Refuse {
    /// No allocation.
    Nothing,
    /// The allocation with this index, counted from zero.
    One(usize),
    /// The allocation with this index and all later ones.
    From(usize),
    /// Every allocation that would make the total size exceed, by more than this number of bytes, the total size at the
    /// start of the call.
    Beyond(usize),
}

/// Guard that ends the refusals when it is dropped.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        REFUSED[0].store(usize::MAX, SeqCst);
        ROOM.store(isize::MAX, SeqCst);
    }
}

/// Lock that is held by the test whose allocations are refused.
static TURN: Mutex<()> = Mutex::new(());

/// Waits until no other test in this process allocates. The other tests wait until the returned guard is dropped.
pub fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `call` while the allocations that `refuse` selects are refused. Returns the result of `call` and the number of
/// counted allocations.
pub fn refusing<T>(refuse: Refuse, call: impl FnOnce() -> T) -> (T, usize) {
    SEEN.store(0, SeqCst);
    let armed = Armed;
    let (first, behind) = match refuse {
        Refuse::One(number) => (number, number + 1),
        Refuse::From(number) => (number, usize::MAX),
        Refuse::Nothing | Refuse::Beyond(_) => (usize::MAX, usize::MAX),
    };
    REFUSED[1].store(behind, SeqCst);
    REFUSED[0].store(first, SeqCst);
    if let Refuse::Beyond(bytes) = refuse {
        ROOM.store(LIVE.load(SeqCst).saturating_add_unsigned(bytes), SeqCst);
    }
    let done = call();
    drop(armed);
    (done, SEEN.load(SeqCst))
}
