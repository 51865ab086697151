use crate::alias_one::Key;

pub struct Door(pub Key);
