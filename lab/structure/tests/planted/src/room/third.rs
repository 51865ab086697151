pub struct Third {
    pub first: Option<Box<crate::hall::First>>,
}

#[cfg(test)]
mod tests {
    use crate::room::Second;
}
