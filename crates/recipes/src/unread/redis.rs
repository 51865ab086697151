//! Counters in a Redis server, by an optimistic transaction or by a script.
//!
//! Invariant: both counters of a change are written by one `EXEC` or one script, so no client sees
//! half a change.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Result, SystemClock};
use distlock_redis::own_commands::{Connections, Request};
use redis::{Pipeline, Script, Value, aio::MultiplexedConnection};

use super::{
    counter::{
        Change, Counter, MOST, Unread, UnreadCounters, too_many_error, unknown_counter_error,
    },
    retries::{Retries, TRIES, too_contended_error},
};

/// The script of a change. KEYS: the conversation's counter, the user's total. ARGV: the amount, or
/// `clear`; the largest allowed total.
///
/// Answers:
/// - `done` with both counters after the change,
/// - `unknown`: there is no counter to clear,
/// - `many` with the present total: the amount would raise the total above the limit,
/// - `type` with the number of a key that holds no counter, and the type of its value.
///
/// The script checks both counters before it writes either one, because Redis does not undo the
/// writes of a script when a later command fails.
const CHANGE: &str = "
local counts = {}
for at, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key).ok
    if kind == 'none' then
        counts[at] = false
    else
        if kind ~= 'string' then return {'type', at, kind} end
        local text = redis.call('GET', key)
        local count = string.match(text, '^%d+$') and tonumber(text)
        if not count or count > tonumber(ARGV[2]) then return {'type', at, 'no count'} end
        counts[at] = count
    end
end
local conversation, total = counts[1], counts[2] or 0
if ARGV[1] == 'clear' then
    if not conversation then return {'unknown'} end
    total = math.max(total - conversation, 0)
    conversation = 0
else
    total = total + tonumber(ARGV[1])
    if total > tonumber(ARGV[2]) then return {'many', string.format('%.0f', counts[2] or 0)} end
    conversation = (conversation or 0) + tonumber(ARGV[1])
end
conversation, total = string.format('%.0f', conversation), string.format('%.0f', total)
redis.call('SET', KEYS[1], conversation)
redis.call('SET', KEYS[2], total)
return {'done', conversation, total}
";

/// Counters in keys of one Redis server, `distlock:unread:{USER}:of:CONVERSATION` and
/// `distlock:unread:{USER}:total`. A handle with `WATCH` and a handle with the script may change
/// the same counters. The URL has the options of the locks' store, such as `db` and `prefix`
/// (`distlock:`).
#[derive(Clone)]
pub struct RedisCounters {
    /// Each change has a connection of its own, because `WATCH` belongs to a connection.
    connections: Connections,
    /// `None`: changes use `WATCH`.
    script: Option<Script>,
    retries: Retries,
}

impl RedisCounters {
    /// Counters that change by `WATCH`, `MULTI` and `EXEC`. A change is repeated when another
    /// client writes in between.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option that is wrong or unknown, and for
    /// sentinels and clusters: the counters use one server. No connection is opened yet.
    pub fn watching(url: &str) -> Result<Self> {
        Self::new(url, "watch", None)
    }

    /// Counters that change by a script. No other client can write in between.
    ///
    /// # Errors
    /// As [`watching`](Self::watching).
    pub fn scripted(url: &str) -> Result<Self> {
        Self::new(url, "script", Some(Script::new(CHANGE)))
    }

    fn new(url: &str, mode: &'static str, script: Option<Script>) -> Result<Self> {
        Ok(Self {
            connections: Connections::new(url)?,
            script,
            retries: Retries::new(mode, Arc::new(SystemClock)),
        })
    }

    /// The keys of the conversation's counter and of the user's total. The braces put all keys of a
    /// user into one slot of a cluster.
    fn counter_keys(&self, counter: &Counter) -> [String; 2] {
        let (user, conversation) = (counter.user(), counter.conversation());
        [
            self.connections
                .key(format_args!("unread:{{{user}}}:of:{conversation}")),
            self.connections
                .key(format_args!("unread:{{{user}}}:total")),
        ]
    }

    /// Makes a change by the script, or with `WATCH` where there is no script.
    async fn change(&self, counter: &Counter, change: Change) -> Result<Unread> {
        if let Change::Add(by) = change
            && by > MOST
        {
            return Err(too_many_error(counter, 0, by));
        }
        let Some(script) = &self.script else {
            return self.change_with_watch(counter, change).await;
        };
        let mut connection = self.connections.take().await?;
        let [conversation, total] = self.counter_keys(counter);
        let amount = match change {
            Change::Add(by) => by.to_string(),
            Change::Clear => "clear".to_owned(),
        };
        let mut call = script.key(&conversation);
        call.key(&total).arg(amount).arg(MOST);
        let answer: Vec<Value> = call
            .invoke_async(&mut connection)
            .await
            .map_err(|error| self.connections.handle_error(error, Request::Change))?;
        self.connections.give_back(connection);
        self.parse_answer(counter, &answer)
    }

    /// Converts the answer of the script.
    fn parse_answer(&self, counter: &Counter, answer: &[Value]) -> Result<Unread> {
        let text = |at: usize| match answer.get(at) {
            Some(Value::BulkString(text)) => String::from_utf8_lossy(text).into_owned(),
            Some(Value::Int(number)) => number.to_string(),
            _ => String::new(),
        };
        let number = |at: usize| text(at).parse::<u64>();
        match (text(0).as_str(), number(1), number(2)) {
            ("done", Ok(conversation), Ok(total)) => Ok(Unread {
                conversation,
                total,
            }),
            ("unknown", ..) => Err(unknown_counter_error(counter)),
            ("many", Ok(total), _) => Err(too_many_error(counter, total, MOST - total + 1)),
            ("type", Ok(at), _) => {
                let [conversation, total] = self.counter_keys(counter);
                let key = if at == 1 { conversation } else { total };
                Err(not_a_counter_error(&key, &text(2)))
            }
            _ => {
                let says = format!("the script says {answer:?}");
                Err(Error::new(ErrorKind::Internal, says).on("redis"))
            }
        }
    }

    /// Makes a change with `WATCH`, and repeats it when another client wrote in between.
    async fn change_with_watch(&self, counter: &Counter, change: Change) -> Result<Unread> {
        for attempt in 1..=TRIES {
            // An error drops the connection, which ends its `WATCH`.
            let mut connection = self.connections.take().await?;
            let mut pipeline = redis::pipe();
            pipeline
                .cmd("WATCH")
                .arg(&self.counter_keys(counter))
                .ignore();
            let (before, total) = self
                .read_counters(counter, pipeline, &mut connection)
                .await?;
            let after = match change.apply_to(counter, before, total.unwrap_or_default()) {
                Ok(after) => after,
                Err(error) => {
                    let unwatch = redis::cmd("UNWATCH");
                    if unwatch.exec_async(&mut connection).await.is_ok() {
                        self.connections.give_back(connection);
                    }
                    return Err(error);
                }
            };
            let [conversation, total] = self.counter_keys(counter);
            let done: Value = redis::pipe()
                .atomic()
                .set(conversation, after.conversation)
                .set(total, after.total)
                .query_async(&mut connection)
                .await
                .map_err(|error| self.connections.handle_error(error, Request::Change))?;
            self.connections.give_back(connection);
            if done != Value::Nil {
                return Ok(after);
            }
            self.retries.pause_before_retry(attempt).await;
        }
        Err(too_contended_error(counter))
    }

    /// Reads both counters with one `MGET`, so the two values are of the same moment. The two types
    /// are read just before. The commands that `pipeline` holds already are sent in the same
    /// request.
    async fn read_counters(
        &self,
        counter: &Counter,
        mut pipeline: Pipeline,
        connection: &mut MultiplexedConnection,
    ) -> Result<(Option<u64>, Option<u64>)> {
        let keys = self.counter_keys(counter);
        pipeline.cmd("TYPE").arg(&keys[0]);
        pipeline.cmd("TYPE").arg(&keys[1]);
        // `MGET` returns nothing for a key that is not a string, without an error.
        pipeline.cmd("MGET").arg(&keys);
        let answer = pipeline.query_async(connection).await;
        let (one, two, texts): (String, String, [Option<String>; 2]) =
            answer.map_err(|error| self.connections.handle_error(error, Request::Read))?;
        let [conversation, total] = texts;
        Ok((
            parse_count(&keys[0], &one, conversation)?,
            parse_count(&keys[1], &two, total)?,
        ))
    }
}

#[async_trait]
impl UnreadCounters for RedisCounters {
    async fn increment(&self, counter: &Counter, by: i64) -> Result<Unread> {
        self.change(counter, Change::add(by)?).await
    }

    async fn clear(&self, counter: &Counter) -> Result<Unread> {
        self.change(counter, Change::Clear).await
    }

    async fn read(&self, counter: &Counter) -> Result<Unread> {
        let mut connection = self.connections.take().await?;
        let counters = self
            .read_counters(counter, redis::pipe(), &mut connection)
            .await?;
        self.connections.give_back(connection);
        match counters {
            (Some(conversation), total) => Ok(Unread {
                conversation,
                total: total.unwrap_or_default(),
            }),
            (None, _) => Err(unknown_counter_error(counter)),
        }
    }

    fn retries(&self) -> u64 {
        self.retries.count()
    }
}

impl fmt::Debug for RedisCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCounters")
            .field("mode", &self.retries.mode)
            .finish_non_exhaustive()
    }
}

/// Converts a value to a count. `kind` is the answer of `TYPE`. `None`: there is no such key.
fn parse_count(key: &str, kind: &str, text: Option<String>) -> Result<Option<u64>> {
    match (kind, text) {
        ("none", _) | ("string", None) => Ok(None),
        ("string", Some(text)) => match text.parse() {
            Ok(count) if count <= MOST => Ok(Some(count)),
            _ => Err(not_a_counter_error(key, "no count")),
        },
        (other, _) => Err(not_a_counter_error(key, other)),
    }
}

/// The error of a key whose value is not a counter. `what` names the type of the value.
fn not_a_counter_error(key: &str, what: &str) -> Error {
    let says = format!("the key {key:?} holds no counter: it is of type {what:?}");
    Error::new(ErrorKind::Corrupt, says).on("redis")
}
