//! Batches that change something: one conditional statement each, and one read of the rows of
//! refused operations. A batch that both takes and frees is a transaction of two.

mod acquire;
mod acquire_and_release;
mod batch;
mod records;
mod release;
mod renew;
mod send;

pub(crate) use self::send::send;
