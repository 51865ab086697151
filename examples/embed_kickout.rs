//! Embed the kick-out flow in your own server: one account, one session, the last login wins.
//!
//! The transport is your own. In this example a task represents the connection of one device. With
//! a store that processes share, the same code works across many nodes (see
//! `KickOut::builder(..).peers(..)`).
//!
//! `cargo run -p distlock --example embed_kickout`

use distlock_kickout::{Class, Device, KickOut, Login, LoginOutcome, NodeId, Session, Uid};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = distlock::open("memory:").await?;
    let node = NodeId::new("chat-1")?;
    let kickout = KickOut::builder(store.clone(), node).start().await?;
    let alice = Uid::new("alice")?;

    // Before this call, your server must check that the client is allowed to use the account alice.
    let phone = expect_admitted(kickout.login(new_login(&alice, "phone")?).await?)?;
    say(format_args!(
        "phone is in, generation {}",
        phone.generation()
    ));

    // Each connection has a task. In a real server the task also ends when the client disconnects.
    let connection = tokio::spawn(async move {
        let notice = phone.superseded().await;
        // A server writes the notice to the client here, and waits `notice.grace_ms` for the client
        // to close the connection.
        let outcome = phone.logout().await;
        (notice, outcome)
    });

    let pc = expect_admitted(kickout.login(new_login(&alice, "pc")?).await?)?;
    say(format_args!("pc is in, generation {}", pc.generation()));

    let (notice, outcome) = connection.await?;
    say(format_args!(
        "phone was told: {} ({}), by {:?}, come back: {:?}; its late logout: {outcome:?}",
        notice.code.number(),
        notice.reason,
        notice.by_device,
        notice.retry,
    ));

    // The account's session is now on the PC. The late logout of the phone has not ended it.
    let location = kickout.route(&alice).await?.ok_or("nobody is logged in")?;
    assert_eq!(&location.key, pc.key());
    say(format_args!("alice is at {}", location.device));

    pc.logout().await;
    kickout.shutdown().await;
    store.close().await;
    Ok(())
}

fn new_login(uid: &Uid, device: &str) -> distlock::Result<Login> {
    Ok(Login::new(uid.clone(), Device::new(device)?, Class::none()))
}

fn expect_admitted(outcome: LoginOutcome) -> Result<Session, String> {
    match outcome {
        LoginOutcome::Admitted(session) => Ok(session),
        // Busy: the client may try again later. Denied or superseded: the client gets the reason.
        other => Err(format!("not admitted: {other:?}")),
    }
}

#[expect(clippy::print_stdout, reason = "an example talks to its user")]
fn say(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}
