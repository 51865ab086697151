//! The beginning of a connection: one login, or a word why not.

use distlock_core::ErrorKind;
use distlock_kickout::{Code, Login, LoginOutcome, Session, Uid};

use super::{
    FrameReader, FrameWriter, Front, Incoming,
    frames::{ErrorCode, Frame, Inbound, LoginFrame, Outbound, Refused},
    machine::{POLICY_VIOLATION, close_code, within},
};

/// What a connection is told that ends before it had a session.
pub(super) struct Farewell {
    pub(super) frame: Frame,
    pub(super) code: u16,
    pub(super) reason: &'static str,
    /// It showed a good token: it gets the time that a session's client gets to read it.
    pub(super) known: bool,
}

/// Reads the login and logs in. Until then nothing is asked of the store, and everything is bounded in time.
pub(super) async fn greet<R: FrameReader, W: FrameWriter>(
    front: &Front,
    reader: &mut R,
    writer: &mut W,
) -> Result<Session, Option<Farewell>> {
    let login = first_login(front, reader, writer).await?;
    let uid = front.key.verify(&login.token).map_err(|error| {
        tracing::info!(%error, "a login was refused");
        refused(error.message())
    })?;
    let admitted = Box::pin(admit(front, reader, writer, uid, login)).await;
    admitted.map_err(|farewell| {
        let known = true;
        farewell.map(|farewell| Farewell { known, ..farewell })
    })
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
        let Some(incoming) = within(front, left, reader.next()).await else {
            return Err(too_slow());
        };
        match understood(incoming)? {
            Some(Inbound::Login(login)) => return Ok(login),
            Some(Inbound::Ping) => {
                let left = until.since(front.clock.now());
                let pong = Outbound::Pong.to_frame();
                match within(front, left, writer.send(&pong)).await {
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
    uid: Uid,
    login: LoginFrame,
) -> Result<Session, Option<Farewell>> {
    let LoginFrame {
        device,
        class,
        intent,
        resume,
        ..
    } = login;
    let login = Login::new(uid, device, class).intent(intent, resume);
    let outcome = {
        let mut login = Box::pin(front.kick.login(login));
        loop {
            tokio::select! {
                biased;
                outcome = &mut login => break outcome,
                // A client that leaves now takes its login with it.
                incoming = reader.next() => match understood(incoming)? {
                    None => {}
                    Some(Inbound::Ping) => {
                        let pong = Outbound::Pong.to_frame();
                        match within(front, front.grace, writer.send(&pong)).await {
                            Some(Ok(())) => {}
                            _ => return Err(None),
                        }
                    }
                    Some(_) => return Err(failed(
                        ErrorCode::NotLoggedIn,
                        "the login is under way",
                        POLICY_VIOLATION,
                    )),
                },
            }
        }
    };
    let session = match outcome {
        Ok(LoginOutcome::Admitted(session)) => session,
        Ok(LoginOutcome::Busy { retry_after }) => {
            let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
            let frame = Outbound::Busy { retry_after_ms }.to_frame();
            return Err(farewell(frame, Code::Busy.websocket(), "busy"));
        }
        Ok(LoginOutcome::Denied(refusal)) => {
            let frame = Outbound::Denied {
                code: refusal.code,
                reason: &refusal.reason,
                by_device: refusal.by_device.as_ref(),
            };
            let code = refusal.code;
            return Err(farewell(frame.to_frame(), code.websocket(), code.text()));
        }
        Ok(LoginOutcome::Superseded(by)) => {
            let frame = Outbound::Superseded {
                by_device: by.by_device.as_ref(),
                r#gen: by.r#gen,
            };
            let code = Code::Superseded;
            return Err(farewell(frame.to_frame(), code.websocket(), code.text()));
        }
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
            return Err(failed(
                ErrorCode::BadValue,
                error.message(),
                POLICY_VIOLATION,
            ));
        }
        Err(error) => {
            tracing::warn!(%error, "a login failed");
            return Err(failed(
                ErrorCode::Unavailable,
                "the login could not be completed",
                Code::Busy.websocket(),
            ));
        }
        Ok(_) => {
            return Err(failed(
                ErrorCode::Unavailable,
                "the login could not be completed",
                Code::Busy.websocket(),
            ));
        }
    };
    let welcome = Outbound::LoginOk {
        uid: session.uid(),
        session: session.key().session,
        node: &session.key().node,
        r#gen: session.generation(),
        resume: session.resume_token(),
        old_confirmed: session.old_confirmed(),
    }
    .to_frame();
    match within(front, front.grace, writer.send(&welcome)).await {
        Some(Ok(())) => Ok(session),
        // Dropping the session logs it out.
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
            Err(Refused::Value(why)) => Err(failed(ErrorCode::BadValue, &why, POLICY_VIOLATION)),
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
    let frame = Outbound::Error { code, reason }.to_frame();
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
