//! A device: a real client that records its actions and all frames that it receives.

use std::sync::{Arc, OnceLock};

use distlock_checker::{Seen, What};
use distlock_kickout::{Code, Generation, SessionId, Uid};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::{
    wire::Wire,
    world::{SOON, Shared},
};

/// The state of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    In(SessionId, Generation),
    /// The login was refused. The text is the type of the frame, or the code of the error.
    Out(String),
    /// The session ended with a notice.
    Told(Code),
    /// The connection has ended.
    Closed,
}

enum Command {
    Send(Value),
    /// Ignores the next notice.
    Ignore,
    /// Stops acknowledging messages.
    Hold,
    /// Says that everything is saved, and leaves.
    Saved,
    Leave,
}

/// The parameters of a login.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hello {
    intent: &'static str,
    resume: Option<String>,
    pub(crate) framed: bool,
    acks: bool,
    saves: bool,
    class: &'static str,
}

impl Hello {
    /// An ordinary login.
    pub(crate) fn login() -> Self {
        Self {
            intent: "login",
            ..Self::default()
        }
    }

    /// An ordinary login over plain TCP instead of a WebSocket.
    pub(crate) fn framed() -> Self {
        Self {
            framed: true,
            ..Self::login()
        }
    }

    /// A login that counts only if nobody else has logged in since the broken session.
    pub(crate) fn resume(token: &str) -> Self {
        Self {
            intent: "resume",
            resume: Some(token.to_owned()),
            ..Self::default()
        }
    }

    /// Makes the client acknowledge messages.
    pub(crate) fn acks(mut self) -> Self {
        self.acks = true;
        self
    }

    /// Makes the client stay after its notice until it has saved.
    pub(crate) fn saves(mut self) -> Self {
        self.saves = true;
        self
    }

    /// Sets the class of the device.
    pub(crate) fn class(mut self, class: &'static str) -> Self {
        self.class = class;
        self
    }

    /// A login whose user confirmed the takeover.
    pub(crate) fn takeover() -> Self {
        Self {
            intent: "takeover",
            ..Self::default()
        }
    }
}

/// A connected device. Dropping it breaks the connection without a logout, as an empty battery
/// does.
pub(crate) struct Client {
    pub(crate) stamp: Seen,
    state: watch::Receiver<State>,
    resume: Arc<OnceLock<String>>,
    /// The `old_confirmed` of its `login_ok`.
    confirmed_by: Arc<OnceLock<String>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Client {
    pub(crate) async fn connect(
        connecting: impl Future<Output = Wire>,
        token: &str,
        hello: Hello,
        stamp: Seen,
        shared: Arc<Shared>,
    ) -> Self {
        let (tell, state) = watch::channel(State::Waiting);
        let (commands, mut asked) = mpsc::unbounded_channel();
        let mut wire = tokio::time::timeout(SOON, connecting)
            .await
            .expect("connected in time");
        let mut login = json!({
            "type": "login",
            "token": token,
            "device": stamp.device,
            "class": hello.class,
            "intent": hello.intent,
        });
        if hello.acks {
            login["acks"] = Value::Bool(true);
        }
        if hello.saves {
            login["saves"] = Value::Bool(true);
        }
        if let Some(resume) = hello.resume {
            login["resume"] = Value::String(resume);
        }
        shared.record(&stamp, What::LoginSent);
        wire.send(&login).await.unwrap();
        let (mine, resume) = (stamp.clone(), Arc::new(OnceLock::new()));
        let resumes = Arc::clone(&resume);
        let confirmed_by = Arc::new(OnceLock::new());
        let confirmed = Arc::clone(&confirmed_by);
        tokio::spawn(async move {
            let stamp = mine;
            let (mut ignores, mut leaving, mut holds) = (false, false, false);
            loop {
                tokio::select! {
                    command = asked.recv() => match command {
                        Some(Command::Send(frame)) => {
                            if frame["type"] == "send" {
                                let id = frame["id"].as_str().unwrap().to_owned();
                                let is_null = |key: &str| frame[key].is_null();
                                let all = is_null("to_device") && is_null("to_class");
                                let to = Uid::new(frame["to"].as_str().unwrap()).unwrap();
                                let to = all.then_some(to);
                                shared.record(&stamp, What::Sent { id, to });
                            }
                            let _ = wire.send(&frame).await;
                        }
                        Some(Command::Ignore) => ignores = true,
                        Some(Command::Hold) => holds = true,
                        Some(Command::Saved) => {
                            leaving = true;
                            shared.record(&stamp, What::Leaves);
                            for frame in ["saved", "bye"] {
                                let _ = wire.send(&json!({"type": frame})).await;
                            }
                            wire.close().await;
                        }
                        Some(Command::Leave) => {
                            leaving = true;
                            shared.record(&stamp, What::Leaves);
                            let _ = wire.send(&json!({"type": "logout"})).await;
                            wire.close().await;
                        }
                        None => {
                            if !leaving {
                                shared.record(&stamp, What::Leaves);
                            }
                            return;
                        }
                    },
                    frame = wire.next() => {
                        let Some(frame) = frame else {
                            if !leaving {
                                shared.record(&stamp, What::Closed);
                            }
                            let told = matches!(*tell.borrow(), State::Told(_) | State::Out(_));
                            if !told {
                                tell.send_replace(State::Closed);
                            }
                            return;
                        };
                        let Some((what, state)) = read(&frame) else { continue };
                        if let Some(token) = frame["resume"].as_str() {
                            let _ = resumes.set(token.to_owned());
                        }
                        if let Some(by) = frame["old_confirmed"].as_str() {
                            let _ = confirmed.set(by.to_owned());
                        }
                        let told = matches!(what, What::Told { .. });
                        shared.record(&stamp, what);
                        if let (Some(seq), false) = (frame["seq"].as_u64(), holds) {
                            let id = frame["id"].as_str().unwrap().to_owned();
                            shared.record(&stamp, What::Acked { id });
                            let _ = wire.send(&json!({"type": "ack", "seq": seq})).await;
                        }
                        if let Some(state) = state {
                            tell.send_replace(state);
                        }
                        if told && !ignores && !hello.saves {
                            leaving = true;
                            shared.record(&stamp, What::Leaves);
                            let _ = wire.send(&json!({"type": "bye"})).await;
                            wire.close().await;
                        }
                    }
                }
            }
        });
        Self {
            stamp,
            state,
            resume,
            confirmed_by,
            commands,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Waits for the answer to the login.
    pub(crate) async fn wait_for_answer(&mut self) -> State {
        self.wait_for_state("an answer", |state| *state != State::Waiting)
            .await
    }

    pub(crate) async fn wait_until_in(&mut self) -> (SessionId, Generation) {
        match self.wait_for_answer().await {
            State::In(session, r#gen) => (session, r#gen),
            other => panic!("{:?} was not let in: {other:?}", self.stamp),
        }
    }

    /// The token for a resume. Panics before the login is confirmed.
    pub(crate) fn resume_token(&self) -> String {
        self.resume.get().expect("it is in").clone()
    }

    /// The part that confirmed the end of the older sessions. Panics before the login is confirmed.
    pub(crate) fn confirmed_by(&self) -> &str {
        self.confirmed_by.get().expect("it is in")
    }

    /// Waits until the session ends with a notice, and returns the code of the notice.
    pub(crate) async fn wait_for_notice(&mut self) -> Code {
        let over = |state: &State| !matches!(state, State::Waiting | State::In(..));
        match self.wait_for_state("the end", over).await {
            State::Told(code) => code,
            other => panic!("{:?} ended without a notice: {other:?}", self.stamp),
        }
    }

    pub(crate) async fn wait_for_state(
        &mut self,
        what: &str,
        reached: impl Fn(&State) -> bool,
    ) -> State {
        let stamp = &self.stamp;
        let waiting = self.state.wait_for(|state| reached(state));
        match tokio::time::timeout(SOON * 2, waiting).await {
            Ok(Ok(state)) => state.clone(),
            other => panic!("{stamp:?} waits for {what}: {other:?}"),
        }
    }

    pub(crate) fn send(&self, to: &Uid, id: &str) {
        let frame = json!({"type": "send", "to": to, "body": id, "id": id});
        let _ = self.commands.send(Command::Send(frame));
    }

    /// Sends to one device or to the devices of a class. `only` is the field of the frame and its
    /// value.
    pub(crate) fn send_only(&self, to: &Uid, only: (&str, &str), id: &str) {
        let mut frame = json!({"type": "send", "to": to, "body": id, "id": id});
        frame[only.0] = only.1.into();
        let _ = self.commands.send(Command::Send(frame));
    }

    /// Makes the client acknowledge no further message, as an app that hangs.
    pub(crate) fn stop_acknowledging(&self) {
        let _ = self.commands.send(Command::Hold);
    }

    /// Makes a client that saves say that it has saved.
    pub(crate) fn say_saved(&self) {
        let _ = self.commands.send(Command::Saved);
    }

    pub(crate) fn ignore_notice(&self) {
        let _ = self.commands.send(Command::Ignore);
    }

    pub(crate) fn leave(&self) {
        let _ = self.commands.send(Command::Leave);
    }
}

fn read(frame: &Value) -> Option<(What, Option<State>)> {
    let code = || serde_json::from_value(frame["code"].clone()).unwrap();
    let id = || frame["id"].as_str().unwrap().to_owned();
    Some(match frame["type"].as_str().unwrap() {
        "login_ok" => {
            let session = serde_json::from_value(frame["session"].clone()).unwrap();
            let r#gen = Generation::new(frame["gen"].as_u64().unwrap());
            (
                What::LoginOk { session, r#gen },
                Some(State::In(session, r#gen)),
            )
        }
        "busy" => (What::Busy, Some(State::Out("busy".into()))),
        "denied" => (
            What::Denied { code: code() },
            Some(State::Out("denied".into())),
        ),
        "superseded" => (What::Overtaken, Some(State::Out("superseded".into()))),
        "offline" => (What::Told { code: code() }, Some(State::Told(code()))),
        "message" => (What::Message { id: id() }, None),
        "sent" => {
            let outcome = frame["outcome"].as_str().unwrap().to_owned();
            let devices = serde_json::from_value(frame["devices"].clone()).unwrap();
            let id = id();
            (
                What::Outcome {
                    id,
                    outcome,
                    devices,
                },
                None,
            )
        }
        "error" if frame["code"] == "superseded" => (What::Refused, None),
        "error" if frame["id"].is_string() => {
            let outcome = frame["code"].as_str().unwrap().to_owned();
            let (id, devices) = (id(), None);
            (
                What::Outcome {
                    id,
                    outcome,
                    devices,
                },
                None,
            )
        }
        "error" if frame["code"] == "bad_value" => (
            What::Denied { code: Code::Denied },
            Some(State::Out("bad_value".into())),
        ),
        "error" if frame["code"] == "unavailable" => {
            (What::Busy, Some(State::Out("unavailable".into())))
        }
        _ => return None,
    })
}
