//! The forms of a driver's URLs and its options, for help texts and documentation.

/// One option of a kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOption {
    /// The name of the option, as in `?name=value`.
    pub name: &'static str,
    /// The values of the option and their effect.
    pub help: &'static str,
    /// The default, in words or as a value; empty if the option has no default.
    pub default: &'static str,
}

impl DriverOption {
    /// The option `connect_timeout`, which [`Target`](crate::Target) reads for every driver. A
    /// driver includes the option in its own list only if the driver's own URL parser reads the
    /// option, too.
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
    /// The form, with the variable parts in capitals, for example `redis://HOST:PORT`.
    pub form: &'static str,
    /// The store that such a URL names.
    pub store: &'static str,
}

impl DriverUrl {
    /// A form of URL, and the store that such a URL names.
    #[must_use]
    pub const fn new(form: &'static str, store: &'static str) -> Self {
        Self { form, store }
    }
}
