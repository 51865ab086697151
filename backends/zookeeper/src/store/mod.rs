//! The part that all handles of one store share.

mod closing;
mod connect;
mod handle;
mod supervisor;

pub(crate) use handle::StoreHandle;
pub(crate) use supervisor::Supervisor;
