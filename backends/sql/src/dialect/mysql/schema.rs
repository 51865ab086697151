//! The tables that MySQL and MariaDB must have, and the comparison with the catalogue.

use distlock_core::Result;

use super::{context::StoreContext, pool::StatementResults, rows};
use crate::tables::{
    FoundPart, KEY, STORAGE, SchemaDifference, Table, UNTOUCHED, WRITES, differences,
};

const NUMBER: &str = "bigint not null";

fn tables() -> Vec<Table> {
    vec![
        (
            "distributed_lock",
            vec![
                (STORAGE, "base table in innodb"),
                (WRITES, UNTOUCHED),
                (KEY, "lock_name"),
                ("lock_name", "varbinary(255) not null"),
                ("holder_id", "binary(16)"),
                ("token", NUMBER),
                ("acquired_at", NUMBER),
                ("expires_at", NUMBER),
                ("holder", "varchar(128) character set utf8mb4 not null"),
                ("meta", "text character set utf8mb4"),
                ("nonce", "binary(16)"),
                ("hint_id", NUMBER),
                ("hint_until", NUMBER),
                ("expires_minute", "bigint as expires_at div 60000000"),
            ],
        ),
        (
            "distributed_queue",
            vec![
                (STORAGE, "base table in innodb"),
                (WRITES, UNTOUCHED),
                (KEY, "lock_name, entry_id"),
                ("lock_name", "varbinary(255) not null"),
                ("entry_id", NUMBER),
                ("joined_at", NUMBER),
                ("expires_at", NUMBER),
                ("holder", "varchar(128) character set utf8mb4 not null"),
            ],
        ),
        (
            "distributed_record",
            vec![
                (STORAGE, "base table in innodb"),
                (WRITES, UNTOUCHED),
                (KEY, "record_key"),
                ("record_key", "varbinary(512) not null"),
                ("version", NUMBER),
                ("value", "mediumblob not null"),
                ("deleted", "tinyint not null"),
                ("written_at", NUMBER),
            ],
        ),
        (
            "distributed_meta",
            vec![
                (STORAGE, "base table in innodb"),
                (WRITES, UNTOUCHED),
                (KEY, "id"),
                ("id", "tinyint not null"),
                ("schema_version", NUMBER),
                ("epoch", "varchar(64) character set utf8mb4 not null"),
                ("created_at", NUMBER),
                ("reaped_at", "bigint"),
            ],
        ),
    ]
}

/// The differences between the required tables and `answers`, the answer to
/// [`Statements::parts`](super::statements::Statements::parts). If `some` is true, only tables that
/// exist are compared.
pub(super) fn compare(
    context: &StoreContext,
    answers: &StatementResults,
    some: bool,
) -> Result<Vec<SchemaDifference>> {
    let mut found = Vec::with_capacity(answers.rows.len());
    for row in &answers.rows {
        let text = |index| rows::string(row, index).map(|it| it.to_lowercase());
        let is = format!("{}{}{}", plain(&text(2)?), text(3)?, text(4)?);
        let is = match text(5)?.as_str() {
            "" => is,
            generated => {
                let computed: String = generated
                    .chars()
                    .filter(|it| !"()`".contains(*it))
                    .collect();
                format!("{is} as {computed}")
            }
        };
        let part: FoundPart = (text(0)?, text(1)?, is);
        found.push(part);
    }
    let prefix = &context.config.table_prefix;
    Ok(differences(prefix, &tables(), &found, some))
}

/// The type `kind` without a display width. MariaDB shows a width for number types, MySQL does not.
fn plain(kind: &str) -> String {
    for number in ["bigint", "tinyint"] {
        if let Some(width) = kind.strip_prefix(number)
            && let Some((_, rest)) = width.strip_prefix('(').and_then(|it| it.split_once(')'))
        {
            return format!("{number}{rest}");
        }
    }
    kind.to_owned()
}
