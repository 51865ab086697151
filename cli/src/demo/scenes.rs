//! The seven scenes. Each scene ends with a verdict.

use std::{collections::BTreeSet, future::Future, pin::Pin, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use distlock::{Clock as _, RecordKey, Records, SystemClock};
use distlock_gateway::{TokenKey, Uid, mint};
use distlock_kickout::UserRecord;
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use serde_json::json;

use super::{
    client::{Client, Ending, STEP_LIMIT},
    timeline::{Entry, Timeline},
};
use crate::processes::Node;

/// The number of devices that log in at once.
const CROWD: usize = 20;
/// The deadline until all but one of these devices have their notice. Each login needs a few
/// operations of the store, one after the other.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);
/// The deadline of a login while the other node is dead and no node knows that yet: the login waits
/// for the other node as long as the kick budget (1 s), and is then admitted.
const RELOGIN_LIMIT: Duration = Duration::from_secs(3);

/// One scene.
type Scene = for<'a> fn(&'a mut Play) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// All scenes, in order. Each scene begins with the state that the scene before it left.
pub(super) const SCENES: [(&str, Scene); 7] = [
    ("the phone logs in on node 1", |stage| {
        Box::pin(stage.phone_logs_in())
    }),
    (
        "the PC logs in on node 2: the phone gets its notice, and closes first",
        |stage| Box::pin(stage.pc_takes_over()),
    ),
    (
        "the phone's late disconnect does not erase the PC's record",
        |stage| Box::pin(stage.disconnect_late()),
    ),
    (
        "20 devices log in at once on both nodes: exactly one survives",
        |stage| Box::pin(stage.log_in_crowd()),
    ),
    (
        "a message to the account reaches the survivor, from the other node",
        |stage| Box::pin(stage.deliver_message()),
    ),
    (
        "the console saves its game first, and only then is the handheld let in",
        |stage| Box::pin(stage.save_before_admission()),
    ),
    (
        "node 2 is killed with SIGKILL: the account logs in on node 1 at once",
        |stage| Box::pin(stage.kill_node()),
    ),
];

/// The number of the scene that has too many events to print all of them.
pub(super) const CROWDED_SCENE: usize = 4;

/// The state of the demo: the nodes, and the devices that take part.
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
    /// The highest generation of any login so far.
    pub(super) highest: u64,
}

impl Play {
    /// Scene 1: the phone logs in.
    async fn phone_logs_in(&mut self) -> Result<()> {
        let mut phone = self.log_in("phone", NodeChoice::One).await?;
        phone.check_served().await?;
        self.check_owner(&phone).await?;
        self.phone = Some(phone);
        Ok(())
    }

    /// Scene 2: the PC logs in on the other node, and the phone gets its notice and closes first.
    async fn pc_takes_over(&mut self) -> Result<()> {
        let mut phone = self.phone.take().context("the phone is not there")?;
        // The phone is followed while the PC logs in, because it reacts to its notice at once.
        let told = super::client::within_limit("the notice of the phone", phone.follow_to_end());
        let (pc, told) = tokio::join!(self.log_in("pc", NodeChoice::Two), told);
        let pc = pc?;
        let notice = match told?? {
            Ending::Told(notice) => notice,
            Ending::Dropped => bail!("the phone was disconnected without a word"),
        };
        ensure!(
            notice["type"] == "offline" && notice["code"] == 1 && notice["retry"] == "never",
            "the phone got {notice}"
        );
        ensure!(notice["by_device"] == "pc", "the phone got {notice}");
        ensure!(phone.closed_first(), "the node closed before the phone did");
        self.phone = Some(phone);
        self.pc = Some(pc);
        Ok(())
    }

    /// Scene 3: the phone's connection ends after the takeover, and the PC's record stays.
    async fn disconnect_late(&mut self) -> Result<()> {
        let mut phone = self.phone.take().context("the phone is not there")?;
        let mut pc = self.pc.take().context("the PC is not there")?;
        let session = phone.session.clone().context("the phone never was in")?;
        phone.wait_until_gone().await?;
        self.timeline
            .wait_for("the phone's session was closed", STEP_LIMIT, |event| {
                event["event"] == "closed" && event["session"] == session.id
            })
            .await?;
        // The record is read from the store itself, so that a mistake in the memory of a node
        // cannot hide.
        self.check_owner(&pc).await?;
        pc.check_served().await?;
        self.pc = Some(pc);
        Ok(())
    }

    /// Scene 4: many devices log in at once, and one of them keeps its session.
    async fn log_in_crowd(&mut self) -> Result<()> {
        let mut before = self.pc.take().context("the PC is not there")?;
        let mut crowd = self.connect_crowd().await?;
        let token = self.token(&self.uid)?;
        let asking = crowd.iter_mut().map(|client| client.send_login(&token));
        join_all(asking).await.into_iter().collect::<Result<()>>()?;
        let endings = wait_for_all_but_one(&mut crowd).await?;
        let ended =
            super::client::within_limit("the notice of the PC", before.follow_to_end()).await??;
        ensure!(
            matches!(ended, Ending::Told(_)),
            "the PC was disconnected without a word"
        );

        let CrowdResult {
            survivor,
            told,
            overtaken,
            generations,
        } = CrowdResult::new(crowd, endings)?;
        let mut survivor = survivor.context("nobody survived")?;
        survivor.wait_until_in().await?;
        survivor.check_served().await?;
        let generation = survivor
            .generation()
            .context("the survivor was never let in")?;
        ensure!(
            generations.last().is_none_or(|last| *last <= generation) && generation > self.highest,
            "the survivor has generation {generation}, which is not the highest"
        );
        self.highest = generation;
        self.check_owner(&survivor).await?;
        self.timeline.print_note(
            entry_of(&survivor),
            &format!(
                "{} survives; {told} were let in and got a notice, {overtaken} were overtaken \
                before they were in",
                survivor.device
            ),
        );
        self.survivor = Some(survivor);
        Ok(())
    }

    /// Connects all devices of the crowd, in turn to both nodes. They log in only when all have
    /// connected, so that their logins compete.
    async fn connect_crowd(&self) -> Result<Vec<Client>> {
        let connecting = (1..=CROWD).map(|number| {
            let node = if number % 2 == 0 {
                &self.node2
            } else {
                &self.node1
            };
            let (timeline, device) = (&self.timeline, format!("device{number:02}"));
            async move { Client::connect(&device, node, timeline).await }
        });
        join_all(connecting).await.into_iter().collect()
    }

    /// Scene 5: a message from the other node reaches the account.
    async fn deliver_message(&mut self) -> Result<()> {
        let mut survivor = self.survivor.take().context("nobody survived")?;
        let other = if survivor.node == self.node1.name {
            &self.node2
        } else {
            &self.node1
        };
        let friend = Uid::new(format!("{}-friend", self.uid))?;
        let mut sender =
            Client::connect_and_log_in("friend", other, &self.token(&friend)?, &self.timeline)
                .await?;
        let body = "are you there?";
        sender
            .send(&json!({"type": "send", "to": self.uid, "body": body, "id": "m1"}))
            .await?;
        let message = survivor.wait_for_frame("message").await?;
        ensure!(
            message["body"] == body && message["from"] == friend.as_str(),
            "the survivor got {message}"
        );
        let sent = sender.wait_for_frame("sent").await?;
        ensure!(
            sent["id"] == "m1" && sent["outcome"] == "written",
            "the sender got {sent}"
        );
        self.timeline.print_note(
            entry_of(&survivor),
            &format!(
                "{} has the message, and {} knows it",
                survivor.device, other.name
            ),
        );
        sender.send(&json!({"type": "logout"})).await?;
        self.survivor = Some(survivor);
        Ok(())
    }

    /// Scene 6: a device that saves takes over. The next login waits until that device has saved.
    async fn save_before_admission(&mut self) -> Result<()> {
        let mut before = self.survivor.take().context("nobody survived")?;
        let mut console = Client::connect("console", &self.node2, &self.timeline).await?;
        console.saves = true;
        let token = self.token(&self.uid)?;
        console.send_login(&token).await?;
        console.wait_until_in().await?;
        super::client::within_limit("the notice of the survivor", before.follow_to_end()).await??;
        // The next login answers for all older sessions in the record, and nobody knows whether the
        // survivor's program has saved.
        super::client::within_limit("the survivor's end is recorded", self.wait_until_settled())
            .await??;

        let mut handheld = Client::connect("handheld", &self.node1, &self.timeline).await?;
        handheld.send_login(&token).await?;
        let notice = console.wait_for_frame("offline").await?;
        // A node answers the pings of a login that waits. So this answer shows that the handheld
        // has no answer to its login yet.
        handheld.check_served().await?;
        ensure!(
            handheld.session.is_none(),
            "the handheld is in before the save"
        );
        console.save_and_leave(&notice).await?;
        handheld.wait_until_in().await?;
        let session = handheld.session.as_ref().context("never logged in")?;
        ensure!(
            session.old_confirmed == "program",
            "the handheld learned that {} confirmed the end of the console's session",
            session.old_confirmed
        );
        let (old, new) = (console.generation(), session.generation);
        ensure!(old < Some(new), "generation {new} after generation {old:?}");
        self.highest = new;
        self.check_owner(&handheld).await?;
        self.survivor = Some(handheld);
        Ok(())
    }

    /// Scene 7: the node of the session is killed, and the account logs in on the other one.
    async fn kill_node(&mut self) -> Result<()> {
        let mut survivor = self.survivor.take().context("nobody survived")?;
        if survivor.node != self.node2.name {
            // The account must have its session on the node that is killed.
            let tablet = self.log_in("tablet", NodeChoice::Two).await?;
            super::client::within_limit("the notice of the survivor", survivor.follow_to_end())
                .await??;
            survivor = tablet;
        }
        self.check_owner(&survivor).await?;
        self.node2.crash().await?;
        let name = self.node2.name.clone();
        let dead = Entry {
            node: &name,
            ..Entry::default()
        };
        self.timeline.print_note(dead, "killed with SIGKILL");
        let start = SystemClock.now();
        let mut laptop = self.log_in("laptop", NodeChoice::One).await?;
        let took = SystemClock.now().since(start);
        ensure!(took <= RELOGIN_LIMIT, "the login took {took:?}");
        laptop.check_served().await?;
        self.check_owner(&laptop).await?;
        let ended =
            super::client::within_limit("the old connection ends", survivor.follow_to_end())
                .await??;
        ensure!(ended == Ending::Dropped, "a dead node said {ended:?}");
        self.timeline.print_note(
            entry_of(&laptop),
            &format!("in again after {:.3} s", took.as_secs_f64()),
        );
        laptop.send(&json!({"type": "logout"})).await?;
        Ok(())
    }

    /// Logs the account in from a device, and checks that the generation rises.
    async fn log_in(&mut self, device: &str, on: NodeChoice) -> Result<Client> {
        let node = match on {
            NodeChoice::One => &self.node1,
            NodeChoice::Two => &self.node2,
        };
        let client =
            Client::connect_and_log_in(device, node, &self.token(&self.uid)?, &self.timeline)
                .await?;
        let generation = client.generation().unwrap_or_default();
        ensure!(
            generation > self.highest,
            "generation {generation} after generation {}",
            self.highest
        );
        self.highest = generation;
        Ok(client)
    }

    /// The account's record in the store.
    async fn record(&self) -> Result<UserRecord> {
        let key = RecordKey::new(format!("sess/{}", self.uid))?;
        let entry = self
            .records
            .get(&key)
            .await?
            .context("the account has no record")?;
        Ok(UserRecord::parse(&self.uid, &entry.value)?)
    }

    /// Waits until the record names no session whose end is not confirmed yet.
    async fn wait_until_settled(&self) -> Result<()> {
        while !self.record().await?.revocations.is_empty() {
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Checks in the store that the session of this client is the only one of the account.
    async fn check_owner(&self, client: &Client) -> Result<()> {
        let session = client.session.as_ref().context("never logged in")?;
        let record = self.record().await?;
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
        self.timeline.print_note(
            entry_of(client),
            &format!("store: the record names {device} and nobody else"),
        );
        Ok(())
    }

    /// A login token for an account.
    fn token(&self, uid: &Uid) -> Result<String> {
        Ok(mint(&self.key, uid, Duration::from_secs(3600))?)
    }
}

#[derive(Clone, Copy)]
enum NodeChoice {
    One,
    Two,
}

/// The columns of the timeline for a client.
fn entry_of(client: &Client) -> Entry<'_> {
    Entry {
        node: &client.node,
        generation: client.generation(),
        token: None,
    }
}

/// Follows the sessions of all devices until at most one session lives. That session has no ending.
async fn wait_for_all_but_one(crowd: &mut [Client]) -> Result<Vec<Option<Ending>>> {
    let mut endings: Vec<_> = crowd.iter().map(|_| None).collect();
    let mut playing: FuturesUnordered<_> = crowd
        .iter_mut()
        .enumerate()
        .map(|(index, client)| async move { (index, client.follow_to_end().await) })
        .collect();
    let late = SystemClock.sleep(SETTLE_LIMIT);
    tokio::pin!(late);
    while playing.len() > 1 {
        tokio::select! {
            Some((index, ending)) = playing.next() => endings[index] = Some(ending?),
            () = &mut late => {
                bail!("{} of {CROWD} devices are in after {SETTLE_LIMIT:?}", playing.len())
            }
        }
    }
    // The futures that follow the sessions borrow the devices, so these futures are dropped here.
    drop(playing);
    Ok(endings)
}

/// How the logins of the crowd ended.
struct CrowdResult {
    /// The device whose session stays live.
    survivor: Option<Client>,
    /// The number of devices that were admitted, and got an offline notice later.
    told: usize,
    /// The number of devices that were overtaken before they were admitted.
    overtaken: usize,
    generations: BTreeSet<u64>,
}

impl CrowdResult {
    /// Sorts the devices by their endings. Fails if two devices have the same generation, or if a
    /// connection ends without a notice.
    fn new(crowd: Vec<Client>, endings: Vec<Option<Ending>>) -> Result<Self> {
        let mut survivor = None;
        let (mut told, mut overtaken) = (0, 0);
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
                Some(Ending::Told(_)) => overtaken += 1,
                Some(Ending::Dropped) => {
                    bail!("{} was disconnected without a word", client.device);
                }
            }
        }
        Ok(Self {
            survivor,
            told,
            overtaken,
            generations,
        })
    }
}
