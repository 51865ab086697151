use crate::Second;

pub struct First(pub Option<Box<Second>>);

// A comment is no line of code.
pub fn long() -> usize {
    let one = 1;
    let two = 2;
    one + two
}

#[cfg(test)]
mod tests;
