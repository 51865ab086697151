use crate::Second;

pub struct First(pub Option<Box<Second>>);

#[cfg(test)]
mod tests;
