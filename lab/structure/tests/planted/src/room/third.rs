pub struct Third {
    pub first: Option<Box<crate::first::First>>,
}

#[cfg(test)]
mod tests {
    use crate::room::Second;
}
