//! Reads rows by their names, in as many statements as the names need.

use distlock_core::{LockName, Result};

use super::{context::StoreContext, pool::OpenConnection, raw_connection::StatementResults, rows};
use crate::{
    dialect::LockRow,
    statement_error::{Access, StatementError},
};

/// The space for one operation's statement without its values, in bytes.
pub(super) const PER_OPERATION: usize = 4096;

/// Reads the rows of these names on a connection. With the access `Write`, a lost connection counts
/// as an unknown outcome.
pub(super) async fn read_rows(
    open: &mut OpenConnection,
    context: &StoreContext,
    names: &[&LockName],
    access: Access,
) -> Result<Vec<(LockName, Result<LockRow>)>, StatementError> {
    let mut looks = Vec::with_capacity(names.len());
    for names in fitting_parts(names, |it| it.as_str().as_bytes(), open.packet) {
        let statement = context.statements.read_rows(names.iter().copied());
        let found = open.send(context, "read_rows", statement, access).await;
        for row in &found.map_err(|broken| broken.failed)?.rows {
            looks.push(rows::lock(row, context).map_err(StatementError::corrupt)?);
        }
    }
    Ok(looks)
}

/// Splits `all` into parts that each fit into one statement of `packet` bytes. Usually there is
/// only one part.
pub(super) fn fitting_parts<'a, T>(
    all: &'a [T],
    bytes: impl Fn(&'a T) -> &'a [u8],
    packet: usize,
) -> impl Iterator<Item = &'a [T]> {
    // Each byte needs two hexadecimal digits.
    let room = packet.saturating_sub(PER_OPERATION) / 2;
    let mut rest = all;
    std::iter::from_fn(move || {
        let mut listed = 0;
        let fits = rest.iter().position(|it| {
            listed += bytes(it).len() + 2;
            listed > room
        });
        let (part, others) = rest.split_at(fits.map_or(rest.len(), |fits| fits.max(1)));
        rest = others;
        (!part.is_empty()).then_some(part)
    })
}

pub(super) fn first_columns(answers: &StatementResults) -> Result<Vec<Vec<u8>>> {
    let rows = answers.rows.iter();
    rows.map(|row| rows::column(row, 0)).collect()
}
