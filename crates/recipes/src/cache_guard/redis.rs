//! A cache in a Redis server.
//!
//! Invariant: value and floor are in one hash, and each operation is one script, so no other client
//! sees or makes half a change. All times are of the server's clock.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Error, ErrorKind, FencingToken, Result};
use distlock_redis::own_commands::{Connections, Request};
use redis::{Script, ScriptInvocation, Value};

use super::cache::{Cache, Found, Loaded, Mark, Seen};

/// The first lines of each script. KEYS: the hash of the cached key. These lines read the server's
/// clock in microseconds as `now`, and the fields of the hash as `key`.
const NOW: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local key = redis.call('HMGET', KEYS[1], 'token', 'voided', 'fresh', 'stale', 'none', 'load',
    'value')
";

/// Reads a value. Answers only the mark when no value is stored. Otherwise answers the mark, the
/// token, the time for which the value is fresh, the time that its load took, `1` when the loader
/// has said that there is no value, and the value.
///
/// Times are microseconds of the server's clock. The script returns them as texts, because Redis
/// truncates a script's numbers to integers.
const GET: &str = "
local function text(number) return string.format('%.0f', number) end
if not key[4] or tonumber(key[4]) <= now then return {text(now)} end
return {text(now), key[1], text(math.max(key[3] - now, 0)), key[6], key[5] or '', key[7]}
";

/// Stores a value. ARGV: token, mark, ttl, stale, floor, load, none (1: there is no value), value.
/// Answers 1 when the value is stored, and 0 when it came too late.
const PUT: &str = "
local began = tonumber(ARGV[2])
if now - began > tonumber(ARGV[5]) then return 0 end
if key[1] and tonumber(key[1]) > tonumber(ARGV[1]) then return 0 end
if key[2] and tonumber(key[2]) >= began then return 0 end
local fresh = now + ARGV[3]
local stale = fresh + ARGV[4]
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'fresh', string.format('%.0f', fresh),
    'stale', string.format('%.0f', stale), 'load', ARGV[6], 'none', ARGV[7], 'value', ARGV[8])
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.ceil((stale + ARGV[5]) / 1000)))
return 1
";

/// Deletes a value, and keeps the floor. ARGV: the shortest time for which the floor is kept.
/// Answers 1.
const DELETE: &str = "
redis.call('HDEL', KEYS[1], 'fresh', 'stale', 'load', 'none', 'value')
redis.call('HSET', KEYS[1], 'voided', string.format('%.0f', now))
local ends = math.ceil((now + ARGV[1]) / 1000)
local ended = redis.call('PTTL', KEYS[1])
if ended > 0 then ends = math.max(ends, math.ceil(now / 1000) + ended) end
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', ends))
return 1
";

/// A cache of hashes in one Redis server, under `distlock:cache:KEY`. The floor is in the same
/// hash, so a server that evicts a key forgets both.
#[derive(Clone)]
pub struct RedisCache {
    connections: Connections,
    get: Arc<Script>,
    put: Arc<Script>,
    delete: Arc<Script>,
}

impl RedisCache {
    /// A cache in the server at this URL: `redis://user:password@host:6379/0`, or `rediss://..` for
    /// TLS (feature `tls`). The options are those of the locks' store: `db`, `prefix`
    /// (`distlock:`), `request_timeout`, `tls_ca` and so on. No connection is opened yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that names the option that is wrong or unknown, and for
    /// `redis+sentinel://` and `redis+cluster://`: the cache uses one server.
    /// [`ErrorKind::Unsupported`] for TLS in a build without it.
    pub fn new(url: &str) -> Result<Self> {
        let script = |part: &str| Arc::new(Script::new(&format!("{NOW}{part}")));
        Ok(Self {
            connections: Connections::new(url)?,
            get: script(GET),
            put: script(PUT),
            delete: script(DELETE),
        })
    }

    fn redis_key(&self, key: &str) -> String {
        self.connections.key(format_args!("cache:{key}"))
    }

    /// Runs a script on a connection of its own.
    async fn invoke<T: redis::FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
        request: Request,
    ) -> Result<T> {
        let mut connection = self.connections.take().await?;
        let answer = call.invoke_async(&mut connection).await;
        let answer = answer.map_err(|error| self.connections.handle_error(error, request))?;
        self.connections.give_back(connection);
        Ok(answer)
    }
}

#[async_trait]
impl Cache for RedisCache {
    async fn get(&self, key: &str) -> Result<Seen> {
        let answer: Vec<Value> = self
            .invoke(&self.get.key(self.redis_key(key)), Request::Read)
            .await?;
        let text = |at: usize| match answer.get(at) {
            Some(Value::BulkString(text)) => std::str::from_utf8(text).ok(),
            _ => None,
        };
        let number = |at: usize| text(at).and_then(|text| text.parse::<u64>().ok());
        let Some(now) = number(0) else {
            let says = format!("the server says {answer:?}");
            return Err(Error::new(ErrorKind::Internal, says).on("redis"));
        };
        let found = || {
            let Some(Value::BulkString(value)) = answer.get(5) else {
                return None;
            };
            Some(Found {
                value: (text(4)? != "1").then(|| value.as_slice().into()),
                token: FencingToken::new(number(1)?).ok()?,
                fresh_for: Duration::from_micros(number(2)?),
                load: Duration::from_micros(number(3)?),
            })
        };
        Ok(Seen {
            found: found(),
            mark: Mark(now),
        })
    }

    async fn put(&self, key: &str, loaded: &Loaded, mark: Mark) -> Result<bool> {
        let mut call = self.put.key(self.redis_key(key));
        call.arg(loaded.token.get())
            .arg(mark.0)
            .arg(micros(loaded.ttl))
            .arg(micros(loaded.stale))
            .arg(micros(loaded.floor))
            .arg(micros(loaded.load))
            .arg(u8::from(loaded.value.is_none()))
            .arg(loaded.value.as_deref().unwrap_or_default());
        let stored: u8 = self.invoke(&call, Request::Change).await?;
        Ok(stored == 1)
    }

    async fn delete(&self, key: &str, floor: Duration) -> Result<()> {
        let mut call = self.delete.key(self.redis_key(key));
        call.arg(micros(floor));
        let _: u8 = self.invoke(&call, Request::Change).await?;
        Ok(())
    }
}

impl fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisCache")
            .field(&self.connections)
            .finish()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
