//! Writes and deletes records.

use distlock_backend_kit::batch::Reply;
use distlock_core::{Deleted, Version, Written};

use super::batch::{Batch, BatchResult};
use crate::{
    dialect::sqlite::parameters::{ValueBlob, json},
    operation::{Answer, Operation, OperationKind},
};

impl Batch<'_> {
    pub(super) async fn put(mut self, kind: OperationKind) -> BatchResult {
        let mut values = ValueBlob::default();
        let rows: Vec<_> = self
            .ops
            .iter()
            .filter_map(|op| {
                let (key, value, version) = match op {
                    Operation::Create(key, value) => (key, value, None),
                    Operation::Replace(key, value, version) => (key, value, Some(version.get())),
                    _ => return None,
                };
                let (start, length) = values.push(value);
                Some((key.as_str(), start, length, version))
            })
            .collect();
        let values = values.into_bytes();
        let mut stored = self
            .tokens(kind, |query| query.bind_first(json(&rows), values))
            .await?;
        let answers = self.ops.iter().map(|op| match stored.remove(op.key()) {
            Some(version) => Ok(Written::Stored(Version::new(version?.get()))),
            None => Ok(Written::Conflict),
        });
        Ok(answers
            .map(|answer| Reply::Done(answer.map(Answer::Written)))
            .collect())
    }

    pub(super) async fn delete(mut self) -> BatchResult {
        let rows: Vec<_> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Operation::Delete(key, version) => Some((key.as_str(), version.get())),
                _ => None,
            })
            .collect();
        let deleted = self
            .tokens(OperationKind::Delete, |query| {
                query.bind_first(json(&rows), Vec::new())
            })
            .await?;
        let answers = self.ops.iter().map(|op| {
            if deleted.contains_key(op.key()) {
                Deleted::Done
            } else {
                Deleted::Conflict
            }
        });
        Ok(answers
            .map(|answer| Reply::Done(Ok(Answer::Deleted(answer))))
            .collect())
    }
}
