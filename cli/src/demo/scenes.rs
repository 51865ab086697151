//! The six scenes, each of which ends with a verdict.

use std::{collections::BTreeSet, future::Future, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use distlock::{Clock as _, RecordKey, Records, SystemClock};
use distlock_gateway::{TokenKey, Uid, mint};
use distlock_kickout::UserRecord;
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use serde_json::json;

use super::{
    client::{Client, Ending, SOON},
    timeline::{Entry, Timeline},
};
use crate::processes::Node;

/// Number of devices that log in at once.
const CROWD: usize = 20;
/// The deadline for all of them to be logged in or told why not. Each login is a few operations of
/// the store, one after the other.
const SETTLED: Duration = Duration::from_secs(30);
/// The deadline of a login while the other node is dead and nobody knows it yet: the login waits
/// for that node as long as the kick budget (1 s), then goes on.
const AT_ONCE: Duration = Duration::from_secs(3);

/// One scene.
type Scene = for<'a> fn(&'a mut Play) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// All scenes, in order; each begins with the state that the one before left.
pub(super) const SCENES: [(&str, Scene); 6] = [
    ("the phone logs in on node 1", |stage| {
        Box::pin(stage.phone_logs_in())
    }),
    (
        "the PC logs in on node 2: the phone is told, and closes first",
        |stage| Box::pin(stage.pc_takes_over()),
    ),
    (
        "the phone's late disconnect does not erase the PC's record",
        |stage| Box::pin(stage.late_disconnect()),
    ),
    (
        "20 devices log in at once on both nodes: exactly one survives",
        |stage| Box::pin(stage.crowd()),
    ),
    (
        "a message to the account reaches the survivor, from the other node",
        |stage| Box::pin(stage.message()),
    ),
    (
        "node 2 is killed with SIGKILL: the account logs in on node 1 at once",
        |stage| Box::pin(stage.crash()),
    ),
];

/// The number of the scene with too many events to show them all.
pub(super) const CROWDED: usize = 4;

/// The devices and nodes that take part.
#[derive(Debug)]
pub(super) struct Play {
    pub(super) timeline: Arc<Timeline>,
    pub(super) records: Arc<dyn Records>,
    pub(super) node1: Node,
    pub(super) node2: Node,
    pub(super) key: TokenKey,
    pub(super) uid: Uid,
    pub(super) phone: Option<Client>,
    pub(super) pc: Option<Client>,
    pub(super) survivor: Option<Client>,
    /// The highest generation so far.
    pub(super) highest: u64,
}

impl Play {
    async fn phone_logs_in(&mut self) -> Result<()> {
        let mut phone = self.log_in("phone", Which::One).await?;
        phone.is_served().await?;
        self.owned_by(&phone).await?;
        self.phone = Some(phone);
        Ok(())
    }

    async fn pc_takes_over(&mut self) -> Result<()> {
        let mut phone = self.phone.take().context("the phone is not there")?;
        // Both run at once: the phone does not wait for the PC before it reacts.
        let told = super::client::soon("the phone is told", phone.until_ended());
        let (pc, told) = tokio::join!(self.log_in("pc", Which::Two), told);
        let pc = pc?;
        let notice = match told?? {
            Ending::Told(notice) => notice,
            Ending::Dropped => bail!("the phone was disconnected without a word"),
        };
        ensure!(
            notice["type"] == "offline" && notice["code"] == 1 && notice["retry"] == "never",
            "the phone was told {notice}"
        );
        ensure!(notice["by_device"] == "pc", "the phone was told {notice}");
        ensure!(phone.closed_first(), "the node closed before the phone did");
        self.phone = Some(phone);
        self.pc = Some(pc);
        Ok(())
    }

    async fn late_disconnect(&mut self) -> Result<()> {
        let mut phone = self.phone.take().context("the phone is not there")?;
        let mut pc = self.pc.take().context("the PC is not there")?;
        let session = phone.session.clone().context("the phone never was in")?;
        phone.gone().await?;
        self.timeline
            .wait_for("the phone's session was closed", SOON, |event| {
                event["event"] == "closed" && event["session"] == session.id
            })
            .await?;
        // The record is read from the store itself, so no node's memory can hide a mistake.
        self.owned_by(&pc).await?;
        pc.is_served().await?;
        self.pc = Some(pc);
        Ok(())
    }

    async fn crowd(&mut self) -> Result<()> {
        let mut before = self.pc.take().context("the PC is not there")?;
        let token = self.token(&self.uid)?;
        // All devices connect first, so that their logins meet.
        let connecting = (1..=CROWD).map(|number| {
            let node = if number % 2 == 0 {
                &self.node2
            } else {
                &self.node1
            };
            let (timeline, device) = (&self.timeline, format!("device{number:02}"));
            async move { Client::connect(&device, node, timeline).await }
        });
        let mut crowd = join_all(connecting)
            .await
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let asking = crowd.iter_mut().map(|client| client.ask_to_log_in(&token));
        join_all(asking).await.into_iter().collect::<Result<()>>()?;

        let mut endings: Vec<_> = (0..CROWD).map(|_| None).collect();
        {
            let mut playing: FuturesUnordered<_> = crowd
                .iter_mut()
                .enumerate()
                .map(|(index, client)| async move { (index, client.until_ended().await) })
                .collect();
            let late = SystemClock.sleep(SETTLED);
            tokio::pin!(late);
            // All but one must end; the last one is checked below.
            while playing.len() > 1 {
                tokio::select! {
                    Some((index, ending)) = playing.next() => endings[index] = Some(ending?),
                    () = &mut late => {
                        bail!("{} of {CROWD} devices are in after {SETTLED:?}", playing.len())
                    }
                }
            }
        }
        let ended = super::client::soon("the PC is told", before.until_ended()).await??;
        ensure!(
            matches!(ended, Ending::Told(_)),
            "the PC was disconnected without a word"
        );

        let mut survivor = None;
        let (mut told, mut turned_away) = (0, 0);
        let mut generations = BTreeSet::new();
        for (client, ending) in crowd.into_iter().zip(endings) {
            if let Some(generation) = client.generation() {
                ensure!(
                    generations.insert(generation),
                    "generation {generation} was given twice"
                );
            }
            match ending {
                None => survivor = Some(client),
                Some(Ending::Told(notice)) if notice["type"] == "offline" => told += 1,
                Some(Ending::Told(_)) => turned_away += 1,
                Some(Ending::Dropped) => {
                    bail!("{} was disconnected without a word", client.device);
                }
            }
        }
        let mut survivor = survivor.context("nobody survived")?;
        survivor.is_in().await?;
        survivor.is_served().await?;
        let generation = survivor
            .generation()
            .context("the survivor was never let in")?;
        ensure!(
            generations.last().is_none_or(|last| *last <= generation) && generation > self.highest,
            "the survivor has generation {generation}, which is not the highest"
        );
        self.highest = generation;
        self.owned_by(&survivor).await?;
        self.timeline.note(
            at(&survivor),
            &format!(
                "{} survives; {told} were let in and told offline, {turned_away} were overtaken \
                before they were in",
                survivor.device
            ),
        );
        self.survivor = Some(survivor);
        Ok(())
    }

    async fn message(&mut self) -> Result<()> {
        let mut survivor = self.survivor.take().context("nobody survived")?;
        let other = if survivor.node == self.node1.name {
            &self.node2
        } else {
            &self.node1
        };
        let friend = Uid::new(format!("{}-friend", self.uid))?;
        let mut sender =
            Client::logged_in("friend", other, &self.token(&friend)?, &self.timeline).await?;
        let body = "are you there?";
        sender
            .send(&json!({"type": "send", "to": self.uid, "body": body, "id": "m1"}))
            .await?;
        let message = survivor.expect("message").await?;
        ensure!(
            message["body"] == body && message["from"] == friend.as_str(),
            "the survivor got {message}"
        );
        let sent = sender.expect("sent").await?;
        ensure!(
            sent["id"] == "m1" && sent["outcome"] == "delivered",
            "the sender was told {sent}"
        );
        self.timeline.note(
            at(&survivor),
            &format!(
                "{} has the message, and {} knows it",
                survivor.device, other.name
            ),
        );
        sender.send(&json!({"type": "logout"})).await?;
        self.survivor = Some(survivor);
        Ok(())
    }

    async fn crash(&mut self) -> Result<()> {
        let mut survivor = self.survivor.take().context("nobody survived")?;
        if survivor.node != self.node2.name {
            // The account must be on the node that dies.
            let tablet = self.log_in("tablet", Which::Two).await?;
            super::client::soon("the survivor is told", survivor.until_ended()).await??;
            survivor = tablet;
        }
        self.owned_by(&survivor).await?;
        self.node2.crash().await?;
        let name = self.node2.name.clone();
        let dead = Entry {
            node: &name,
            ..Entry::default()
        };
        self.timeline.note(dead, "killed with SIGKILL");
        let start = SystemClock.now();
        let mut laptop = self.log_in("laptop", Which::One).await?;
        let took = SystemClock.now().since(start);
        ensure!(took <= AT_ONCE, "the login took {took:?}");
        laptop.is_served().await?;
        self.owned_by(&laptop).await?;
        let ended =
            super::client::soon("the old connection ends", survivor.until_ended()).await??;
        ensure!(ended == Ending::Dropped, "a dead node said {ended:?}");
        self.timeline.note(
            at(&laptop),
            &format!("in again after {:.3} s", took.as_secs_f64()),
        );
        laptop.send(&json!({"type": "logout"})).await?;
        Ok(())
    }

    /// Logs the account in, and checks that its generation rises.
    async fn log_in(&mut self, device: &str, on: Which) -> Result<Client> {
        let node = match on {
            Which::One => &self.node1,
            Which::Two => &self.node2,
        };
        let client =
            Client::logged_in(device, node, &self.token(&self.uid)?, &self.timeline).await?;
        let generation = client.generation().unwrap_or_default();
        ensure!(
            generation > self.highest,
            "generation {generation} after generation {}",
            self.highest
        );
        self.highest = generation;
        Ok(client)
    }

    /// Checks in the store that exactly this session owns the account.
    async fn owned_by(&self, client: &Client) -> Result<()> {
        let session = client.session.as_ref().context("never logged in")?;
        let key = RecordKey::new(format!("sess/{}", self.uid))?;
        let entry = self
            .records
            .get(&key)
            .await?
            .context("the account has no record")?;
        let record = UserRecord::parse(&self.uid, &entry.value)?;
        let owners: Vec<_> = record
            .slots
            .values()
            .map(|slot| (&slot.key, slot.r#gen.get(), &slot.device))
            .collect();
        let [(key, generation, device)] = owners.as_slice() else {
            bail!("the record names {} sessions instead of one", owners.len());
        };
        ensure!(
            key.node.as_str() == client.node
                && json!(key.session) == session.id
                && *generation == session.generation,
            "the record names {device}, generation {generation}, instead of {}, generation {}",
            client.device,
            session.generation
        );
        self.timeline.note(
            at(client),
            &format!("store: the record names {device} and nobody else"),
        );
        Ok(())
    }

    fn token(&self, uid: &Uid) -> Result<String> {
        Ok(mint(&self.key, uid, Duration::from_secs(3600))?)
    }
}

#[derive(Clone, Copy)]
enum Which {
    One,
    Two,
}

fn at(client: &Client) -> Entry<'_> {
    Entry {
        node: &client.node,
        generation: client.generation(),
        token: None,
    }
}
