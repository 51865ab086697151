//! What a stop, a crash and a lost or older state file do to locks in the memory of a server. The
//! time is the test's own.

use std::{
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use distlock_core::{Clock, Error, ErrorKind, ManualClock, SystemClock};
use distlock_memory::Memory;
use distlock_server::{LockServer, ServerConfig, StateOptions};
use distlock_wire::v1::{
    self, acquire_answer, lock_service_client::LockServiceClient, renew_answer, renew_lease,
};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(10);
const MAX_LEASE: Duration = Duration::from_secs(60);
/// The locks that may be held.
const NAMES: usize = 400;

/// A folder with the state of a server, and the time.
struct Place {
    folder: TempDir,
    clock: Arc<ManualClock>,
}

/// A running server.
struct Running {
    client: LockServiceClient<Channel>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<distlock_core::Result<()>>,
}

/// A granted lock.
#[derive(Clone, Debug)]
struct Held {
    lease: v1::Lease,
    token: u64,
    proof: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::new()),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("server.state")
    }

    /// The path of another file of the server; without an extension, of the state itself.
    fn beside(&self, extension: &str) -> PathBuf {
        if extension.is_empty() {
            return self.path();
        }
        let mut path = self.path().into_os_string();
        path.push(format!(".{extension}"));
        path.into()
    }

    async fn try_start(&self, is_new: bool, max_lease: Duration) -> distlock_core::Result<Running> {
        let mut config = ServerConfig::default();
        config.listen = Some("127.0.0.1:0".to_owned());
        config.max_lease = max_lease;
        config.limits.names = NAMES;
        let path = self.path();
        let state = StateOptions { path, is_new };
        let records = Memory::default().records();
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let server = LockServer::start_in_memory(config, state, records, clock).await?;
        let endpoint =
            Endpoint::from_shared(format!("http://{}", server.address().unwrap())).unwrap();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let served = tokio::spawn(server.run(shutdown));
        let mut client = LockServiceClient::new(endpoint.connect().await.unwrap());
        // A connection that shows no call ends after a while of the test's time.
        client.health(v1::CheckHealth {}).await.unwrap();
        Ok(Running {
            client,
            stop,
            served,
        })
    }

    /// Starts a server once the one before has ended.
    async fn start_after(
        &self,
        is_new: bool,
        max_lease: Duration,
    ) -> distlock_core::Result<Running> {
        for _ in 0..500 {
            match self.try_start(is_new, max_lease).await {
                Err(error) if error.to_string().contains("another lock server") => {
                    SystemClock.sleep(Duration::from_millis(10)).await;
                }
                started => return started,
            }
        }
        panic!("the server before does not end");
    }

    async fn start(&self, is_new: bool, max_lease: Duration) -> Running {
        self.start_after(is_new, max_lease).await.unwrap()
    }

    async fn refused_start(&self) -> Error {
        self.start_after(false, MAX_LEASE).await.err().unwrap()
    }

    async fn first_start(&self) -> Running {
        self.start(true, MAX_LEASE).await
    }

    async fn again(&self) -> Running {
        self.start(false, MAX_LEASE).await
    }
}

impl Running {
    /// Ends the server in order.
    async fn stop(self) {
        drop(self.client);
        self.stop.send(()).unwrap();
        self.served.await.unwrap().unwrap();
    }

    /// Ends the server without a last word.
    async fn crash(self) {
        self.served.abort();
        let _ = self.served.await;
    }

    async fn try_acquire(&mut self, name: &str) -> Result<Option<Held>, tonic::Status> {
        let owner = Uuid::new_v4().as_bytes().to_vec();
        let request = v1::AcquireLock {
            name: name.to_owned(),
            owner: owner.clone(),
            ttl_us: u64::try_from(TTL.as_micros()).unwrap(),
            holder: "client".to_owned(),
            meta: Some("text".to_owned()),
            in_order: false,
        };
        let call = v1::AcquireCall {
            request: Some(request),
            wait_us: 0,
        };
        let answer = self.client.acquire(call).await?.into_inner();
        let acquire_answer::Answer::Granted(grant) = answer.answer.unwrap() else {
            return Ok(None);
        };
        let lease = v1::Lease {
            name: name.to_owned(),
            owner,
            token: Some(grant.token),
            nonce: None,
        };
        Ok(Some(Held {
            lease,
            token: grant.token,
            proof: grant.proof,
        }))
    }

    async fn acquire(&mut self, name: &str) -> Held {
        let held = self.try_acquire(name).await.unwrap();
        held.unwrap_or_else(|| panic!("{name} is busy"))
    }

    /// The proof of the renewed lease; `None`: the lease does not hold the lock.
    async fn try_renew(&mut self, held: &Held) -> Result<Option<Vec<u8>>, tonic::Status> {
        let renewal = v1::RenewLease {
            lease: Some(held.lease.clone()),
            ttl_us: u64::try_from(TTL.as_micros()).unwrap(),
            proof: held.proof.clone(),
            ..v1::RenewLease::default()
        };
        let answer = self.client.renew(renewal).await?.into_inner();
        Ok(match answer.answer.unwrap() {
            renew_answer::Answer::Extended(extended) => {
                assert_eq!(extended.token, held.token);
                Some(extended.proof)
            }
            renew_answer::Answer::NotHeld(_) => None,
        })
    }

    async fn renew(&mut self, held: &Held) -> Option<Vec<u8>> {
        self.try_renew(held).await.unwrap()
    }

    async fn force_release(&mut self, held: &Held) {
        let lock = v1::ForceReleaseLock {
            name: held.lease.name.clone(),
            token: held.token,
        };
        self.client.force_release(lock).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_in_order_loses_no_lock_no_ticket_and_no_token() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let (kept, freed) = (server.acquire("kept").await, server.acquire("freed").await);
    let lease = Some(freed.lease.clone());
    server
        .client
        .release(v1::ReleaseLease { lease })
        .await
        .unwrap();
    let mut ticket = server.acquire("ticket").await;
    let nonce = Uuid::new_v4().as_bytes().to_vec();
    let issue = v1::RenewLease {
        lease: Some(ticket.lease.clone()),
        ttl_us: 10_000_000,
        ticket: Some(renew_lease::Ticket::IssueNonce(nonce.clone())),
        ..v1::RenewLease::default()
    };
    server.client.renew(issue).await.unwrap();
    server.stop().await;

    let mut server = place.again().await;
    assert!(server.try_acquire("kept").await.unwrap().is_none(), "busy");
    assert!(server.renew(&kept).await.is_some());
    ticket.lease.nonce = Some(nonce);
    let redeem = v1::RenewLease {
        lease: Some(ticket.lease.clone()),
        ttl_us: 10_000_000,
        ticket: Some(renew_lease::Ticket::Redeem(true)),
        ..v1::RenewLease::default()
    };
    let answer = server.client.renew(redeem).await.unwrap().into_inner();
    let extended = answer.answer.unwrap();
    assert!(
        matches!(extended, renew_answer::Answer::Extended(_)),
        "{extended:?}"
    );
    // Nothing waits, and the tokens go on.
    assert!(server.acquire("freed").await.token > freed.token);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_nobody_new_is_granted_a_lock_and_holders_have_theirs_by_their_proof() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let (held, gone) = (server.acquire("held").await, server.acquire("gone").await);
    server.crash().await;

    let mut server = place.again().await;
    for name in ["held", "gone", "new"] {
        let refused = server.try_acquire(name).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("try again in"), "{refused}");
    }
    let name = "held".to_owned();
    let looked = server.client.inspect(v1::InspectLock { name }).await;
    assert_eq!(
        looked.unwrap_err().code(),
        Code::Unavailable,
        "not known as free"
    );
    let mut without_proof = held.clone();
    without_proof.proof.clear();
    assert_eq!(server.renew(&without_proof).await, None);
    let mut stranger = held.clone();
    stranger.lease.owner = Uuid::new_v4().as_bytes().to_vec();
    assert_eq!(server.renew(&stranger).await, None);
    let renewed = server.renew(&held).await.unwrap();
    assert_ne!(renewed, held.proof, "a proof of this start");

    // The holder goes on, and the recovery ends.
    for _ in 0..9 {
        place.clock.advance(Duration::from_secs(7));
        assert!(server.renew(&held).await.is_some());
    }
    assert!(server.try_acquire("held").await.unwrap().is_none(), "busy");
    // A proof restores nothing any more: somebody else may have had the lock since.
    assert_eq!(server.renew(&gone).await, None);
    let next = server.acquire("gone").await;
    assert!(next.token > gone.token && next.token > held.token);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_over_crashes_also_when_they_run_ahead_of_the_clock() {
    let place = Place::new();
    let mut last = 0;
    let mut server = place.first_start().await;
    for round in 0..4 {
        let held = server.acquire("a").await;
        assert!(held.token > last, "round {round}");
        last = held.token;
        // A raised token counts as well.
        let raise = v1::RenewLease {
            lease: Some(held.lease.clone()),
            ttl_us: 10_000_000,
            token_floor: Some(last + 90_000_000),
            ..v1::RenewLease::default()
        };
        server.client.renew(raise).await.unwrap();
        last += 90_000_000;
        server.crash().await;
        server = place.again().await;
        place.clock.advance(Duration::from_secs(600));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_state_a_server_recovers_unless_it_is_new() {
    let place = Place::new();
    let mut server = place.again().await;
    let refused = server.try_acquire("a").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    place.clock.advance(MAX_LEASE + Duration::from_secs(1));
    server.acquire("a").await;
    server.crash().await;

    // With the file, nothing is new. Nor is it where another server was before.
    for is_there in [true, false] {
        if !is_there {
            fs::remove_file(place.path()).unwrap();
        }
        let mut server = place.start(true, MAX_LEASE).await;
        let refused = server.try_acquire("a").await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_export_of_a_server_is_not_read_after_another_one_was_at_its_place() {
    let place = Place::new();
    let mut server = place.first_start().await;
    server.acquire("a").await;
    server.stop().await;
    let away = place.beside("away");
    fs::rename(place.path(), &away).unwrap();
    let mut other = place.again().await;
    place.clock.advance(MAX_LEASE + Duration::from_secs(1));
    other.acquire("b").await;
    other.crash().await;
    fs::rename(&away, place.path()).unwrap();
    let mut server = place.again().await;
    let refused = server.try_acquire("b").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_keeps_no_server_from_its_stop() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let held = server.acquire("a").await;
    let silent = futures_util::stream::pending::<v1::ClientFrame>();
    let _session = server.client.session(silent).await.unwrap();
    server.stop().await;
    let mut server = place.again().await;
    assert!(server.renew(&held).await.is_some(), "nothing was exported");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_longest_lease_ends_no_lease_early() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let held = server.acquire("a").await;
    server.stop().await;
    let mut server = place.start(false, TTL / 2).await;
    // The renewal is cut, and its answer may be lost.
    assert!(server.renew(&held).await.is_some());
    place.clock.advance(TTL * 3 / 4);
    assert!(server.try_acquire("a").await.unwrap().is_none(), "busy");
    place.clock.advance(TTL / 2);
    server.acquire("a").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_after_a_clean_stop_does_not_read_the_old_export() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let first = server.acquire("a").await;
    server.stop().await;
    let mut server = place.again().await;
    let lease = Some(first.lease.clone());
    server
        .client
        .release(v1::ReleaseLease { lease })
        .await
        .unwrap();
    let second = server.acquire("a").await;
    server.crash().await;
    let mut server = place.again().await;
    // The export says that the first one holds the lock.
    assert!(server.renew(&second).await.is_some());
    assert_eq!(server.renew(&first).await, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recovery_lasts_as_long_as_the_longest_lease_of_the_start_before() {
    let place = Place::new();
    let mut server = place.first_start().await;
    server.acquire("a").await;
    server.crash().await;
    let shorter = Duration::from_secs(5);
    let mut server = place.start(false, shorter).await;
    place.clock.advance(MAX_LEASE - Duration::from_secs(1));
    assert!(server.try_acquire("a").await.is_err());
    place.clock.advance(Duration::from_secs(32));
    server.acquire("a").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_crashes_again_and_again_recovers_for_no_longer() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let last = server.acquire("a").await;
    server.crash().await;
    for _ in 0..5 {
        place.again().await.crash().await;
    }
    let mut server = place.again().await;
    assert!(server.try_acquire("a").await.is_err());
    place.clock.advance(MAX_LEASE + Duration::from_secs(1));
    assert!(server.acquire("a").await.token > last.token);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_force_released_lock_is_not_restored() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let (forced, kept) = (server.acquire("forced").await, server.acquire("kept").await);
    server.force_release(&forced).await;
    server.crash().await;
    let mut server = place.again().await;
    assert_eq!(server.renew(&forced).await, None);
    assert!(server.renew(&kept).await.is_some());
    // Also during a recovery.
    server.force_release(&kept).await;
    server.crash().await;
    let mut server = place.again().await;
    assert_eq!(server.renew(&kept).await, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_highest_proven_token_wins() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let former = server.acquire("a").await;
    place.clock.advance(TTL);
    let present = server.acquire("a").await;
    server.crash().await;
    let mut server = place.again().await;
    // The renewal of the former holder was on its way for long.
    assert!(server.renew(&former).await.is_some());
    assert!(server.renew(&present).await.is_some());
    assert_eq!(server.renew(&former).await, None);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_state_is_noticed_by_a_proof() {
    let place = Place::new();
    place.first_start().await.crash().await;
    let copy = fs::read(place.path()).unwrap();
    let lock_copy = fs::read(place.beside("lock")).unwrap();
    // The start that reads the copy has the number 2.
    place.again().await.crash().await;
    let mut server = place.again().await;
    place.clock.advance(MAX_LEASE * 2);
    let held = server.acquire("a").await;
    server.crash().await;

    // The file alone: noticed at once.
    fs::write(place.path(), &copy).unwrap();
    let error = place.refused_start().await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("older copy"), "{error}");
    assert_eq!(fs::read(place.path()).unwrap(), copy);

    // The whole folder: noticed by the proof.
    fs::write(place.beside("lock"), lock_copy).unwrap();
    let mut server = place.again().await;
    let refused = server.try_renew(&held).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    assert!(refused.message().contains("older copy"), "{refused}");
    place.clock.advance(MAX_LEASE * 3);
    let refused = server.try_acquire("b").await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "nobody new: {refused}");
    server.stop().await;
}

/// The lock was force-released, and only the state that was lost knows it.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_is_noticed_also_if_it_is_one_start_older() {
    let place = Place::new();
    place.first_start().await.crash().await;
    let files = ["", "lock"].map(|extension| {
        let path = place.beside(extension);
        (fs::read(&path).unwrap(), path)
    });
    let mut server = place.again().await;
    place.clock.advance(MAX_LEASE * 2);
    let held = server.acquire("a").await;
    server.force_release(&held).await;
    server.crash().await;
    for (content, path) in files {
        fs::write(path, content).unwrap();
    }
    // Its start has the same count as the one that granted the lock.
    let mut server = place.again().await;
    let refused = server.try_renew(&held).await.unwrap_err();
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_a_recovery_forgets_no_holder() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let (early, late) = (server.acquire("early").await, server.acquire("late").await);
    server.crash().await;
    let mut server = place.again().await;
    let early_again = server.renew(&early).await;
    assert!(early_again.is_some());
    server.stop().await;
    let mut server = place.again().await;
    assert!(server.try_acquire("late").await.is_err(), "it recovers");
    assert!(server.renew(&late).await.is_some());
    let early = Held {
        proof: early_again.unwrap(),
        ..early
    };
    assert!(server.renew(&early).await.is_some());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_files_of_another_server_are_not_read_as_those_of_this_one() {
    let (other, place) = (Place::new(), Place::new());
    let mut server = other.first_start().await;
    server.acquire("a").await;
    server.stop().await;
    let mut server = place.first_start().await;
    let held = server.acquire("b").await;
    server.stop().await;
    for extension in ["", "locks"] {
        fs::copy(other.beside(extension), place.beside(extension)).unwrap();
    }
    let mut server = place.again().await;
    // Neither the locks of the other one, nor the proofs of this one: a recovery.
    for name in ["a", "b", "c"] {
        let refused = server.try_acquire(name).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    }
    assert_eq!(server.renew(&held).await, None);
    server.stop().await;
}

/// The next write of the state ends as on a full disk.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_full_disk_nobody_new_is_granted_a_lock_and_holders_go_on() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let (kept, freed) = (server.acquire("kept").await, server.acquire("freed").await);
    let fresh = place.beside("new");
    std::os::unix::fs::symlink("/dev/full", &fresh).unwrap();
    // Until the ceiling of tokens is used up, nothing is missing.
    for _ in 0..6 {
        place.clock.advance(Duration::from_secs(6));
        for held in [&kept, &freed] {
            assert!(server.renew(held).await.is_some());
        }
    }
    let refused = server.try_acquire("new").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("state file"), "{refused}");
    assert!(server.renew(&kept).await.is_some());
    let lease = Some(freed.lease.clone());
    let released = server.client.release(v1::ReleaseLease { lease }).await;
    assert!(released.unwrap().into_inner().released);
    // The holder would have it again after a crash, so it is not freed.
    let forced = v1::ForceReleaseLock {
        name: "kept".to_owned(),
        token: kept.token,
    };
    let refused = server.client.force_release(forced).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(server.renew(&kept).await.is_some());

    fs::remove_file(&fresh).unwrap();
    assert!(server.acquire("freed").await.token > freed.token);
    // Without room for the export the next start recovers, and one without room does not start.
    std::os::unix::fs::symlink("/dev/full", place.beside("locks.new")).unwrap();
    drop(server.client);
    server.stop.send(()).unwrap();
    let error = server.served.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    std::os::unix::fs::symlink("/dev/full", &fresh).unwrap();
    let error = place.refused_start().await;
    assert!(error.to_string().contains("cannot be written"), "{error}");
    fs::remove_file(&fresh).unwrap();
    let mut server = place.again().await;
    assert!(server.try_acquire("new").await.is_err(), "it recovers");
    assert!(server.renew(&kept).await.is_some());
    server.crash().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_as_many_locks_as_it_may_have_grants_no_other() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let first = server.acquire("a").await;
    let mut refused = None;
    // The limit of the test's server, and some more.
    for number in 0..NAMES + 300 {
        match server.try_acquire(&format!("name-{number}")).await {
            Ok(_) => {}
            Err(status) => {
                refused = Some(status);
                break;
            }
        }
    }
    let refused = refused.expect("a limit");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(
        refused.message().contains("400 locks are held"),
        "{refused}"
    );
    assert!(server.try_acquire("a").await.unwrap().is_none(), "busy");
    assert!(server.renew(&first).await.is_some());
    // The leases of all others end.
    for _ in 0..2 {
        place.clock.advance(TTL - Duration::from_secs(1));
        assert!(server.renew(&first).await.is_some());
    }
    for _ in 0..300 {
        if server.try_acquire("new").await.is_ok() {
            return server.stop().await;
        }
    }
    panic!("the rows of ended leases stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_uses_up_the_tokens() {
    let place = Place::new();
    let mut server = place.first_start().await;
    let held = server.acquire("a").await;
    let raise = v1::RenewLease {
        lease: Some(held.lease.clone()),
        ttl_us: 10_000_000,
        token_floor: Some((1 << 53) - 1),
        ..v1::RenewLease::default()
    };
    let refused = server.client.renew(raise).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(server.renew(&held).await.is_some());
    // Nor does the renewal of a lease that holds nothing.
    let wall = place.clock.wall().duration_since(UNIX_EPOCH).unwrap();
    let next_month = wall + Duration::from_secs(30 * 86_400);
    let mut raise = v1::RenewLease {
        lease: Some(held.lease.clone()),
        ttl_us: 10_000_000,
        token_floor: Some(u64::try_from(next_month.as_micros()).unwrap()),
        ..v1::RenewLease::default()
    };
    let state = fs::read(place.path()).unwrap();
    raise.lease.as_mut().unwrap().owner = Uuid::new_v4().as_bytes().to_vec();
    let answer = server.client.renew(raise.clone()).await.unwrap();
    let answer = answer.into_inner().answer.unwrap();
    assert!(
        matches!(answer, renew_answer::Answer::NotHeld(_)),
        "{answer:?}"
    );
    assert_eq!(fs::read(place.path()).unwrap(), state);
    raise.lease = Some(held.lease);
    server.client.renew(raise).await.unwrap();
    assert_ne!(
        fs::read(place.path()).unwrap(),
        state,
        "its holder raises it"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_file_that_cannot_be_used_stops_the_start() {
    let place = Place::new();
    place.first_start().await.stop().await;
    let good = fs::read(place.path()).unwrap();
    for (content, says) in [
        (&good[..good.len() / 2], "damaged"),
        (&b"[backend]\n"[..], "no state file"),
    ] {
        fs::write(place.path(), content).unwrap();
        let error = place.try_start(true, MAX_LEASE).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(fs::read(place.path()).unwrap(), content);
    }
    fs::write(place.path(), &good).unwrap();
    let server = place.again().await;
    let error = place.try_start(false, MAX_LEASE).await.err().unwrap();
    assert!(error.to_string().contains("another lock server"), "{error}");
    server.stop().await;
}
