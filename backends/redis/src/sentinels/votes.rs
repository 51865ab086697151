//! Reads the sentinels' answers of one round, and counts their votes.
//!
//! Invariant: a primary is elected only by more than half of the deployment's sentinels. The size
//! of the deployment is the highest number that any sentinel reports.

use std::collections::HashMap;

use redis::{Value, from_redis_value, from_redis_value_ref};

use crate::config::Endpoint;

/// The vote of one sentinel.
#[derive(Debug)]
pub(super) struct Vote {
    /// The sentinel's id. Two addresses may lead to the same sentinel.
    pub(super) id: String,
    /// The server that the sentinel names as the primary.
    pub(super) primary: Endpoint,
    /// The number of sentinels that watch this primary, as this sentinel reports it.
    pub(super) sentinels: usize,
}

/// A sentinel, as another sentinel reports it.
#[derive(Clone, Debug)]
pub(super) struct OtherSentinel {
    pub(super) id: String,
    pub(super) endpoint: Endpoint,
}

impl Vote {
    /// Reads the answers to `SENTINEL MYID` and `SENTINEL MASTER`.
    pub(super) fn read(id: Value, primary: Value) -> Option<Self> {
        let primary: HashMap<String, String> = from_redis_value(primary).ok()?;
        let others: usize = primary.get("num-other-sentinels")?.parse().ok()?;
        Some(Self {
            id: from_redis_value(id).ok()?,
            primary: endpoint(&primary)?,
            sentinels: others.checked_add(1)?,
        })
    }
}

impl OtherSentinel {
    /// Reads the answer to `SENTINEL SENTINELS`.
    pub(super) fn read_all(answer: &Value) -> Vec<Self> {
        let all: Vec<HashMap<String, String>> = from_redis_value_ref(answer).unwrap_or_default();
        let read = |fields: &HashMap<String, String>| {
            Some(Self {
                id: fields.get("runid").filter(|id| !id.is_empty())?.clone(),
                endpoint: endpoint(fields)?,
            })
        };
        all.iter().filter_map(read).collect()
    }
}

fn endpoint(fields: &HashMap<String, String>) -> Option<Endpoint> {
    let host = fields.get("ip").filter(|host| !host.is_empty())?;
    let port = fields.get("port")?.parse().ok().filter(|port| *port != 0)?;
    Some(Endpoint::new(host, port))
}

/// The votes of one round. Each sentinel has one vote. The size of the deployment is the highest
/// number that any of them reports. So half of the sentinels that are cut off together with an old
/// primary elect nobody, because they still report the other half.
#[derive(Debug)]
pub(super) struct Votes {
    by_sentinel: HashMap<String, Endpoint>,
    /// The number of sentinels in the last round with a majority.
    known_before: usize,
    /// The highest number of sentinels that an answer of this round reported.
    reported: usize,
}

impl Votes {
    pub(super) fn new(known_before: usize) -> Self {
        Self {
            by_sentinel: HashMap::new(),
            known_before,
            reported: 0,
        }
    }

    pub(super) fn count(&mut self, vote: &Vote) {
        self.reported = self.reported.max(vote.sentinels);
        self.by_sentinel
            .insert(vote.id.clone(), vote.primary.clone());
    }

    /// Returns the number of sentinels that answered.
    pub(super) fn answered(&self) -> usize {
        self.by_sentinel.len()
    }

    /// Returns the number of sentinels in the deployment, according to this round.
    pub(super) fn sentinels(&self) -> usize {
        self.reported.max(self.by_sentinel.len())
    }

    /// Returns the number of votes that a primary needs. A deployment counts as smaller only after
    /// a majority of the larger one has reported this.
    pub(super) fn needed(&self) -> usize {
        self.sentinels().max(self.known_before) / 2 + 1
    }

    /// Returns the primary that a majority names.
    pub(super) fn elected(&self) -> Option<&Endpoint> {
        self.by_sentinel
            .values()
            .find(|named| self.votes_for(named) >= self.needed())
    }

    /// Returns the reason why there is no majority, as text for people.
    pub(super) fn explain(&self) -> String {
        if self.answered() == 0 {
            return "the sentinels did not answer in time".into();
        }
        let mut named: Vec<_> = self.by_sentinel.values().map(ToString::to_string).collect();
        named.sort();
        named.dedup();
        format!(
            "{} of {} sentinels answered, and name {} as the primary; {} of them must name the \
             same",
            self.answered(),
            self.sentinels().max(self.known_before),
            named.join(" and "),
            self.needed()
        )
    }

    /// Returns the number of votes for this primary.
    pub(super) fn votes_for(&self, primary: &Endpoint) -> usize {
        self.by_sentinel
            .values()
            .filter(|named| *named == primary)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(known_before: usize, said: &[(&str, &str, usize)]) -> Votes {
        let mut votes = Votes::new(known_before);
        for (id, host, sentinels) in said {
            votes.count(&Vote {
                id: (*id).into(),
                primary: Endpoint::new(*host, 1),
                sentinels: *sentinels,
            });
        }
        votes
    }

    #[test]
    fn only_a_majority_of_the_deployment_elects() {
        for (known_before, said, elected) in [
            (0, &[][..], None),
            (0, &[("a", "old", 1)], Some("old")),
            (0, &[("a", "old", 2)], None),
            (0, &[("a", "old", 3), ("b", "old", 3)], Some("old")),
            (0, &[("a", "old", 3), ("b", "new", 3)], None),
            // Three of five sentinels are configured, and two of these are cut off with the old
            // primary.
            (
                0,
                &[("a", "old", 5), ("b", "old", 5), ("c", "new", 5)],
                None,
            ),
            (
                0,
                &[("c", "new", 5), ("d", "new", 5), ("e", "new", 5)],
                Some("new"),
            ),
            // The second sentinel knows more sentinels than the first.
            (0, &[("a", "old", 2), ("b", "old", 5)], None),
            // Two addresses lead to one sentinel.
            (0, &[("a", "old", 3), ("a", "old", 3)], None),
            // Sentinels that no longer know the others do not make the deployment smaller.
            (5, &[("a", "old", 2), ("b", "old", 2)], None),
            (
                5,
                &[("a", "old", 3), ("b", "old", 3), ("c", "old", 3)],
                Some("old"),
            ),
        ] {
            let votes = votes(known_before, said);
            let found = votes.elected().map(|primary| &*primary.host);
            assert_eq!(
                found,
                elected,
                "{known_before} {said:?}: {}",
                votes.explain()
            );
        }
    }

    #[test]
    fn sentinel_answers_are_parsed() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = |fields: &[(&str, &str)]| {
            let fields = fields.iter();
            Value::Map(
                fields
                    .map(|(key, value)| (text(key), text(value)))
                    .collect(),
            )
        };
        let at = [("ip", "::1"), ("port", "7000")];
        let primary = [&at[..], &[("num-other-sentinels", "2")]].concat();
        let vote = Vote::read(text("me"), fields(&primary)).unwrap();
        assert_eq!((&*vote.id, vote.sentinels), ("me", 3));
        assert_eq!(vote.primary, Endpoint::new("::1", 7000));
        assert!(Vote::read(text("me"), fields(&at)).is_none());
        let others = [&at[..], &[("runid", "other")]].concat();
        let unknown = [&at[..], &[("runid", "")]].concat();
        let others =
            OtherSentinel::read_all(&Value::Array(vec![fields(&others), fields(&unknown)]));
        assert_eq!(others.len(), 1);
        assert_eq!(others[0].id, "other");
    }
}
