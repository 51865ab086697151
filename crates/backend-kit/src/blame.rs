//! The search for the option that causes an error.
//!
//! A backend parses all its options at once, so its error does not say which option caused it. This
//! module finds that option: it parses with one more option at a time, and the first option that
//! brings the same error is the cause.

use distlock_core::{ErrorKind, Result};

use crate::{Driver, TargetParts};

/// An option's name and value.
pub type Pair = (String, String);

/// Parses a target with all options of a driver.
///
/// `parse` gets the parts of the target and a list of options. The first call has all given
/// options. After an error, further calls have the first 0, 1, 2 and more of these options. The
/// result of `parse` must depend on its two arguments only.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`] for an option that the driver does not have. Otherwise the error of
/// `parse`, with the place where the option was written that causes the error, or with the place of
/// the URL if no option does.
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
