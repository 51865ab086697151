//! A fence check for resources that cannot check tokens themselves, kept in a store's records.
//!
//! Invariant: after a fence was admitted, every fence with a lower token is refused. Each change of
//! a record is a compare-and-swap, so concurrent holders cannot lower the stored token.

use std::sync::Arc;

use distlock_core::{
    Entry, Error, ErrorKind, Expect, Fence, FenceError, FenceGuard, FenceState, RecordKey, Records,
    Result, Store, Written,
};

/// The number of attempts to raise the stored token while other holders change it between the read
/// and the write.
const MAX_TRIES: usize = 32;

/// Remembers the highest admitted fence of each resource.
///
/// The check and the step after the check are two operations. So a holder that is paused between
/// them still makes its step, even if a later holder was admitted meanwhile. A resource that can
/// check the token in one step with its change should do so (`distlock::fence`).
#[derive(Clone, Debug)]
pub struct RecordsFence(Arc<dyn Records>);

impl RecordsFence {
    /// Keeps the fences in the records of this store.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        Self(store.records())
    }

    /// Admits a holder and refuses all earlier ones from now on, or refuses the holder.
    ///
    /// # Errors
    /// [`FenceError::Refused`] for an earlier holder. [`FenceError::Failed`] for a name that is not
    /// allowed, for a record that cannot be read ([`ErrorKind::Corrupt`]), and for failures of the
    /// store.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the stored token raised or not. A repeated call is safe.
    pub async fn admit(&self, resource: &str, fence: &Fence) -> Result<(), FenceError> {
        let key = fence_key(resource)?;
        let mut unknown = None;
        for _ in 0..MAX_TRIES {
            let entry = match self.0.get(&key).await {
                Ok(entry) => entry,
                Err(error) => return Err(unknown.unwrap_or(error).into()),
            };
            let kept = entry
                .as_ref()
                .map(|entry| record_text(&key, entry))
                .transpose()?;
            let raised = FenceGuard::raised(kept, resource, fence)?;
            // The record has this fence already. For example, an earlier attempt has written the
            // fence, and the answer to that write was lost.
            if kept == Some(&raised) {
                return Ok(());
            }
            let expect = match &entry {
                None => Expect::Absent,
                Some(entry) => Expect::Version(entry.version),
            };
            match self.0.put(&key, raised.as_bytes(), expect).await {
                Ok(Written::Stored(_)) => return Ok(()),
                Ok(_) => {}
                // The next read shows whether the write happened.
                Err(error) if error.kind() == ErrorKind::OutcomeUnknown => unknown = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        let says = format!("others kept raising the fence of {resource:?}");
        Err(unknown
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, says))
            .into())
    }

    /// The highest fence that was admitted.
    ///
    /// # Errors
    /// Failures of the store, and [`ErrorKind::Corrupt`].
    ///
    /// # Cancel safety
    /// Safe: it only reads.
    pub async fn highest(&self, resource: &str) -> Result<Option<Fence>> {
        let key = fence_key(resource)?;
        let Some(entry) = self.0.get(&key).await? else {
            return Ok(None);
        };
        let state: FenceState = serde_json::from_str(record_text(&key, &entry)?)
            .map_err(|error| corrupt_error(&key).caused_by(error))?;
        Ok(FenceGuard::from_state(state).highest().cloned())
    }

    /// Forgets the fence of a resource. Call this function only when no former holder can still use
    /// the resource.
    ///
    /// # Errors
    /// Failures of the store.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have removed the stored token. A repeated call is safe.
    pub async fn reset(&self, resource: &str) -> Result<()> {
        let key = fence_key(resource)?;
        while let Some(entry) = self.0.get(&key).await? {
            self.0.delete(&key, entry.version).await?;
        }
        Ok(())
    }
}

fn fence_key(resource: &str) -> Result<RecordKey> {
    RecordKey::new(format!("fence/{resource}"))
}

fn record_text<'a>(key: &RecordKey, entry: &'a Entry) -> Result<&'a str> {
    std::str::from_utf8(&entry.value).map_err(|error| corrupt_error(key).caused_by(error))
}

fn corrupt_error(key: &RecordKey) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the record {key} is no fence"))
}
