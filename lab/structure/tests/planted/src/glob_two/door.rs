use crate::all::*;

pub struct Lock(pub GlobKey);
