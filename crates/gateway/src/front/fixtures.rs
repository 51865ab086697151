//! Fixtures for the tests of the fronts: a node's flow over the memory store, its sessions, and
//! clients that read.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use distlock_core::{Clock, Store, SystemClock};
use distlock_kickout::{
    Class, Device, KickOut, Login, LoginOutcome, Message, NodeId, Session, Uid,
};
use distlock_memory::Memory;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{FrameWriter, FrontContext, SendLimits, frames::Frame};
use crate::{
    config::{ClientAddress, GatewayConfig},
    inbox::OfflineStore,
    token::{LoginKeys, TokenKey},
};

/// Longest wait of a test. A run without a bug takes far less.
pub(super) const LONG: Duration = Duration::from_secs(30);

/// A client that reads only this number of frames.
pub(super) struct ReadingClient {
    most: usize,
    frames: watch::Sender<Vec<Frame>>,
}

impl ReadingClient {
    /// The client, and the frames that it has read.
    pub(super) fn up_to(most: usize) -> (Self, watch::Receiver<Vec<Frame>>) {
        let (frames, read) = watch::channel(Vec::new());
        (Self { most, frames }, read)
    }
}

#[async_trait]
impl FrameWriter for ReadingClient {
    async fn send(&mut self, frame: &Frame) -> io::Result<()> {
        if self.frames.borrow().len() == self.most {
            std::future::pending::<()>().await;
        }
        self.frames.send_modify(|frames| frames.push(frame.clone()));
        Ok(())
    }

    async fn close(&mut self, _: u16, _: &str) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the flow of a single node.
pub(super) async fn start_kickout(memory: &Memory) -> KickOut {
    let store = Store::new(memory.lock(), memory.records());
    let kick = KickOut::builder(store, NodeId::new("n1").unwrap());
    kick.start().await.unwrap()
}

pub(crate) fn front_context(kick: &KickOut, inbox: Arc<dyn OfflineStore>) -> Arc<FrontContext> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    Arc::new(FrontContext {
        kick: kick.clone(),
        keys: Arc::new(LoginKeys::of_secret(TokenKey::new(&[7; 32]).unwrap())),
        classes: None,
        clock: Arc::clone(&clock),
        inbox,
        limits: SendLimits::from_config(&GatewayConfig::default(), &clock),
        may_send: None,
        saver: None,
        heartbeat: LONG,
        grace: LONG,
        login_timeout: LONG,
        max_frame: 65_535,
        connections: TaskTracker::new(),
        abort_all: CancellationToken::new(),
        client_address: ClientAddress::Connection,
    })
}

pub(crate) async fn log_in_device(kick: &KickOut, uid: &Uid) -> Session {
    let device = Device::new("d1").unwrap();
    let login = Login::new(uid.clone(), device, Class::none());
    let LoginOutcome::Admitted(session) = kick.login(login).await.unwrap() else {
        panic!("nobody else is there");
    };
    session
}

pub(super) fn numbered_message(number: usize) -> Message {
    let mut message = Message::new(Uid::new("otto").unwrap(), "hello");
    message.id = format!("m{number}");
    message
}

/// Logs the account in and out, so that messages for the account are stored from now on.
pub(super) async fn make_known(kick: &KickOut, uid: &Uid) {
    log_in_device(kick, uid).await.logout().await;
}
