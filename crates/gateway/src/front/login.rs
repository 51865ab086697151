//! The beginning of a connection: one login, or a word why not.

use std::collections::VecDeque;

use distlock_core::ErrorKind;
use distlock_kickout::{Class, Code, Device, Generation, Login, LoginOutcome, Session, Uid};

use super::{
    FrameReader, FrameWriter, Front, Incoming,
    close_code::{POLICY_VIOLATION, close_code},
    frames::{ErrorCode, Frame, Inbound, LoginFrame, Outbound, Refused, spoken},
};

/// What a connection is told that ends before it had a session.
pub(super) struct Farewell {
    pub(super) frame: Frame,
    pub(super) code: u16,
    pub(super) reason: &'static str,
    /// It showed a good token: it gets the time that a session's client gets to read it.
    pub(super) known: bool,
}

/// How many frames are read behind a login before its outcome is known. A client that sends more
/// waits.
pub(super) const EARLY: usize = 16;

/// Reads the login and logs in; answers the version of the protocol as well. Until then nothing is
/// asked of the store, and everything is bounded in time. What the client sends behind its login,
/// without waiting for the outcome, is kept in `early`.
pub(super) async fn greet<R: FrameReader, W: FrameWriter>(
    front: &Front,
    reader: &mut R,
    writer: &mut W,
    early: &mut VecDeque<Incoming>,
) -> Result<(Session, u64), Option<Farewell>> {
    let mut login = first_login(front, reader, writer).await?;
    let (uid, class) = front.key.verify_login(&login.token).map_err(|error| {
        // It does not wait: nobody guesses a signature, and after an outage many clients come back
        // with tokens that have run out.
        metrics::counter!("distlock_login_refused_total").increment(1);
        tracing::info!(%error, "a login was refused");
        refused(error.message())
    })?;
    match class {
        Some(class) => login.class = class,
        None => check_class(front, &login.class)?,
    }
    let version = login
        .version()
        .map_err(|why| failed(ErrorCode::BadValue, &why, POLICY_VIOLATION))?;
    let admitted = Box::pin(admit(front, reader, writer, early, uid, login)).await;
    let welcomed = match admitted {
        Ok(session) => welcome(front, writer, session, version).await,
        Err(farewell) => Err(farewell),
    };
    welcomed
        .map(|session| (session, version))
        .map_err(|farewell| {
            let known = true;
            farewell.map(|farewell| Farewell { known, ..farewell })
        })
}

/// Under a policy that counts by class, who could think up classes would have as many sessions as
/// it likes.
fn check_class(front: &Front, class: &Class) -> Result<(), Option<Farewell>> {
    let Some(classes) = &front.classes else {
        return Ok(());
    };
    if classes.contains(class) {
        return Ok(());
    }
    let known: Vec<_> = classes.iter().map(|class| format!("\"{class}\"")).collect();
    let why = format!("class is \"{class}\": {} are allowed", known.join(", "));
    Err(failed(ErrorCode::BadValue, &why, POLICY_VIOLATION))
}

async fn first_login<R: FrameReader, W: FrameWriter>(
    front: &Front,
    reader: &mut R,
    writer: &mut W,
) -> Result<LoginFrame, Option<Farewell>> {
    let until = front.clock.now() + front.login_timeout;
    loop {
        let too_slow = || {
            failed(
                ErrorCode::TooSlow,
                "no login within the time",
                POLICY_VIOLATION,
            )
        };
        let left = until.since(front.clock.now());
        // Also for a client that always has something to say.
        if left.is_zero() {
            return Err(too_slow());
        }
        let Some(incoming) = front.within(left, reader.next()).await else {
            return Err(too_slow());
        };
        match understood(incoming)? {
            Some(Inbound::Login(login)) => return Ok(login),
            Some(Inbound::Ping) => {
                let left = until.since(front.clock.now());
                let pong = Outbound::Pong.to_frame();
                match front.within(left, writer.send(&pong)).await {
                    Some(Ok(())) => {}
                    _ => return Err(None),
                }
            }
            Some(_) => {
                return Err(failed(
                    ErrorCode::NotLoggedIn,
                    "the first frame must be a login",
                    POLICY_VIOLATION,
                ));
            }
            None => {}
        }
    }
}

/// Logs in an account that showed a good token.
async fn admit<R: FrameReader, W: FrameWriter>(
    front: &Front,
    reader: &mut R,
    writer: &mut W,
    early: &mut VecDeque<Incoming>,
    uid: Uid,
    login: LoginFrame,
) -> Result<Session, Option<Farewell>> {
    let LoginFrame {
        device,
        class,
        intent,
        resume,
        acks,
        ..
    } = login;
    let login = Login::new(uid, device, class);
    let login = login.intent(intent, resume).acks(acks);
    let outcome = {
        let mut login = Box::pin(front.kick.login(login));
        loop {
            tokio::select! {
                biased;
                outcome = &mut login => break outcome,
                // A client that leaves now takes its login with it.
                incoming = reader.next(), if early.len() < EARLY => {
                    let parsed = match &incoming {
                        Incoming::Frame(text, id) => Some(Inbound::parse(text, *id)),
                        _ => None,
                    };
                    match parsed {
                        Some(Ok(Inbound::Ping)) => {
                            let pong = Outbound::Pong.to_frame();
                            match front.within(front.grace, writer.send(&pong)).await {
                                Some(Ok(())) => {}
                                _ => return Err(None),
                            }
                        }
                        Some(Ok(_) | Err(Refused::Value { .. })) => early.push_back(incoming),
                        Some(Err(Refused::Garbage)) | None => drop(understood(incoming)?),
                    }
                }
            }
        }
    };
    match outcome {
        Ok(LoginOutcome::Admitted(session)) => Ok(session),
        Ok(LoginOutcome::Busy { retry_after }) => {
            let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            let frame = Outbound::Busy { retry_after_ms }.to_frame();
            Err(farewell(frame, Code::Busy.websocket(), "busy"))
        }
        Ok(LoginOutcome::Denied(refusal)) => {
            let by = refusal.by_device.as_ref();
            Err(denied(refusal.code, &refusal.reason, by))
        }
        Ok(LoginOutcome::Superseded(by)) => Err(overtaken(by.by_device.as_ref(), by.r#gen)),
        Err(error) if error.kind() == ErrorKind::InvalidArgument => Err(failed(
            ErrorCode::BadValue,
            error.message(),
            POLICY_VIOLATION,
        )),
        Err(error) => {
            tracing::warn!(%error, "a login failed");
            Err(failed(
                ErrorCode::Unavailable,
                "the login could not be completed",
                Code::Busy.websocket(),
            ))
        }
        Ok(_) => Err(failed(
            ErrorCode::Unavailable,
            "the login could not be completed",
            Code::Busy.websocket(),
        )),
    }
}

/// Lets a client in, unless its session has lost its place again.
async fn welcome<W: FrameWriter>(
    front: &Front,
    writer: &mut W,
    session: Session,
    version: u64,
) -> Result<Session, Option<Farewell>> {
    let (v, acks) = spoken(version, session.acknowledges());
    let welcome = Outbound::LoginOk {
        uid: session.uid(),
        session: session.key().session,
        node: &session.key().node,
        r#gen: session.generation(),
        resume: session.resume_token(),
        old_confirmed: session.old_confirmed(),
        v,
        acks,
    }
    .to_frame();
    // From here on, dropping the session logs it out.
    if let Err(notice) = session.check() {
        let by = notice.by_device.as_ref();
        return Err(match notice.code {
            Code::Superseded | Code::Replaced => overtaken(by, notice.r#gen),
            code => denied(code, &notice.reason, by),
        });
    }
    match front.within(front.grace, writer.send(&welcome)).await {
        Some(Ok(())) => Ok(session),
        _ => Err(None),
    }
}

/// A frame, or `None` for a mere sign of life.
fn understood(incoming: Incoming) -> Result<Option<Inbound>, Option<Farewell>> {
    match incoming {
        Incoming::Alive => Ok(None),
        Incoming::Closing | Incoming::Gone => Err(None),
        Incoming::Bad(code, reason) => Err(failed(code, reason, close_code(code))),
        Incoming::Frame(text, id) => match Inbound::parse(&text, id) {
            Ok(frame) => Ok(Some(frame)),
            Err(Refused::Garbage) => Err(failed(
                ErrorCode::BadFrame,
                "not a frame of this protocol",
                POLICY_VIOLATION,
            )),
            Err(Refused::Value { why, .. }) => {
                Err(failed(ErrorCode::BadValue, &why, POLICY_VIOLATION))
            }
        },
    }
}

fn farewell(frame: Frame, code: u16, reason: &'static str) -> Option<Farewell> {
    Some(Farewell {
        frame,
        code,
        reason,
        known: false,
    })
}

fn failed(code: ErrorCode, reason: &str, close: u16) -> Option<Farewell> {
    let id = None;
    let frame = Outbound::Error {
        code,
        reason,
        id,
        retry_after_ms: None,
    }
    .to_frame();
    farewell(frame, close, "protocol error")
}

/// To the client it is the same as a ban: to ask again with this token is of no use.
fn refused(reason: &str) -> Option<Farewell> {
    let code = Code::Banned;
    let frame = Outbound::Denied {
        code,
        reason,
        by_device: None,
    };
    farewell(frame.to_frame(), code.websocket(), "the token was refused")
}

fn denied(code: Code, reason: &str, by_device: Option<&Device>) -> Option<Farewell> {
    let frame = Outbound::Denied {
        code,
        reason,
        by_device,
    };
    farewell(frame.to_frame(), code.websocket(), code.text())
}

/// A newer login came before this one was confirmed.
fn overtaken(by_device: Option<&Device>, r#gen: Option<Generation>) -> Option<Farewell> {
    let frame = Outbound::Superseded { by_device, r#gen };
    let code = Code::Superseded;
    farewell(frame.to_frame(), code.websocket(), code.text())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_memory::Memory;

    use super::{
        super::fixtures::{Reads, admitted, front, kick},
        *,
    };
    use crate::inbox::RecordsInbox;

    #[tokio::test]
    async fn a_login_that_was_overtaken_is_not_let_in() {
        let memory = Memory::default();
        let kick = kick(&memory).await;
        let inbox = Arc::new(RecordsInbox::new(memory.records()));
        let front = front(&kick, inbox);
        let anna = Uid::new("anna").unwrap();
        for (code, wanted) in [
            (None, "login_ok"),
            (Some(Code::Superseded), "superseded"),
            (Some(Code::Replaced), "superseded"),
            (Some(Code::Draining), "denied"),
        ] {
            let session = admitted(&kick, &anna).await;
            if let Some(code) = code {
                session.end(code);
            }
            let (mut client, read) = Reads::up_to(1);
            let said = match welcome(&front, &mut client, session, 1).await {
                Ok(_) => read.borrow()[0].clone(),
                Err(farewell) => {
                    assert!(read.borrow().is_empty(), "{code:?}");
                    farewell.unwrap().frame
                }
            };
            let said: serde_json::Value = serde_json::from_str(&said.json).unwrap();
            assert_eq!(said["type"], wanted, "{code:?}");
        }
    }
}
