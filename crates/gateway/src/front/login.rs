//! The login of a connection: either a session, or a frame with the reason for the refusal.
//!
//! Invariant of this module: nothing is requested from the store before the client has shown a
//! valid token, and each step is bounded in time. This module must never send `login_ok` for a
//! session that was superseded meanwhile.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use distlock_core::ErrorKind;
use distlock_kickout::{
    Class, ClientInfo, Code, Device, Generation, Login, LoginOutcome, Session, SlotEntry,
};

use super::{
    FrameReader, FrameWriter, FrontContext, Incoming,
    close::{POLICY_VIOLATION, close_code},
    frames::{ErrorCode, Frame, FrameError, Inbound, LoginFrame, Outbound, OwnSession, VERSION},
};
use crate::{metering, token::LoginRefusal};

/// The last frame for a connection that ends before it has a session.
pub(super) struct LoginFailure {
    pub(super) frame: Frame,
    pub(super) code: u16,
    pub(super) reason: &'static str,
    /// Whether the client showed a good token. Such a client gets the same time to read the frame
    /// as the client of a session.
    pub(super) authenticated: bool,
}

/// Most frames that are read after a login before its outcome is known. The node does not read
/// further frames before that outcome.
pub(super) const MAX_EARLY: usize = 16;

/// Reads the login and logs in. Before the token is checked, nothing is requested from the store,
/// and each wait is bounded. Frames that the client sends after its login, before the outcome, go
/// into `early`. `address` is the client's.
pub(super) async fn log_in<R: FrameReader, W: FrameWriter>(
    front: &FrontContext,
    reader: &mut R,
    writer: &mut W,
    early: &mut VecDeque<Incoming>,
    address: IpAddr,
) -> Result<Session, Option<LoginFailure>> {
    let mut login = read_login(front, reader, writer).await?;
    let verified = front.keys.verify(&login.token);
    let (uid, class) = verified.map_err(|refusal| match refusal {
        LoginRefusal::Refused(error) => {
            // The refusal is not delayed, because a signature cannot be guessed, and after an
            // outage many clients return with expired tokens.
            metering::count_refused_token("login");
            tracing::info!(%error, "a login was refused");
            token_failure(error.message())
        }
        LoginRefusal::KeyUnknown { retry_after } => busy_failure(retry_after),
    })?;
    match class {
        Some(class) => login.class = class,
        None => check_class(front, &login.class)?,
    }
    login
        .check_version()
        .map_err(|why| protocol_failure(ErrorCode::BadValue, &why, POLICY_VIOLATION))?;
    let LoginFrame {
        device,
        class,
        intent,
        resume,
        attempt,
        acks,
        saves,
        end,
        version,
        ..
    } = login;
    let client = ClientInfo {
        address: Some(address),
        version,
    };
    let login = Login::new(uid, device, class)
        .intent(intent, resume)
        .attempt(attempt)
        .acks(acks)
        .saves(saves || front.saver.is_some())
        .end(end)
        .client(client);
    let admitted = Box::pin(admit(front, reader, writer, early, login)).await;
    let confirmed = match admitted {
        Ok(session) => confirm_login(front, writer, session).await,
        Err(failure) => Err(failure),
    };
    confirmed.map_err(|failure| {
        let authenticated = true;
        failure.map(|failure| LoginFailure {
            authenticated,
            ..failure
        })
    })
}

/// Refuses a class that the configuration does not name. Under a policy that counts by class, a
/// client that invents classes would get any number of sessions.
fn check_class(front: &FrontContext, class: &Class) -> Result<(), Option<LoginFailure>> {
    let Some(classes) = &front.classes else {
        return Ok(());
    };
    if classes.contains(class) {
        return Ok(());
    }
    let known: Vec<_> = classes.iter().map(|class| format!("\"{class}\"")).collect();
    let why = format!("class is \"{class}\": {} are allowed", known.join(", "));
    Err(protocol_failure(
        ErrorCode::BadValue,
        &why,
        POLICY_VIOLATION,
    ))
}

async fn read_login<R: FrameReader, W: FrameWriter>(
    front: &FrontContext,
    reader: &mut R,
    writer: &mut W,
) -> Result<LoginFrame, Option<LoginFailure>> {
    let until = front.clock.now() + front.login_timeout;
    loop {
        let too_slow = || {
            protocol_failure(
                ErrorCode::TooSlow,
                "no login within the time",
                POLICY_VIOLATION,
            )
        };
        let left = until.since(front.clock.now());
        // This check also ends the wait for a client that never stops sending.
        if left.is_zero() {
            return Err(too_slow());
        }
        let Some(incoming) = front.within(left, reader.next()).await else {
            return Err(too_slow());
        };
        match parse_incoming(incoming)? {
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
                return Err(protocol_failure(
                    ErrorCode::NotLoggedIn,
                    "the first frame must be a login",
                    POLICY_VIOLATION,
                ));
            }
            None => {}
        }
    }
}

/// Logs in an account that showed a valid token. Meanwhile this function answers pings, and puts
/// other frames in `early` for the session. If the client leaves, its login is cancelled.
async fn admit<R: FrameReader, W: FrameWriter>(
    front: &FrontContext,
    reader: &mut R,
    writer: &mut W,
    early: &mut VecDeque<Incoming>,
    login: Login,
) -> Result<Session, Option<LoginFailure>> {
    let outcome = {
        let mut login = Box::pin(front.kick.login(login));
        loop {
            tokio::select! {
                biased;
                outcome = &mut login => break outcome,
                // A client that leaves now cancels its login.
                incoming = reader.next(), if early.len() < MAX_EARLY => {
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
                        Some(Ok(_) | Err(FrameError::Value { .. })) => early.push_back(incoming),
                        Some(Err(FrameError::Garbage)) | None => drop(parse_incoming(incoming)?),
                    }
                }
            }
        }
    };
    match outcome {
        Ok(LoginOutcome::Admitted(session)) => Ok(session),
        Ok(LoginOutcome::Busy { retry_after }) => Err(busy_failure(retry_after)),
        Ok(LoginOutcome::Denied(denied)) => {
            let by = denied.by_device.as_ref();
            let failure = denied_failure(denied.code, &denied.reason, by, &denied.sessions);
            Err(failure)
        }
        Ok(LoginOutcome::Superseded(by)) => {
            Err(superseded_failure(by.by_device.as_ref(), by.r#gen))
        }
        Err(error) if error.kind() == ErrorKind::InvalidArgument => Err(protocol_failure(
            ErrorCode::BadValue,
            error.message(),
            POLICY_VIOLATION,
        )),
        Err(error) => {
            tracing::warn!(%error, "a login failed");
            Err(protocol_failure(
                ErrorCode::Unavailable,
                "the login could not be completed",
                Code::Busy.websocket(),
            ))
        }
        Ok(_) => Err(protocol_failure(
            ErrorCode::Unavailable,
            "the login could not be completed",
            Code::Busy.websocket(),
        )),
    }
}

/// Confirms the login to the client, unless the session has already ended.
async fn confirm_login<W: FrameWriter>(
    front: &FrontContext,
    writer: &mut W,
    session: Session,
) -> Result<Session, Option<LoginFailure>> {
    // Where a service saves, the node does not wait for the client's own word.
    let client_saves = session.saves() && front.saver.is_none();
    let welcome = Outbound::LoginOk {
        uid: session.uid(),
        session: session.key().session,
        node: &session.key().node,
        r#gen: session.generation(),
        resume: session.resume_token(),
        old_confirmed: session.old_confirmed(),
        v: VERSION,
        acks: session.acknowledges(),
        saves: client_saves,
        heartbeat_ms: u64::try_from(front.heartbeat.as_millis()).unwrap_or(u64::MAX),
    }
    .to_frame();
    // From now on, the drop of the session logs it out.
    if let Err(notice) = session.check() {
        let by = notice.by_device.as_ref();
        return Err(match notice.code {
            Code::Superseded | Code::Replaced => superseded_failure(by, notice.r#gen),
            code => denied_failure(code, &notice.reason, by, &[]),
        });
    }
    match front.within(front.grace, writer.send(&welcome)).await {
        Some(Ok(())) => Ok(session),
        _ => Err(None),
    }
}

/// Parses a frame; returns `None` for a sign of life without a frame.
fn parse_incoming(incoming: Incoming) -> Result<Option<Inbound>, Option<LoginFailure>> {
    match incoming {
        Incoming::Alive => Ok(None),
        Incoming::Closing | Incoming::Gone => Err(None),
        Incoming::Bad(code, reason) => Err(protocol_failure(code, reason, close_code(code))),
        Incoming::Frame(text, id) => match Inbound::parse(&text, id) {
            Ok(frame) => Ok(Some(frame)),
            Err(FrameError::Garbage) => Err(protocol_failure(
                ErrorCode::BadFrame,
                "not a frame of this protocol",
                POLICY_VIOLATION,
            )),
            Err(FrameError::Value { why, .. }) => Err(protocol_failure(
                ErrorCode::BadValue,
                &why,
                POLICY_VIOLATION,
            )),
        },
    }
}

fn login_failure(frame: Frame, code: u16, reason: &'static str) -> Option<LoginFailure> {
    Some(LoginFailure {
        frame,
        code,
        reason,
        authenticated: false,
    })
}

fn protocol_failure(code: ErrorCode, reason: &str, close: u16) -> Option<LoginFailure> {
    let id = None;
    let frame = Outbound::Error {
        code,
        reason,
        id,
        retry_after_ms: None,
    }
    .to_frame();
    login_failure(frame, close, "protocol error")
}

fn busy_failure(retry_after: Duration) -> Option<LoginFailure> {
    let retry_after_ms = u64::try_from(retry_after.as_millis()).unwrap_or(u64::MAX);
    let frame = Outbound::Busy { retry_after_ms }.to_frame();
    login_failure(frame, Code::Busy.websocket(), "busy")
}

/// The client gets the code of a ban, because another login with the same token fails, too.
fn token_failure(reason: &str) -> Option<LoginFailure> {
    let code = Code::Banned;
    let frame = Outbound::Denied {
        code,
        reason,
        by_device: None,
        sessions: Vec::new(),
    };
    login_failure(frame.to_frame(), code.websocket(), "the token was refused")
}

fn denied_failure(
    code: Code,
    reason: &str,
    by_device: Option<&Device>,
    sessions: &[SlotEntry],
) -> Option<LoginFailure> {
    let frame = Outbound::Denied {
        code,
        reason,
        by_device,
        sessions: sessions.iter().map(OwnSession::from).collect(),
    };
    login_failure(frame.to_frame(), code.websocket(), code.text())
}

/// A newer login came before this login was confirmed.
fn superseded_failure(
    by_device: Option<&Device>,
    r#gen: Option<Generation>,
) -> Option<LoginFailure> {
    let frame = Outbound::Superseded { by_device, r#gen };
    let code = Code::Superseded;
    login_failure(frame.to_frame(), code.websocket(), code.text())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use distlock_kickout::Uid;
    use distlock_memory::Memory;

    use super::{
        super::fixtures::{ReadingClient, front_context, log_in_device, start_kickout},
        *,
    };
    use crate::inbox::RecordsInbox;

    #[tokio::test]
    async fn a_superseded_login_is_not_confirmed() {
        let memory = Memory::default();
        let kick = start_kickout(&memory).await;
        let inbox = Arc::new(RecordsInbox::new(memory.records()));
        let front = front_context(&kick, inbox);
        let anna = Uid::new("anna").unwrap();
        for (code, wanted) in [
            (None, "login_ok"),
            (Some(Code::Superseded), "superseded"),
            (Some(Code::Replaced), "superseded"),
            (Some(Code::Draining), "denied"),
        ] {
            let session = log_in_device(&kick, &anna).await;
            if let Some(code) = code {
                session.end(code);
            }
            let (mut client, read) = ReadingClient::up_to(1);
            let said = match confirm_login(&front, &mut client, session).await {
                Ok(_) => read.borrow()[0].clone(),
                Err(failure) => {
                    assert!(read.borrow().is_empty(), "{code:?}");
                    failure.unwrap().frame
                }
            };
            let said: serde_json::Value = serde_json::from_str(&said.json).unwrap();
            assert_eq!(said["type"], wanted, "{code:?}");
        }
    }
}
