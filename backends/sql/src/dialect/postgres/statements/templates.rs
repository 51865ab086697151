//! The two forms of a statement that changes rows: for a batch and for a lone operation.
//!
//! Both forms share all conditions and assignments, so that they cannot differ in meaning.

/// The server's clock in microseconds since 1970: tokens and versions rise with it.
const NOW_MICROS: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// A batch that only changes existing rows.
pub(super) struct Update {
    /// The operations as rows `k`.
    pub(super) input: &'static str,
    pub(super) table: &'static str,
    pub(super) key: &'static str,
    /// The condition on the row `l` that an operation may change.
    pub(super) when: &'static str,
    pub(super) set: &'static str,
    /// The columns that a changed row returns beside its key. `{wanted}` says whether another
    /// process waits for it.
    pub(super) returning: &'static str,
    /// This process's hint id, for `{wanted}`.
    pub(super) hint_id: &'static str,
    /// The channel on which waiters are notified.
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
    let wanted = format!("(l.wanted_until > clock_timestamp() AND l.wanted_by <> {hint_id})");
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

/// A batch that changes existing rows and creates missing ones.
pub(super) struct Insert {
    /// The operations as rows `k`.
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

/// The text of a statement that changes existing rows and creates missing ones. `lone` = it
/// carries out one operation and waits for a row that is locked; otherwise it leaves such rows out.
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

/// One row of values instead of rows out of arrays.
fn values(input: &str) -> String {
    input.replace("unnest(", "(SELECT ").replace("[]", "")
}
