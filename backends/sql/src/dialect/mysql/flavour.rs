//! The two products of this dialect, and the differences between their SQL.

/// The product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// The text after the values of an insert whose `ON DUPLICATE KEY UPDATE` refers to the new
    /// row.
    pub(crate) const fn new_row(self) -> &'static str {
        match self {
            Self::MariaDb => "",
            Self::MySql => " AS new",
        }
    }

    /// A column of the new row, inside `ON DUPLICATE KEY UPDATE`. MySQL has deprecated the form
    /// `VALUES(..)`; MariaDB has no other form.
    pub(crate) fn new_column(self, column: &str) -> String {
        match self {
            Self::MariaDb => format!("VALUES({column})"),
            Self::MySql => format!("new.{column}"),
        }
    }
}
