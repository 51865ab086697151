//! The forms of a driver's URLs, and its options, for its users.

/// One option of a kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOption {
    /// Its name, as in `?name=value`.
    pub name: &'static str,
    /// Its values and their effect.
    pub help: &'static str,
    /// Its default, in words or as a value; empty when nothing stands in its place.
    pub default: &'static str,
}

impl DriverOption {
    /// The option of every store. A driver lists it only if its own parser knows it, too.
    pub const CONNECT_TIMEOUT: Self = Self::new(
        "connect_timeout",
        "100 ms to 60 s: how long opening may take",
        "5s",
    );

    /// An option with its help text and its default.
    #[must_use]
    pub const fn new(name: &'static str, help: &'static str, default: &'static str) -> Self {
        Self {
            name,
            help,
            default,
        }
    }
}

/// One form of URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverUrl {
    /// The form, with its variable parts in capitals, for example `redis://HOST:PORT`.
    pub form: &'static str,
    /// The store that it names.
    pub store: &'static str,
}

impl DriverUrl {
    /// A form and the store that it names.
    #[must_use]
    pub const fn new(form: &'static str, store: &'static str) -> Self {
        Self { form, store }
    }
}
