use crate::all::*;

pub struct GlobKey(pub Option<Box<Lock>>);
