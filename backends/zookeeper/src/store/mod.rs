//! An open store: its threads, its sessions one after the other, and the handles of its users.

mod connect;
mod handle;
mod supervisor;

pub(crate) use handle::StoreHandle;
pub(crate) use supervisor::Supervisor;
