//! The tables that a SQLite file must have: the tables that the migration creates.
//!
//! SQLite stores the statement that created a table. The parts of that statement are compared with
//! the parts of the migration's statement. The other views of SQLite's catalogue show neither
//! collations nor checks.

use sqlx::{Row as _, SqliteConnection};

use super::{context::StoreContext, tables::MIGRATION};
use crate::tables::{FoundPart, STORAGE, SchemaDifference, Table, UNTOUCHED, WRITES, differences};

/// The differences between the required tables and the file's tables.
pub(crate) async fn compare(
    connection: &mut SqliteConnection,
    context: &StoreContext,
) -> Result<Vec<SchemaDifference>, sqlx::Error> {
    let rows = sqlx::query(context.statements.schema_parts.text())
        .fetch_all(connection)
        .await?;
    let mut found: Vec<FoundPart> = Vec::new();
    for row in &rows {
        let (name, sql): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let parts = parts(&sql).into_iter();
        found.extend(parts.map(|(part, is)| (name.clone(), part, is)));
        found.push((name, WRITES.to_owned(), row.try_get(2)?));
    }
    let prefix = &context.config.table_prefix;
    Ok(differences(prefix, &tables(), &found, false))
}

fn tables() -> Vec<Table<String>> {
    let mut tables = Vec::new();
    for statement in normalised(MIGRATION).split(';') {
        if let Some(made) = statement.trim().strip_prefix("create table if not exists ")
            && let Some((name, _)) = made.split_once(' ')
        {
            let mut parts = parts(&format!("create table {made}"));
            parts.push((WRITES.to_owned(), UNTOUCHED.to_owned()));
            tables.push((name.to_owned(), parts));
        }
    }
    tables
}

/// The parts of a statement that creates a table: the storage, the columns, and the constraints of
/// the whole table.
fn parts(sql: &str) -> Vec<(String, String)> {
    let sql = normalised(sql);
    let (Some(open), Some(close)) = (sql.find('('), sql.rfind(')')) else {
        return vec![(STORAGE.to_owned(), sql)];
    };
    let kind = sql.split(' ').nth(1).unwrap_or_default();
    let mut parts = vec![(
        STORAGE.to_owned(),
        format!("{kind} {}", sql[close + 1..].trim())
            .trim()
            .to_owned(),
    )];
    let (mut depth, mut from) = (0_u32, open + 1);
    for (at, sign) in sql
        .char_indices()
        .filter(|(at, _)| (open..=close).contains(at))
    {
        match sign {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if (sign == ',' && depth == 1) || at == close {
            let part = sql[from..at].trim();
            let (name, is) = part.split_once(' ').unwrap_or((part, ""));
            parts.push((name.to_owned(), is.to_owned()));
            from = at + 1;
        }
    }
    parts
}

/// The statement in lower case, without comments, quotes and superfluous spaces.
fn normalised(sql: &str) -> String {
    let lines = sql
        .lines()
        .map(|line| line.split("--").next().unwrap_or(line));
    let text = lines
        .collect::<Vec<_>>()
        .join(" ")
        .to_lowercase()
        .replace('"', "");
    let spaced = text
        .replace('(', " (")
        .replace(')', ") ")
        .replace(',', ", ");
    let words: Vec<_> = spaced.split_whitespace().collect();
    let text = words.join(" ");
    text.replace("( ", "(")
        .replace(" )", ")")
        .replace(" ,", ",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statement_of_a_migration_is_split_into_its_parts() {
        let tables = tables();
        let names: Vec<_> = tables
            .iter()
            .map(|(name, parts)| (name.as_str(), parts.len()))
            .collect();
        let ours = [
            ("distributed_lock", 13),
            ("distributed_queue", 9),
            ("distributed_record", 8),
            ("distributed_meta", 8),
        ];
        assert_eq!(names, ours);
        let is = |part: &str| {
            let parts = &tables[0].1;
            parts.iter().find(|it| it.0 == part).map(|it| it.1.as_str())
        };
        assert_eq!(is("storage"), Some("table strict, without rowid"));
        assert_eq!(is("lock_name"), Some("text not null primary key"));
        assert_eq!(
            is("holder_id"),
            Some("blob check (length (holder_id) = 16)")
        );
        assert_eq!(is("meta"), Some("text"));
        assert_eq!(is("hint_until"), Some("integer not null default 0"));
    }

    #[test]
    fn case_quotes_spaces_and_comments_make_no_difference() {
        let one =
            "CREATE TABLE IF NOT EXISTS a (b TEXT CHECK (b IN (0, 1)), -- c, d\n c BLOB\n) STRICT";
        let other = "create table \"a\"(\nb text  CHECK(b in( 0,1 ) ),c BLOB) strict";
        assert_eq!(parts(one)[1..], parts(other)[1..]);
        assert_eq!(
            parts("CREATE VIEW a AS SELECT 1")[0].1,
            "create view a as select 1"
        );
    }
}
