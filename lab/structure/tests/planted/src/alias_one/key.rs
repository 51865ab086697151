use crate::all as house;

pub struct Key(pub Option<Box<house::Door>>);
