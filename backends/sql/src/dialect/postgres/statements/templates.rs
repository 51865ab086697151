//! The two forms of a statement that changes rows: for a batch and for a lone operation.
//!
//! Both forms share all conditions and assignments, so that they cannot differ in meaning.

/// The server's clock in microseconds since 1970. New tokens and versions are at least this high.
const NOW_MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// The parts of a statement that only changes existing rows.
pub(super) struct Update {
    /// The source of the operations: one row `k` for each operation.
    pub(super) input: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    /// The condition on the row `l` that an operation may change.
    pub(super) when: &'static str,
    pub(super) set: &'static str,
    /// The columns that a changed row returns after its key. `{wanted}` stands for the condition
    /// that another process waits for the row.
    pub(super) returning: &'static str,
    /// The parameter with this process's hint id, for `{wanted}`.
    pub(super) hint_id: &'static str,
    /// The parameter with the channel on which waiters are notified; `None` without notifications.
    pub(super) notify_channel: Option<&'static str>,
}

pub(super) fn update(it: &Update, lone: bool) -> String {
    let Update {
        input,
        table,
        key,
        when,
        set,
        returning,
        hint_id,
        notify_channel,
    } = it;
    let wanted = format!("(l.hint_until > clock_timestamp() AND l.hint_id <> {hint_id})");
    let notify = notify_channel.map_or_else(String::new, |channel| {
        format!(", CASE WHEN {wanted} THEN pg_notify({channel}, l.{key})::text END")
    });
    let update = |rows: &str| {
        format!(
            "UPDATE {table} l SET {set} FROM {rows} WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, {returning}{notify}"
        )
    };
    let text = if lone {
        update(&values(input))
    } else {
        format!(
            "WITH locked AS MATERIALIZED (
    SELECT k.* FROM {input} JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
) {}",
            update("locked k")
        )
    };
    text.replace("{wanted}", &wanted)
        .replace("{now_micros}", NOW_MICROS)
}

/// The parts of a statement that changes existing rows and creates missing rows.
pub(super) struct Insert {
    /// The source of the operations: one row `k` for each operation.
    pub(super) input: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    /// The condition on the row `l` that an operation may change.
    pub(super) when: &'static str,
    pub(super) set: &'static str,
    pub(super) columns: &'static str,
    pub(super) new: &'static str,
    /// The column of the token or version.
    pub(super) number: &'static str,
}

/// The text of a statement that changes existing rows and creates missing rows. With `lone`, the
/// statement carries out one operation and waits for a locked row. Otherwise the statement leaves
/// locked rows out.
pub(super) fn insert(it: &Insert, lone: bool) -> String {
    let Insert {
        input,
        table,
        key,
        when,
        set,
        columns,
        new,
        number,
    } = it;
    let (input, locked, rows) = if lone {
        let input = values(input);
        (
            format!("input AS NOT MATERIALIZED (SELECT * FROM {input})"),
            String::new(),
            "input",
        )
    } else {
        let locked = format!(
            "locked AS MATERIALIZED (
    SELECT k.* FROM input k JOIN {table} l ON l.{key} = k.key WHERE {when}
     ORDER BY l.{key} FOR UPDATE OF l SKIP LOCKED
), "
        );
        (
            format!("input AS (SELECT * FROM {input})"),
            locked,
            "locked",
        )
    };
    format!(
        "WITH {input}, {locked}updated AS (
    UPDATE {table} l SET {set} FROM {rows} k WHERE l.{key} = k.key AND {when}
    RETURNING l.{key}, l.{number}
), inserted AS (
    INSERT INTO {table} AS l ({columns}) SELECT {new} FROM input k
     WHERE NOT EXISTS (SELECT FROM {table} o WHERE o.{key} = k.key)
     ORDER BY k.key COLLATE \"C\"
    ON CONFLICT ({key}) DO NOTHING
    RETURNING l.{key}, l.{number}
) SELECT {key}, {number} FROM updated UNION ALL SELECT {key}, {number} FROM inserted"
    )
    .replace("{now_micros}", NOW_MICROS)
}

/// Turns an input of arrays into an input of one row of values.
fn values(input: &str) -> String {
    input.replace("unnest(", "(SELECT ").replace("[]", "")
}
