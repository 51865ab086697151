//! `distlock inspect`: shows the holder of one lock.

use std::ffi::OsString;

use clap::Args;
use distlock::ring::NamePlace;
use distlock_recipes::shared;
use serde::Serialize;

use crate::{
    commands::ring,
    context::{Context, Sharing},
    exit::{Outcome, code},
    output::{self, LockJson, describe_holder},
    shared::{SharedJson, describe_holder_of_shared, describe_shared, found_or_warned},
    values,
};

/// Show who holds a lock, and the shared locks of the same name.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// The lock
    #[arg(value_name = "NAME")]
    name: OsString,
}

const EXAMPLES: &str = "\
Examples:
  distlock inspect nightly
  distlock inspect nightly --json | jq -r .holder

JSON fields:
  name, state (held or free), holder, meta, token, epoch, acquired_at
  (RFC 3339), expires_in_ms, waiters; what the store cannot tell is null.
  kind is lock; shared, if there are any, lists the lock of readers and
  writers (kind rw) and the semaphore of this name: state, token, capacity,
  free, holders (mode, indices, holder, meta, gone);
  member names the member of a ring that has the name, and free_in_ms is the
  rest of the quarantine of a name that moves;
  waiters counts the processes in the store's queue; queue names the first of
  them: position (1 = the next one), holder, meta (ZooKeeper only)";

impl Inspect {
    pub(crate) async fn execute(self, context: &Context) -> Outcome {
        let name = values::parse_lock_name(&self.name)?;
        let store = context.open_to_show(Sharing::Required).await?;
        let info = store.locker().inspect(&name).await;
        // A part of a shared lock is a plain lock.
        let found = match (&info, name.is_reserved()) {
            (Ok(_), false) => found_or_warned(shared::inspect(&store, name.as_str()).await),
            _ => Vec::new(),
        };
        let place = ring::place_of(context, &name).await;
        store.close().await;
        let (info, place) = (info?, place?);
        if context.wants_json() {
            output::print_json(&InspectJson {
                lock: LockJson::from(&info),
                place: place.as_ref().map(PlaceJson::from),
                shared: found.iter().map(SharedJson::from).collect(),
            })?;
            return Ok(code::OK);
        }
        // The name is escaped, because a name could reverse the direction of the line or hide a
        // part of the line.
        let shown = name.as_str().escape_debug();
        match &info.held {
            Some(held) => output::print_line(format!("{shown}: {}", describe_holder(held)))?,
            None => output::print_line(format!("{shown}: free"))?,
        }
        if let Some(place) = &place {
            let moves = if place.left.is_zero() {
                String::new()
            } else {
                let left = place.left.as_secs() + 1;
                format!(", to which it moves: it can be locked in {left} s")
            };
            output::print_line(format!("  member of the ring: {}{moves}", place.member))?;
        }
        if let Some(meta) = info.held.as_ref().and_then(|held| held.meta.as_deref()) {
            output::print_line(format!("  meta: {}", meta.escape_debug()))?;
        }
        for (position, waiting) in (1..).zip(&info.queue) {
            let holder = waiting.holder.escape_debug();
            output::print_line(format!("  waits as number {position}: {holder}"))?;
        }
        let named = u32::try_from(info.queue.len()).unwrap_or(u32::MAX);
        match info.waiters.unwrap_or(0).saturating_sub(named) {
            0 => {}
            others if named > 0 => output::print_line(format!("  and {others} more"))?,
            others => output::print_line(format!("  {others} waiting"))?,
        }
        for info in &found {
            let described = describe_shared(info);
            output::print_line(format!(
                "{shown} ({}): {}",
                described.kind, described.holders
            ))?;
            for holder in &info.holders {
                output::print_line(format!("  {}", describe_holder_of_shared(holder)))?;
            }
            if info.is_waited_for {
                output::print_line("  somebody waits")?;
            }
        }
        Ok(code::OK)
    }
}

/// A lock and the shared locks of its name.
#[derive(Serialize)]
struct InspectJson<'a> {
    #[serde(flatten)]
    lock: LockJson<'a>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    place: Option<PlaceJson<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shared: Vec<SharedJson<'a>>,
}

/// Where a name of a ring belongs.
#[derive(Serialize)]
struct PlaceJson<'a> {
    member: &'a str,
    free_in_ms: u64,
}

impl<'a> From<&'a NamePlace> for PlaceJson<'a> {
    fn from(place: &'a NamePlace) -> Self {
        Self {
            member: &place.member,
            free_in_ms: output::whole_millis(place.left),
        }
    }
}
