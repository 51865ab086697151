//! The options of one backend: named values, each with the place where it was written.

use std::{fmt, ops::RangeInclusive, path::PathBuf, sync::Arc, time::Duration};

use distlock_core::{Error, ErrorKind, Result, excerpt, parse_duration};

use crate::{DriverOption, mask::shown_value};

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
    /// shown unless it is a secret; a URL is shown without its secrets.
    #[must_use]
    pub fn wrong(&self, problem: impl fmt::Display) -> Error {
        Error::new(
            ErrorKind::InvalidConfig,
            self.origin.locate(format_args!(
                "option `{}` = \"{}\": {problem}",
                self.key,
                shown_value(&self.key, &self.value).escape_debug()
            )),
        )
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.key, shown_value(&self.key, &self.value))
    }
}

/// The options that were given for one backend. The backend takes each option that it knows out of
/// this list. An option that is left at the end is unknown, or was given a second time.
#[derive(Clone, Debug, Default)]
pub struct Options {
    given: Vec<Given>,
    known: Vec<&'static str>,
    /// Where each option with a single value was written that was taken.
    taken: Vec<(&'static str, Origin)>,
}

impl Options {
    /// Adds an option. Only the backend knows which options may be given several times, so
    /// [`finish`](Self::finish) refuses the others.
    pub fn add(&mut self, key: String, value: String, origin: Origin) {
        self.given.push(Given { key, value, origin });
    }

    /// Takes an option with a single value out of the list.
    pub fn take(&mut self, key: &'static str) -> Option<Given> {
        self.known.push(key);
        let at = self.given.iter().position(|given| given.key == key)?;
        let given = self.given.remove(at);
        self.taken.push((key, given.origin.clone()));
        Some(given)
    }

    /// Takes an option out of the list that may be given several times, and returns its values in
    /// the order in which they were written. A configuration file has them as an array under the
    /// plural: `members = ["..", ".."]` is `member`, given twice.
    pub fn take_list(&mut self, key: &'static str) -> Vec<Given> {
        self.known.push(key);
        let is_it = |given: &Given| {
            given.key == key || given.key.strip_suffix('s').is_some_and(|one| one == key)
        };
        let (taken, left) = std::mem::take(&mut self.given).into_iter().partition(is_it);
        self.given = left;
        taken
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

    /// Takes all options with a name in `known` out of the list. Each has a single value.
    pub fn take_all(&mut self, known: &[&'static str]) -> Vec<Given> {
        self.known.extend(known);
        let mut taken = Vec::new();
        for given in std::mem::take(&mut self.given) {
            let name = known.iter().find(|name| **name == given.key);
            match name {
                Some(name) if !self.is_taken(name) => {
                    self.taken.push((name, given.origin.clone()));
                    taken.push(given);
                }
                _ => self.given.push(given),
            }
        }
        taken
    }

    fn is_taken(&self, name: &str) -> bool {
        self.taken.iter().any(|(taken, _)| *taken == name)
    }

    /// Checks that every option was taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names an option with a single value that is given twice,
    /// or else the first remaining option, and the known option that the user probably meant.
    pub fn finish(mut self, backend: &str) -> Result<()> {
        self.check_single_values()?;
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

    /// Refuses an option that was taken as one with a single value and is still in the list.
    pub(crate) fn check_single_values(&self) -> Result<()> {
        for again in &self.given {
            let Some((key, first)) = self.taken.iter().find(|(key, _)| *key == again.key) else {
                continue;
            };
            let places = if *first == again.origin {
                format!("in {first}")
            } else {
                format!("in {first} and in {}", again.origin)
            };
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("option `{key}` is given twice: {places}"),
            ));
        }
        Ok(())
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

    /// Options as in a URL, each with its value.
    fn options(given: &[(&str, &str)]) -> Options {
        let mut options = Options::default();
        for (key, value) in given {
            options.add((*key).to_owned(), (*value).to_owned(), Origin::Url);
        }
        options
    }

    fn values(given: Vec<Given>) -> Vec<String> {
        given.into_iter().map(|given| given.value).collect()
    }

    #[test]
    fn a_list_is_taken_in_its_order_from_between_other_options() {
        let given = [
            ("member", "c"),
            ("max_lease", "1m"),
            ("member", "a"),
            // The array of a configuration file.
            ("members", "b"),
            ("member", "a"),
        ];
        let mut both = options(&given);
        assert_eq!(values(both.take_list("member")), ["c", "a", "b", "a"]);
        assert_eq!(both.take("max_lease").unwrap().value, "1m");
        assert!(both.take_list("member").is_empty());
        both.finish("it").unwrap();
        assert!(options(&[]).take_list("member").is_empty());
        let mut other = options(&[("memberss", "a"), ("membe", "b")]);
        assert!(other.take_list("member").is_empty());
        let error = other.finish("it").unwrap_err();
        assert!(
            error.to_string().ends_with("did you mean `member`?"),
            "{error}"
        );
    }

    #[test]
    fn an_option_with_a_single_value_is_refused_the_second_time() {
        let given = [("member", "a"), ("one", "1"), ("two", "2"), ("member", "b")];
        for twice in ["one", "two"] {
            let mut options = options(&given);
            let origin = Origin::Setting("--backend");
            options.add(twice.to_owned(), "3".to_owned(), origin);
            options.take_list("member");
            assert_eq!(options.take("one").unwrap().value, "1");
            assert_eq!(values(options.take_all(&["two"])), ["2"]);
            let error = options.finish("it").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let says = format!("option `{twice}` is given twice: in the URL and in --backend");
            assert_eq!(error.message(), says);
        }
        let mut options = options(&[("one", "1"), ("one", "1")]);
        assert_eq!(options.take_all(&["one", "two"]).len(), 1);
        let error = options.finish("it").unwrap_err();
        assert_eq!(error.message(), "option `one` is given twice: in the URL");
    }

    #[test]
    fn the_secret_of_a_url_in_an_option_is_not_shown() {
        let mut options = options(&[
            ("member", "a=redis://u:hunter2@h/0?a=1"),
            ("member", "b=redis://h?password=hunter2"),
            ("member", "c=redis%3A%2F%2Fu:hunter2%40h"),
            ("password", "hunter2"),
        ]);
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("member=a=redis://u:***@h/0?a=1"), "{shown}");
        for given in options.take_list("member") {
            let error = given.wrong("it is no store").to_string();
            assert!(error.starts_with("option `member` = \""), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

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
