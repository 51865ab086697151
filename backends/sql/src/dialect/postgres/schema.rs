//! The tables that Postgres must have, and the comparison with the catalogue.

use sqlx::{PgConnection, Row as _};

use super::context::StoreContext;
use crate::tables::{
    FoundPart, KEY, STORAGE, SchemaDifference, Table, UNTOUCHED, WRITES, differences,
};

const LOGGED: &str = "an ordinary table that survives a crash";
const TIME: &str = "timestamp with time zone not null";
const NUMBER: &str = "bigint not null";
const TOKEN: &str = "bigint not null with a check of its range";

fn tables() -> Vec<Table> {
    vec![
        (
            "distributed_lock",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "lock_name"),
                ("lock_name", "text collate C not null"),
                ("holder_id", "uuid"),
                ("token", TOKEN),
                ("expires_at", TIME),
                ("acquired_at", TIME),
                ("holder", "text not null"),
                ("meta", "text"),
                ("nonce", "uuid"),
                ("hint_id", NUMBER),
                ("hint_until", TIME),
            ],
        ),
        (
            "distributed_queue",
            vec![
                (STORAGE, "an ordinary table that is UNLOGGED"),
                (WRITES, UNTOUCHED),
                (KEY, "lock_name, entry_id"),
                ("lock_name", "text collate C not null"),
                ("entry_id", NUMBER),
                ("joined_at", TIME),
                ("expires_at", TIME),
                ("holder", "text not null"),
            ],
        ),
        (
            "distributed_record",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "record_key"),
                ("record_key", "text collate C not null"),
                ("version", TOKEN),
                ("value", "bytea not null"),
                ("deleted", "boolean not null"),
                ("written_at", TIME),
            ],
        ),
        (
            "distributed_meta",
            vec![
                (STORAGE, LOGGED),
                (WRITES, UNTOUCHED),
                (KEY, "id"),
                ("id", "integer not null with a check of its range"),
                ("schema_version", NUMBER),
                ("epoch", "text not null"),
                ("created_at", TIME),
                ("reaped_at", "timestamp with time zone"),
            ],
        ),
    ]
}

/// The differences between the required tables and the catalogue. If `some` is true, only tables
/// that exist are compared.
pub(crate) async fn compare(
    connection: &mut PgConnection,
    context: &StoreContext,
    some: bool,
) -> Result<Vec<SchemaDifference>, sqlx::Error> {
    let question = sqlx::query(context.statements.schema_parts.text());
    let rows = question.fetch_all(connection).await?;
    let mut found: Vec<FoundPart> = Vec::with_capacity(rows.len());
    for row in &rows {
        found.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
    }
    let prefix = &context.config.table_prefix;
    Ok(differences(prefix, &tables(), &found, some))
}
