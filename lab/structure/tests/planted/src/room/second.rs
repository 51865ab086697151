use super::Third;

pub struct Second(pub Option<Box<Third>>);
