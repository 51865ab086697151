pub use crate::re_export_two::Gate;

pub struct Fence;
