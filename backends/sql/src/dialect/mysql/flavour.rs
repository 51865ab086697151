//! The two products of this dialect.

/// Which of the two products it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// What follows the values of an insert that speaks of the row it would have inserted.
    pub(crate) const fn new_row(self) -> &'static str {
        match self {
            Self::MariaDb => "",
            Self::MySql => " AS new",
        }
    }

    /// A column of that row. MySQL is about to lose the one form, MariaDB never had the other.
    pub(crate) fn new_column(self, column: &str) -> String {
        match self {
            Self::MariaDb => format!("VALUES({column})"),
            Self::MySql => format!("new.{column}"),
        }
    }
}
