//! The checker must find real mistakes. Each of these flows has one planted bug, and the checker
//! must report the invariant that the bug breaks. Without the bug, the same scenario must give no
//! violation.

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

/// A time that is longer than any step here on any machine.
const LONG: Duration = Duration::from_secs(60);

fn anna() -> Uid {
    Uid::new("anna").unwrap()
}

/// Two logins on one node, with one login on another node between them. The first kick arrives
/// again at the end.
async fn a_late_kick(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let phone = flow.log_in(&anna(), "phone", "n1").await;
    let pc = flow.log_in(&anna(), "pc", "n2").await;
    phone.wait_for_end().await;
    let tablet = flow.log_in(&anna(), "tablet", "n1").await;
    pc.wait_for_end().await;
    flow.mesh.repeat_the_first_kick();
    if sabotage == KicksByAccount {
        tablet.wait_for_end().await;
    }
    flow.verdict(&[&anna()]).await
}

/// The kick of a session got lost, and the session logs out after another login of its account.
async fn a_late_logout(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let phone = flow.log_in(&anna(), "phone", "n1").await;
    *flow.mesh.unreachable.lock() = Some("n1");
    let _pc = flow.log_in(&anna(), "pc", "n2").await;
    flow.store.read_own_writes_from_now();
    phone.log_out().await;
    flow.look_up(&anna(), "n2").await;
    flow.verdict(&[&anna()]).await
}

/// A login is stopped between its read and its write for longer than the TTL of its lock. Another
/// login comes meanwhile.
async fn a_late_write(sabotage: Sabotage) -> Report {
    let lock = if sabotage == None {
        Duration::from_secs(1)
    } else {
        LONG
    };
    let flow = Flow::start(sabotage, lock).await;
    flow.store.delay_answers();
    let uid = anna();
    let late = flow.client(&uid, "late", "n1");
    let meanwhile = async {
        flow.store.wait_for_delayed_caller().await;
        let newer = flow.log_in(&uid, "newer", "n2").await;
        // The checker allows this much time between an event and its record.
        pause(flow.rules.slack * 2).await;
        flow.store.stop_delaying();
        newer
    };
    let (_late, newer) = tokio::join!(late, meanwhile);
    newer.wait_for_end_within(flow.rules.settle_time()).await;
    flow.verdict(&[&uid]).await
}

/// A login is confirmed, and another node is asked for the account directly afterwards.
async fn an_early_answer(sabotage: Sabotage) -> Report {
    let flow = Flow::start(sabotage, LONG).await;
    let _first = flow.log_in(&anna(), "first", "n2").await;
    if sabotage == ConfirmsBeforeTheWrite {
        flow.store.delay_answers();
    }
    let second = flow.log_in(&anna(), "second", "n1").await;
    flow.look_up(&anna(), "n2").await;
    flow.store.stop_delaying();
    second.wait_for_end_within(Duration::from_millis(10)).await;
    flow.verdict(&[&anna()]).await
}

/// A message goes to an account with two devices on two nodes. One of the devices hangs.
async fn a_message(sabotage: Sabotage) -> Report {
    let two = Policy::named(PolicyName::NTotal(2));
    let flow = Flow::start_with(sabotage, LONG, move |builder| builder.policy(two));
    let mut flow = flow.await;
    flow.rules.limit = 2;
    let otto = Uid::new("otto").unwrap();
    let sender = flow.log_in(&otto, "pc", "n2").await;
    let _hangs = flow.log_in(&anna(), HANGS, "n1").await;
    let _reads = flow.log_in(&anna(), "reads", "n2").await;
    flow.send(&sender, &anna(), "m1").await;
    flow.verdict(&[&anna()]).await
}

/// Loads the profiles of one account when the test allows it.
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

/// While the profile of a login is being loaded, other logins do not wait, neither those of the
/// same account nor those of other accounts. After its profile was loaded, the slow login is the
/// newest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_profile_delays_no_other_login() {
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
            flow.log_in(&quiet, "quiet", node).await.log_out().await;
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
        phone.wait_for_end().await;
        flow.fact(Fact::Trouble {
            from_us,
            to_us: now_us(),
        });
        profiles.go.send_replace(true);
        pc
    };
    let (slow, pc) = tokio::join!(slow, meanwhile);
    assert!(slow.inside);
    pc.wait_for_end().await;
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
    the_checker_finds_a_kick_that_names_only_the_account:
        a_late_kick with KicksByAccount breaks I2, I6;
    the_checker_finds_a_delete_without_a_comparison:
        a_late_logout with DeletesWithoutComparing breaks I3, I4, I5;
    the_checker_finds_a_write_after_the_lock_was_lost:
        a_late_write with WritesWithoutItsLock breaks I13;
    the_checker_finds_a_confirmation_before_the_write:
        an_early_answer with ConfirmsBeforeTheWrite breaks I7;
    the_checker_finds_an_acknowledgement_that_no_client_gave:
        a_message with AcknowledgesForTheClient breaks I18;
    the_checker_finds_a_message_to_one_device_of_two:
        a_message with SendsToTheNewest breaks I18;
}
