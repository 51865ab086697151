//! Locks a mutex, even if the mutex is poisoned.

use parking_lot::{Mutex, MutexGuard};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of this crate panics while it holds a mutex, so the content is always consistent.
    mutex.lock()
}
