//! Health.

mod health;
mod limits;

pub(crate) use health::{explain, health};
