//! The options of one backend: named values, each with the place where it was written.

use std::{fmt, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Result, excerpt, parse_duration};

use crate::{DriverOption, mask::is_secret};

/// The place where an option or a URL was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// In the program itself.
    Code,
    /// In a configuration file; line and column count from 1.
    File {
        /// The file.
        path: Arc<PathBuf>,
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// As a query parameter of the URL.
    Url,
    /// In an environment variable or a command line flag of this name.
    Setting(&'static str),
}

impl Origin {
    /// Puts this place before a message. A place in the program or in its URL is left out, because
    /// the author of the program knows that place.
    #[must_use]
    pub fn locate(&self, message: impl fmt::Display) -> String {
        match self {
            Self::Code | Self::Url => message.to_string(),
            Self::File { .. } | Self::Setting(_) => format!("{self}: {message}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("the program"),
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Url => f.write_str("the URL"),
            Self::Setting(name) => f.write_str(name),
        }
    }
}

/// One option as it was written.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Given {
    /// The name of the option.
    pub key: String,
    /// The value of the option.
    pub value: String,
    /// The place where the option was written.
    pub origin: Origin,
}

impl Given {
    /// An error of the same kind about this option. [`Origin::locate`] puts the option's place
    /// before the message.
    #[must_use]
    pub fn blame(&self, error: &Error) -> Error {
        Error::new(error.kind(), self.origin.locate(error))
    }

    /// An [`ErrorKind::InvalidConfig`] with the place and the name of this option. The value is
    /// shown unless it is a secret.
    #[must_use]
    pub fn wrong(&self, problem: impl fmt::Display) -> Error {
        let shown = if is_secret(&self.key, &self.value) {
            "***"
        } else {
            &self.value
        };
        Error::new(
            ErrorKind::InvalidConfig,
            self.origin.locate(format_args!(
                "option `{}` = \"{}\": {problem}",
                self.key,
                shown.escape_debug()
            )),
        )
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if is_secret(&self.key, &self.value) {
            "***"
        } else {
            &self.value
        };
        write!(f, "{}={shown}", self.key)
    }
}

/// The options that were given for one backend. The backend takes each option that it knows out of
/// this list. An option that is left at the end is unknown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    given: Vec<Given>,
    known: Vec<&'static str>,
}

impl Options {
    /// Adds an option.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the option was added before.
    pub fn add(&mut self, key: String, value: String, origin: Origin) -> Result<()> {
        if let Some(earlier) = self.given.iter().find(|given| given.key == key) {
            let places = if earlier.origin == origin {
                format!("in {origin}")
            } else {
                format!("in {} and in {origin}", earlier.origin)
            };
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("option `{key}` is given twice: {places}"),
            ));
        }
        self.given.push(Given { key, value, origin });
        Ok(())
    }

    /// Takes an option out of the list.
    pub fn take(&mut self, key: &'static str) -> Option<Given> {
        self.known.push(key);
        let at = self.given.iter().position(|given| given.key == key)?;
        Some(self.given.remove(at))
    }

    /// Takes an option out of the list and parses its value as a duration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when the value is no duration, or is outside the range.
    pub fn take_duration(
        &mut self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Result<Option<Duration>> {
        let Some(given) = self.take(key) else {
            return Ok(None);
        };
        let time = parse_duration(&given.value).map_err(|error| given.wrong(error.message()))?;
        if !range.contains(&time) {
            let (least, most) = range.into_inner();
            return Err(given.wrong(format_args!("it is outside {least:?} to {most:?}")));
        }
        Ok(Some(time))
    }

    /// Takes all options with a name in `known` out of the list.
    pub fn take_all(&mut self, known: &[&'static str]) -> Vec<Given> {
        self.known.extend(known);
        let (taken, left) = std::mem::take(&mut self.given)
            .into_iter()
            .partition(|given| known.contains(&given.key.as_str()));
        self.given = left;
        taken
    }

    /// Checks that every option was taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the first remaining option, and the known option
    /// that the user probably meant.
    pub fn finish(mut self, backend: &str) -> Result<()> {
        let Some(unknown) = self.given.first() else {
            return Ok(());
        };
        self.known.sort_unstable();
        // A backend may also take an option that every backend has, such as `connect_timeout`.
        self.known.dedup();
        Err(Error::new(
            ErrorKind::InvalidConfig,
            unknown
                .origin
                .locate(unknown_option_message(&unknown.key, backend, &self.known)),
        ))
    }
}

/// The error for an option that a backend does not have. The error names the known option that the
/// user probably meant.
#[must_use]
pub fn unknown_option(name: &str, backend: &str, known: &[DriverOption]) -> Error {
    let mut known: Vec<_> = known.iter().map(|option| option.name).collect();
    known.sort_unstable();
    Error::new(
        ErrorKind::InvalidConfig,
        unknown_option_message(name, backend, &known),
    )
}

fn unknown_option_message(name: &str, backend: &str, known: &[&str]) -> String {
    format!(
        "unknown option `{}` for {backend}: {}",
        excerpt(name),
        hint(name, known)
    )
}

/// The known word that the user probably meant; `None` if no known word is similar enough.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(&given, word), word))
        .filter(|(distance, word)| *distance <= (word.len().max(given.len()) / 3).max(1))
        .min()
        .map(|(_, word)| word)
}

/// The end of a message about an unknown word: the known word that the user probably meant, or all
/// known words.
#[must_use]
pub fn hint(given: &str, known: &[&str]) -> String {
    if let Some(word) = nearest(given, known.iter().copied()) {
        format!("did you mean `{word}`?")
    } else if known.is_empty() {
        "there are none".into()
    } else {
        format!("known are {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_word_is_suggested() {
        let known = ["connect_timeout", "reap_after", "url"];
        assert_eq!(nearest("conect_timeout", known), Some("connect_timeout"));
        assert_eq!(nearest("reapafter", known), Some("reap_after"));
        assert_eq!(nearest("URL", known), Some("url"));
        assert_eq!(nearest("banana", known), None);
        assert_eq!(
            hint("banana", &known),
            "known are connect_timeout, reap_after, url"
        );
    }
}
