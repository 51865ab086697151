//! The two products of this dialect, and where their SQL differs.

/// The product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// The text after the values of an insert that refers to the row it would have inserted.
    pub(crate) const fn new_row(self) -> &'static str {
        match self {
            Self::MariaDb => "",
            Self::MySql => " AS new",
        }
    }

    /// A column of that row. MySQL is about to remove the form `VALUES(..)`; MariaDB never had the
    /// other form.
    pub(crate) fn new_column(self, column: &str) -> String {
        match self {
            Self::MariaDb => format!("VALUES({column})"),
            Self::MySql => format!("new.{column}"),
        }
    }
}
