//! What every listener of a node shares: its connections, their number, and how they end.

mod line;

pub(crate) use line::{Line, LineHandle, LineListener, Places};
