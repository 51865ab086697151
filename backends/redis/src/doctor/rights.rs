//! Checks the user's rights, and whether the server knows all needed commands.

use distlock_core::{Result, Verdict};
use redis::{ServerError, Value};

use crate::{
    connection::Connection,
    doctor::finding::Finding,
    error,
    format::keys::{Bucket, KeyLayout},
    routing::Router,
    scripts,
};

/// Returns the finding on whether the user may run every command that locks and records need.
pub(super) async fn rights(router: &Router, connection: &Connection) -> Result<Finding> {
    let check = "rights";
    let mut question = redis::cmd("EVAL");
    // The script gets no KEYS, so any server of a cluster can answer for all slots.
    question.arg(&scripts::RIGHTS.source).arg(0);
    let layout = KeyLayout::new(&router.connector.config().prefix);
    let mut key = Vec::new();
    layout.counter(Bucket::of(""), &mut key);
    question.arg(key).arg(u8::from(router.is_cluster()));
    Ok(match connection.send_one(&question).await? {
        Value::ServerError(refusal) if error::code_and_detail(&refusal).0 == "NOPERM" => (
            check,
            Verdict::Fail,
            "this user may not run EVAL: every operation is a script".into(),
        ),
        Value::ServerError(refusal) if is_unknown(&refusal) => renamed(check, "EVAL"),
        Value::Array(lists) => {
            let lists = redis::from_redis_value::<[Vec<String>; 2]>(Value::Array(lists));
            let [denied, unknown] = lists.unwrap_or_default();
            match (denied.is_empty(), unknown.is_empty()) {
                (_, false) => renamed(check, &unknown.join(", ")),
                (true, true) => (
                    check,
                    Verdict::Pass,
                    "this user may run every command that locks and records need".into(),
                ),
                (false, true) => (
                    check,
                    Verdict::Fail,
                    format!(
                        "this user may not run {} on keys that begin with {:?}: grant what the \
                         documentation of the Redis backend names",
                        denied.join(", "),
                        router.connector.config().prefix
                    ),
                ),
            }
        }
        Value::ServerError(refusal) => (
            check,
            Verdict::Unknown,
            format!(
                "the server does not tell what this user may do: {}",
                error::code_and_detail(&refusal).0
            ),
        ),
        _ => (
            check,
            Verdict::Unknown,
            "the server cannot tell what this user may do: Redis 7.0 and newer can".into(),
        ),
    })
}

/// Returns whether the refusal says that the command is unknown.
pub(super) fn is_unknown(refusal: &ServerError) -> bool {
    let (code, detail) = error::code_and_detail(refusal);
    code == "ERR" && detail.contains("unknown command")
}

fn renamed(check: &'static str, commands: &str) -> Finding {
    (
        check,
        Verdict::Fail,
        format!(
            "the server knows no {commands}: take the rename-command for it out of its \
             configuration, and keep it from others by ACL"
        ),
    )
}
