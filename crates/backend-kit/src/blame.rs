//! Which of a store's options is the wrong one.
//!
//! A backend parses all its options at once, and its error names none of the places where they were
//! written. This module finds the option: options are added one by one, and the first one that
//! brings the same error is the wrong one.

use distlock_core::{ErrorKind, Result};

use crate::{Driver, TargetParts};

/// An option's name and value.
pub type Pair = (String, String);

/// Parses a target with all options of a driver.
///
/// `parse` is called with the body of the URL and the first options of those that were given, and
/// must depend on nothing else.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for an option that the driver does not have; the error of `parse`,
/// with the place where the option or the URL was written that causes it.
pub fn parse<T>(
    driver: &dyn Driver,
    parts: &mut TargetParts,
    parse: impl Fn(&TargetParts, &[Pair]) -> Result<T>,
) -> Result<T> {
    let known: Vec<_> = driver.options().iter().map(|option| option.name).collect();
    let mut options = std::mem::take(&mut parts.options);
    let given = options.take_all(&known);
    options.finish(driver.name())?;
    let pairs: Vec<Pair> = given
        .iter()
        .map(|option| (option.key.clone(), option.value.clone()))
        .collect();
    parse(parts, &pairs).map_err(|error| {
        let same = |end: usize| {
            parse(parts, &pairs[..end]).err().map(|e| e.to_string()) == Some(error.to_string())
        };
        match (0..=pairs.len()).find(|&end| same(end)) {
            Some(end @ 1..) => given[end - 1].blame(&error),
            _ if error.kind() == ErrorKind::Unsupported => error,
            _ => parts.wrong(error.message()),
        }
    })
}
