//! `distlock gateway kick|lookup|ban|drain|nodes|health`: sends orders of an administrator to a
//! running node over its admin HTTP.

use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use distlock::backend::percent_encode;
use serde_json::{Value, json};

use super::admin_client::{AdminAddress, AdminHttp};
use crate::{
    context::Context,
    exit::{Failure, Outcome, code},
    output, values,
};

/// End sessions, wherever they are.
///
/// Exit codes: 0 every session is known to be gone (also when there was none), 75 a node has not
/// confirmed yet and will find out by itself, 64 bad usage, 69 the admin HTTP cannot be reached or
/// failed, or an account could not be changed, 77 the admin token is wrong.
#[derive(Args, Debug)]
#[command(
    after_help = KICK_EXAMPLES,
    override_usage = "distlock gateway kick [OPTIONS] --uid <UID> | --session <UUID> |\n       \
                      --class <CLASS> | --on-node <NODE> | --all"
)]
pub(crate) struct Kick {
    #[command(flatten)]
    admin: AdminAddress,
    #[command(flatten)]
    target: KickTarget,
    /// Reason that the client is given
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only say which sessions would be ended
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct KickTarget {
    /// Every session of an account
    #[arg(long, value_name = "UID")]
    uid: Option<String>,
    /// One session
    #[arg(long, value_name = "UUID", value_parser = values::parse_session)]
    session: Option<uuid::Uuid>,
    /// Every session of a class of devices
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Every session on a node
    #[arg(long, value_name = "NODE")]
    on_node: Option<String>,
    /// Every session there is
    #[arg(long)]
    all: bool,
}

const KICK_EXAMPLES: &str = "\
Examples:
  distlock gateway kick --uid alice --reason 'please log in again'
  distlock gateway kick --on-node n2 --dry-run
  distlock gateway kick --class tv --admin http://127.0.0.1:7432 --json";

/// Show an account: its sessions, its ban, and the state of the nodes that have them.
///
/// Exit codes: 0 the account was looked up, logged in or not, 64 bad usage, 69 the admin HTTP
/// cannot be reached or failed, 77 the admin token is wrong.
#[derive(Args, Debug)]
#[command(after_help = LOOKUP_EXAMPLES)]
pub(crate) struct Lookup {
    #[command(flatten)]
    admin: AdminAddress,
    /// The account
    #[arg(value_name = "UID")]
    uid: String,
}

const LOOKUP_EXAMPLES: &str = "\
Examples:
  distlock gateway lookup alice
  distlock gateway lookup alice --json";

/// Ban an account: its sessions end and nobody gets in, for a while or until the ban is lifted.
///
/// Exit codes: 0 the account is banned, or its ban was lifted, 76 there was no ban to lift, 64 bad
/// usage, 69 the admin HTTP cannot be reached or failed, 77 the admin token is wrong.
#[derive(Args, Debug)]
#[command(after_help = BAN_EXAMPLES)]
pub(crate) struct Ban {
    #[command(flatten)]
    admin: AdminAddress,
    /// The account
    #[arg(value_name = "UID")]
    uid: String,
    /// How long; without end unless given
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = values::parse_duration,
        allow_hyphen_values = true
    )]
    ttl: Option<Duration>,
    /// Reason that the client is given
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Lift the ban
    #[arg(long, conflicts_with_all = ["ttl", "reason"])]
    lift: bool,
}

const BAN_EXAMPLES: &str = "\
Examples:
  distlock gateway ban mallory --ttl 24h --reason spam
  distlock gateway ban mallory --lift";

/// Drain the node that is asked: it takes no further login and sends its sessions elsewhere, so
/// many a second.
///
/// Exit codes: 0 the node drains, or takes logins again, 64 bad usage, 69 the admin HTTP cannot be
/// reached or failed, 75 not all sessions have their notice after --wait, 77 the admin token is
/// wrong.
#[derive(Args, Debug)]
#[command(after_help = DRAIN_EXAMPLES)]
pub(crate) struct Drain {
    #[command(flatten)]
    admin: AdminAddress,
    /// Sessions per second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = values::parse_rate)]
    rate: u32,
    /// Wait until each session has its notice, for this long at most
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    wait: Option<Duration>,
    /// Take logins again
    #[arg(long, conflicts_with_all = ["rate", "wait"])]
    undo: bool,
}

const DRAIN_EXAMPLES: &str = "\
Examples:
  distlock gateway drain --rate 50 --admin http://127.0.0.1:7432
  distlock gateway drain --rate 200 --wait 60s
  distlock gateway drain --undo";

/// List the nodes that hold their lease.
///
/// Exit codes: 0 the nodes were listed, 64 bad usage, 69 the admin HTTP cannot be reached or
/// failed, 77 the admin token is wrong.
#[derive(Args, Debug)]
#[command(after_help = NODES_EXAMPLES)]
pub(crate) struct Nodes {
    #[command(flatten)]
    admin: AdminAddress,
}

const NODES_EXAMPLES: &str = "\
Examples:
  distlock gateway nodes
  distlock gateway nodes --admin http://127.0.0.1:7432 --json";

/// Say whether the node that is asked takes clients. No admin token is needed.
///
/// Exit codes: 0 the node takes clients, 1 it does not (it drains, or has lost its lease) or cannot
/// be reached within 5s, 64 bad usage, 78 the configuration is wrong.
#[derive(Args, Debug)]
#[command(after_help = HEALTH_EXAMPLES)]
pub(crate) struct Health {
    #[command(flatten)]
    admin: AdminAddress,
}

const HEALTH_EXAMPLES: &str = "\
Examples:
  distlock gateway health
  distlock gateway health --admin http://127.0.0.1:7432 --json";

impl Kick {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let admin = AdminHttp::new(context, &self.admin)?;
        let KickTarget {
            uid,
            session,
            class,
            on_node,
            all,
        } = self.target;
        let mut body = json!({"dry_run": self.dry_run});
        for (member, value) in [
            ("uid", uid),
            ("session", session.map(|session| session.to_string())),
            ("class", class),
            ("node", on_node),
            ("reason", self.reason),
        ] {
            if let Some(value) = value {
                body[member] = value.into();
            }
        }
        if all {
            body["all"] = true.into();
        }
        let answer = admin.send_order("POST", "/v1/kick", Some(&body)).await?;
        print_kicked(&answer, context).or_else(Failure::ignore_closed_pipe)?;
        let kicked = array_of(&answer, "kicked");
        if kicked.iter().any(|session| session["error"].is_string()) {
            Err(Failure::new(
                code::UNAVAILABLE,
                "not every session could be ended; kicking again is safe",
            ))
        } else if kicked.iter().all(|session| session["gone"] == true) {
            Ok(code::OK)
        } else {
            Ok(code::BUSY)
        }
    }
}

/// Prints the sessions that ended, or that would end.
fn print_kicked(answer: &Value, context: &Context) -> Outcome<()> {
    if context.wants_json() {
        return output::print_json(answer);
    }
    let kicked = array_of(answer, "kicked");
    let would_kick = array_of(answer, "would_kick");
    if kicked.is_empty() && would_kick.is_empty() {
        return output::print_line("no session matches");
    }
    for session in would_kick {
        output::print_line(format_args!("{} would end", describe_session(session)))?;
    }
    for session in kicked {
        let end = match session["error"].as_str() {
            Some(error) => format!("not ended: {}", error.escape_debug()),
            None if session["gone"] == true => "gone".to_owned(),
            None => "not confirmed yet".to_owned(),
        };
        output::print_line(format_args!("{} {end}", describe_session(session)))?;
    }
    Ok(())
}

impl Lookup {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        if self.uid.is_empty() {
            // An empty account would give the path of another HTTP resource.
            return Err(Failure::usage("uid is empty"));
        }
        let admin = AdminHttp::new(context, &self.admin)?;
        let path = format!("/v1/users/{}", percent_encode(&self.uid));
        let answer = admin.send_order("GET", &path, None).await?;
        if context.wants_json() {
            output::print_json(&answer)?;
            return Ok(code::OK);
        }
        let uid = self.uid.escape_debug();
        let record = &answer["record"];
        if let Some(ban) = record["ban"].as_object() {
            let reason = ban.get("reason").and_then(Value::as_str);
            let reason = reason.unwrap_or("no reason given").escape_debug();
            let until = ban
                .get("until_ms")
                .and_then(Value::as_u64)
                .and_then(|until| {
                    output::format_rfc3339(UNIX_EPOCH.checked_add(Duration::from_millis(until))?)
                })
                .map_or_else(String::new, |until| format!(" (until {until})"));
            output::print_line(format_args!("{uid} is banned: {reason}{until}"))?;
        }
        let sessions = record["slots"].as_object();
        if sessions.is_none_or(serde_json::Map::is_empty) {
            output::print_line(format_args!("{uid} is not logged in"))?;
        }
        for (slot, session) in sessions.into_iter().flatten() {
            let state = array_of(&answer, "nodes")
                .iter()
                .find(|node| node["node"] == session["node"] && node["boot"] == session["boot"])
                .and_then(|node| node["state"].as_str())
                .unwrap_or("unknown");
            output::print_line(format_args!(
                "{} slot {} generation {} node {state}",
                describe_session(session),
                slot.escape_debug(),
                session["gen"],
            ))?;
        }
        Ok(code::OK)
    }
}

impl Ban {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let admin = AdminHttp::new(context, &self.admin)?;
        let uid = self.uid.escape_debug();
        if self.lift {
            let path = format!("/v1/ban?uid={}", percent_encode(&self.uid));
            let answer = admin.send_order("DELETE", &path, None).await?;
            let lifted = answer["lifted"] == true;
            let shown = if context.wants_json() {
                output::print_json(&answer)
            } else if lifted {
                output::print_line(format_args!("the ban of {uid} was lifted"))
            } else {
                output::print_line(format_args!("{uid} was not banned"))
            };
            shown.or_else(Failure::ignore_closed_pipe)?;
            return Ok(if lifted { code::OK } else { code::LOST });
        }
        let mut body = json!({"uid": self.uid});
        if let Some(ttl) = self.ttl {
            body["ttl"] = format!("{}ms", ttl.as_millis()).into();
        }
        if let Some(reason) = &self.reason {
            body["reason"] = reason.as_str().into();
        }
        let answer = admin.send_order("POST", "/v1/ban", Some(&body)).await?;
        if context.wants_json() {
            output::print_json(&answer)?;
        } else {
            let kicked = array_of(&answer, "kicked");
            let ended = kicked.iter().filter(|it| it["gone"] == true).count();
            let sessions = if ended == 1 { "session" } else { "sessions" };
            let pending = match kicked.len() - ended {
                0 => String::new(),
                some => format!(", {some} not confirmed yet"),
            };
            output::print_line(format_args!(
                "{uid} is banned, {ended} {sessions} ended{pending}"
            ))?;
        }
        Ok(code::OK)
    }
}

impl Drain {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let admin = AdminHttp::new(context, &self.admin)?;
        let mut answer = if self.undo {
            admin.send_order("DELETE", "/v1/drain", None).await?
        } else {
            let body = json!({"rate": self.rate});
            admin.send_order("POST", "/v1/drain", Some(&body)).await?
        };
        if let Some(limit) = self.wait {
            answer["sessions"] = admin.wait_until_empty(limit).await?.into();
        }
        if context.wants_json() {
            output::print_json(&answer)?;
        } else {
            output::print_line(format_args!(
                "node {} is {}, {} sessions left",
                escaped_text(&answer["node"]),
                escaped_text(&answer["state"]),
                answer["sessions"],
            ))?;
        }
        let left = self.wait.is_some() && answer["sessions"] != 0;
        Ok(if left { code::BUSY } else { code::OK })
    }
}

impl Nodes {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let admin = AdminHttp::new(context, &self.admin)?;
        let answer = admin.send_order("GET", "/v1/nodes", None).await?;
        for node in array_of(&answer, "nodes") {
            if context.wants_json() {
                output::print_json(node)?;
                continue;
            }
            let left = node["lease_remaining_ms"]
                .as_u64()
                .map_or_else(|| "?".to_owned(), |left| left.to_string());
            let unreachable = node["unreachable"].as_str();
            let unreachable =
                unreachable.map(|why| format!(", cannot be called: {}", why.escape_debug()));
            output::print_line(format_args!(
                "{} {} boot {} at {}, policy {}, lease for {left} ms more unless it is renewed{}",
                escaped_text(&node["node"]),
                escaped_text(&node["state"]),
                node["boot"],
                escaped_text(&node["addr"]),
                node["policy"].as_str().unwrap_or_default(),
                unreachable.unwrap_or_default(),
            ))?;
        }
        Ok(code::OK)
    }
}

impl Health {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let admin = AdminHttp::without_token(context, &self.admin)?;
        let (healthy, answer) = admin.ask_health().await.map_err(|error| {
            // Container engines know 0 and 1 only, and reserve the other codes.
            let why = format!("admin HTTP at {}: {error}", admin.authority());
            Failure::new(code::FAILED, why)
        })?;
        let shown = if context.wants_json() {
            output::print_json(&answer)
        } else {
            output::print_line(format_args!(
                "node {} is {}, {} sessions",
                escaped_text(&answer["node"]),
                escaped_text(&answer["status"]),
                answer["sessions"],
            ))
        };
        shown.or_else(Failure::ignore_closed_pipe)?;
        Ok(if healthy { code::OK } else { code::FAILED })
    }
}

/// Describes a session in one line.
fn describe_session(session: &Value) -> String {
    let uid = session["uid"]
        .as_str()
        .map(|uid| format!("{} ", uid.escape_debug()));
    format!(
        "{}session {} on {} device {}",
        uid.unwrap_or_default(),
        escaped_text(&session["session"]),
        escaped_text(&session["node"]),
        escaped_text(&session["device"]),
    )
}

/// An array in the answer; empty if the answer has none.
fn array_of<'a>(answer: &'a Value, member: &str) -> &'a [Value] {
    answer[member].as_array().map_or(&[], Vec::as_slice)
}

/// A text in the answer, escaped for a terminal; `?` if the answer has none.
fn escaped_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| "?".to_owned(), |text| text.escape_debug().to_string())
}
