//! The checker must find real mistakes: each of these flows has one mistake, and the checker names
//! the invariant that it breaks. The same scenario without a mistake is not accused.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_checker::{Fact, Invariant::*, Report};
use distlock_kickout::{Allowed, Login, Policy, PolicyName, Profiles, Uid};
use tokio::sync::watch;

use crate::{
    flow::{Flow, HANGS},
    saboteur::Sabotage::{self, *},
    world::{now_us, pause},
};

/// Longer than any step here on any machine.
const LONG: Duration = Duration::from_secs(60);

fn anna() -> Uid {
    Uid::new("anna").unwrap()
}

/// Two logins on one node with one on another node in between, and the first kick arrives again at
/// the end.
async fn a_late_kick(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let phone = flow.log_in(&anna(), "phone", "n1").await;
    let pc = flow.log_in(&anna(), "pc", "n2").await;
    phone.ended().await;
    let tablet = flow.log_in(&anna(), "tablet", "n1").await;
    pc.ended().await;
    flow.mesh.repeat_the_first_kick();
    if sabotage == KicksByAccount {
        tablet.ended().await;
    }
    flow.verdict(&[&anna()]).await
}

/// A session whose kick got lost logs out after another session came.
async fn a_late_logout(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let phone = flow.log_in(&anna(), "phone", "n1").await;
    *flow.mesh.unreachable.lock().unwrap() = Some("n1");
    let _pc = flow.log_in(&anna(), "pc", "n2").await;
    flow.store.stop_looking();
    phone.leaves().await;
    flow.look_up(&anna(), "n2").await;
    flow.verdict(&[&anna()]).await
}

/// A login is stopped between its read and its write, for longer than its lock lasts, and another
/// one comes.
async fn a_late_write(sabotage: Sabotage) -> Report {
    let lock = if sabotage == None {
        Duration::from_secs(1)
    } else {
        LONG
    };
    let flow = Flow::start(sabotage, lock).await;
    flow.store.hold();
    let uid = anna();
    let late = flow.client(&uid, "late", "n1");
    let meanwhile = async {
        flow.store.holds_somebody().await;
        let newer = flow.log_in(&uid, "newer", "n2").await;
        // The checker allows for this much time between an event and its record.
        pause(flow.rules.slack * 2).await;
        flow.store.let_go();
        newer
    };
    let (_late, newer) = tokio::join!(late, meanwhile);
    newer.may_end(flow.rules.settle_time()).await;
    flow.verdict(&[&uid]).await
}

/// A login, and a look from another node right after it was confirmed.
async fn an_early_answer(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let _first = flow.log_in(&anna(), "first", "n2").await;
    if sabotage == ConfirmsBeforeTheWrite {
        flow.store.hold();
    }
    let second = flow.log_in(&anna(), "second", "n1").await;
    flow.look_up(&anna(), "n2").await;
    flow.store.let_go();
    second.may_end(Duration::from_millis(10)).await;
    flow.verdict(&[&anna()]).await
}

/// A message to an account with two devices on two nodes, one of which hangs.
async fn a_message(sabotage: Sabotage) -> Report {
    let two = Policy::named(PolicyName::NTotal(2));
    let flow = Flow::start_with(sabotage, LONG, move |builder| builder.policy(two));
    let mut flow = flow.await;
    flow.rules.limit = 2;
    let otto = Uid::new("otto").unwrap();
    let sender = flow.log_in(&otto, "pc", "n2").await;
    let _hangs = flow.log_in(&anna(), HANGS, "n1").await;
    let _reads = flow.log_in(&anna(), "reads", "n2").await;
    flow.sends(&sender, &anna(), "m1").await;
    flow.verdict(&[&anna()]).await
}

/// Profiles of one account that arrive when the test lets them go.
#[derive(Debug)]
struct Slow {
    account: Uid,
    waits: watch::Sender<bool>,
    go: watch::Sender<bool>,
}

#[async_trait]
impl Profiles for Slow {
    async fn load(&self, login: &Login) -> distlock::Result<Allowed> {
        if login.uid == self.account && login.device.as_str() == "slow" {
            self.waits.send_replace(true);
            let mut go = self.go.subscribe();
            go.wait_for(|go| *go).await.unwrap();
        }
        Ok(Allowed::Yes)
    }
}

/// While a login's profile is being loaded, other logins do not wait for it, whether of the same
/// account or another; once loaded, that login is the newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_profile_holds_up_nobody() {
    let profiles = Arc::new(Slow {
        account: anna(),
        waits: watch::Sender::new(false),
        go: watch::Sender::new(false),
    });
    let asked = profiles.clone();
    let flow = Flow::start_with(None, LONG, move |builder| builder.profiles(asked.clone())).await;
    let (anna, quiet) = (anna(), Uid::new("quiet").unwrap());
    flow.fact(Fact::Bystander { uid: quiet.clone() });
    let bystander = async || {
        for node in ["n1", "n2"] {
            flow.log_in(&quiet, "quiet", node).await.leaves().await;
        }
    };
    bystander().await;
    let from_us = now_us();
    let slow = flow.client(&anna, "slow", "n1");
    let meanwhile = async {
        let mut waits = profiles.waits.subscribe();
        waits.wait_for(|waits| *waits).await.unwrap();
        bystander().await;
        let phone = flow.log_in(&anna, "phone", "n1").await;
        let pc = flow.log_in(&anna, "pc", "n2").await;
        phone.ended().await;
        flow.fact(Fact::Trouble {
            from_us,
            to_us: now_us(),
        });
        profiles.go.send_replace(true);
        pc
    };
    let (slow, pc) = tokio::join!(slow, meanwhile);
    assert!(slow.inside);
    pc.ended().await;
    flow.look_up(&anna, "n2").await;
    let report = flow.verdict(&[&anna, &quiet]).await;
    assert!(report.is_clean(), "{report}");
    for invariant in [I2, I3, I7, I15] {
        assert!(
            report.looked_at(invariant) > 0,
            "{invariant} was not looked at: {report}"
        );
    }
}

macro_rules! variants {
    ($($test:ident: $scenario:ident with $sabotage:ident breaks $($invariant:ident),+;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            let honest = Box::pin($scenario(None)).await;
            assert!(honest.is_clean(), "{honest}");
            let broken = Box::pin($scenario($sabotage)).await;
            for invariant in [$($invariant),+] {
                assert!(honest.looked_at(invariant) > 0, "{invariant} was not looked at: {honest}");
                assert!(broken.violated().contains(&invariant), "{invariant} was not caught: \
                {broken}");
            }
        }
    )+};
}

variants! {
    a_kick_by_account_only: a_late_kick with KicksByAccount breaks I2, I6;
    a_delete_without_comparing: a_late_logout with DeletesWithoutComparing breaks I3, I4, I5;
    a_write_after_the_lock_was_lost: a_late_write with WritesWithoutItsLock breaks I13;
    a_confirmation_before_the_write: an_early_answer with ConfirmsBeforeTheWrite breaks I7;
    an_acknowledgement_that_nobody_gave: a_message with AcknowledgesForTheClient breaks I18;
    a_message_to_one_device_of_two: a_message with SendsToTheNewest breaks I18;
}
