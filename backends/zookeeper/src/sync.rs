//! Locks a mutex, even if the mutex is poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code of this crate panics while it holds a mutex, so the content is always consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
