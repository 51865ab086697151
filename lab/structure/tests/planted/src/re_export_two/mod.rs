pub struct Gate(pub crate::re_export_one::Fence);
