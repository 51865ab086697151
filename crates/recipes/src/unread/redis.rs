//! Counters of a Redis server: by an optimistic transaction, and by a script.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, Result, SystemClock};
use redis::{Pipeline, Script, Value, aio::MultiplexedConnection};

use super::{
    counter::{Change, Counter, MOST, Unread, UnreadCounters, too_many, unknown},
    retries::{TRIES, Tries, restless},
};
use crate::redis_connections::{BACKEND, Connections, Sent};

/// KEYS: the conversation's counter, the user's total. ARGV: the amount, or `clear`; the most that
/// a total may be. Answers `done` with both counters after it, `unknown`, `many` with the total, or
/// `type` with the number of the key and what stands there.
///
/// Checks both counters before it writes either: what a script has written is not taken back when
/// one of its commands fails.
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

/// Counters that are keys of one Redis server, `unread:{USER}:of:CONVERSATION` and
/// `unread:{USER}:total`. Both forms may be used beside each other, on the same counters.
#[derive(Clone)]
pub struct RedisCounters {
    /// Each change has one to itself: `WATCH` is a connection's.
    connections: Connections,
    /// `None` = by `WATCH`.
    script: Option<Script>,
    tries: Tries,
}

impl RedisCounters {
    /// By `WATCH`, `MULTI` and `EXEC`: a change that somebody was in between of is begun anew.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a URL that cannot be used. No connection is made yet.
    pub fn watching(url: &str) -> Result<Self> {
        Self::new(url, "watch", None)
    }

    /// By a script, which nobody can be in between of.
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
            tries: Tries::new(mode, Arc::new(SystemClock)),
        })
    }

    async fn change(&self, counter: &Counter, change: Change) -> Result<Unread> {
        if let Change::Add(by) = change
            && by > MOST
        {
            return Err(too_many(counter, 0, by));
        }
        let Some(script) = &self.script else {
            return self.watch(counter, change).await;
        };
        let mut connection = self.connections.take().await?;
        let [conversation, total] = keys(counter);
        let asked = match change {
            Change::Add(by) => by.to_string(),
            Change::Clear => "clear".to_owned(),
        };
        let mut call = script.key(&conversation);
        call.key(&total).arg(asked).arg(MOST);
        let answer: Vec<Value> = call
            .invoke_async(&mut connection)
            .await
            .map_err(|error| self.connections.failed(&error, Sent::Change))?;
        self.connections.give_back(connection);
        answered(counter, &answer)
    }

    /// Tries until nobody was in between.
    async fn watch(&self, counter: &Counter, change: Change) -> Result<Unread> {
        for tries in 1..=TRIES {
            // Where anything fails the connection is closed, and watches nothing any more.
            let mut connection = self.connections.take().await?;
            let mut look = redis::pipe();
            look.cmd("WATCH").arg(&keys(counter)).ignore();
            let (before, total) = self.seen(counter, look, &mut connection).await?;
            let after = match change.of(counter, before, total.unwrap_or_default()) {
                Ok(after) => after,
                Err(error) => {
                    let unwatch = redis::cmd("UNWATCH");
                    if unwatch.exec_async(&mut connection).await.is_ok() {
                        self.connections.give_back(connection);
                    }
                    return Err(error);
                }
            };
            let [conversation, total] = keys(counter);
            let done: Value = redis::pipe()
                .atomic()
                .set(conversation, after.conversation)
                .set(total, after.total)
                .query_async(&mut connection)
                .await
                .map_err(|error| self.connections.failed(&error, Sent::Change))?;
            self.connections.give_back(connection);
            if done != Value::Nil {
                return Ok(after);
            }
            self.tries.again(tries).await;
        }
        Err(restless(counter))
    }

    /// Both counters, at one moment. What comes before is asked in the same breath.
    async fn seen(
        &self,
        counter: &Counter,
        mut look: Pipeline,
        connection: &mut MultiplexedConnection,
    ) -> Result<(Option<u64>, Option<u64>)> {
        let keys = keys(counter);
        look.cmd("TYPE").arg(&keys[0]);
        look.cmd("TYPE").arg(&keys[1]);
        // What is no string is nothing to it, and no error.
        look.cmd("MGET").arg(&keys);
        let answer = look.query_async(connection).await;
        let (one, two, texts): (String, String, [Option<String>; 2]) =
            answer.map_err(|error| self.connections.failed(&error, Sent::Nothing))?;
        let [conversation, total] = texts;
        Ok((
            count(&keys[0], &one, conversation)?,
            count(&keys[1], &two, total)?,
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
        let seen = self.seen(counter, redis::pipe(), &mut connection).await?;
        self.connections.give_back(connection);
        match seen {
            (Some(conversation), total) => Ok(Unread {
                conversation,
                total: total.unwrap_or_default(),
            }),
            (None, _) => Err(unknown(counter)),
        }
    }

    fn retries(&self) -> u64 {
        self.tries.count()
    }
}

impl fmt::Debug for RedisCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisCounters")
            .field("mode", &self.tries.mode)
            .finish_non_exhaustive()
    }
}

fn count(key: &str, kind: &str, text: Option<String>) -> Result<Option<u64>> {
    match (kind, text) {
        ("none", _) | ("string", None) => Ok(None),
        ("string", Some(text)) => match text.parse() {
            Ok(count) if count <= MOST => Ok(Some(count)),
            _ => Err(no_counter(key, "no count")),
        },
        (other, _) => Err(no_counter(key, other)),
    }
}

/// What the script says.
fn answered(counter: &Counter, answer: &[Value]) -> Result<Unread> {
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
        ("unknown", ..) => Err(unknown(counter)),
        ("many", Ok(total), _) => Err(too_many(counter, total, MOST - total + 1)),
        ("type", Ok(at), _) => {
            let [conversation, total] = keys(counter);
            let key = if at == 1 { conversation } else { total };
            Err(no_counter(&key, &text(2)))
        }
        _ => {
            let says = format!("the script says {answer:?}");
            Err(Error::new(ErrorKind::Internal, says).on(BACKEND))
        }
    }
}

/// The braces keep a user's keys in one slot of a cluster.
fn keys(counter: &Counter) -> [String; 2] {
    let user = counter.user();
    let conversation = counter.conversation();
    [
        format!("unread:{{{user}}}:of:{conversation}"),
        format!("unread:{{{user}}}:total"),
    ]
}

fn no_counter(key: &str, what: &str) -> Error {
    let says = format!("the key {key:?} holds no counter: it is of type {what:?}");
    Error::new(ErrorKind::Corrupt, says).on(BACKEND)
}
