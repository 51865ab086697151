//! Embed the kick-out flow in your own server: one account, one session, the last login wins.
//!
//! The transport is yours; here it is two tasks that stand for two connections. With a store that
//! processes share, the same code works across many nodes (see `KickOut::builder(..).peers(..)`).
//!
//! `cargo run -p distlock --example embed_kickout`

use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Session, Uid};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = distlock::open("memory:").await?;
    let node = NodeId::new("chat-1")?;
    let kickout = KickOut::builder(store.clone(), node).start().await?;
    let alice = Uid::new("alice")?;

    // Your server has checked that the client really is alice.
    let phone = admitted(kickout.login(login(&alice, "phone")?).await?)?;
    say(format_args!(
        "phone is in, generation {}",
        phone.generation()
    ));

    // Each connection has a task, which ends when its client leaves or its session ends.
    let connection = tokio::spawn(async move {
        let notice = phone.superseded().await;
        // Write `notice` to the client, give it `notice.grace_ms` to close, then:
        let outcome = phone.logout().await;
        (notice, outcome)
    });

    let pc = admitted(kickout.login(login(&alice, "pc")?).await?)?;
    say(format_args!("pc is in, generation {}", pc.generation()));

    let (notice, outcome) = connection.await?;
    say(format_args!(
        "phone was told: {} ({}), by {:?}, come back: {:?}; its late logout: {outcome:?}",
        notice.code.number(),
        notice.reason,
        notice.by_device,
        notice.retry,
    ));

    // The account now belongs to the PC, and the phone cannot change that.
    let location = kickout.route(&alice).await?.ok_or("nobody is logged in")?;
    assert_eq!(&location.key, pc.key());
    say(format_args!("alice is at {}", location.device));

    pc.logout().await;
    kickout.shutdown().await;
    store.close().await;
    Ok(())
}

fn login(uid: &Uid, device: &str) -> distlock::Result<Login> {
    Ok(Login::new(uid.clone(), Device::new(device)?, Class::none()))
}

fn admitted(outcome: LoginOutcome) -> Result<Session, String> {
    match outcome {
        LoginOutcome::Admitted(session) => Ok(session),
        // Busy: tell the client when to try again. Denied, superseded: tell it the reason.
        other => Err(format!("not admitted: {other:?}")),
    }
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}
