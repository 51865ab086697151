//! The calls of the protocol.

use std::sync::Arc;

use distlock_core::{Error, Moment};
use distlock_listen::ConnectionHandle;
use distlock_wire::v1::{self, lock_service_server::LockService};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    access::{Access, Guarded},
    operations::{Caller, Operations},
    session::{self, SessionContext},
    unary,
};

type Answered<T> = Result<Response<T>, Status>;

/// The service of one server.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) context: Arc<SessionContext>,
}

/// A unary call that may be carried out.
struct Received<T> {
    call: T,
    /// The moment of its receipt.
    at: Moment,
    access: Access,
}

impl Service {
    /// Takes a unary call that the caller's token allows.
    fn receive<T: Guarded>(&self, call: Request<T>) -> Result<Received<T>, Status> {
        let at = self.context.operations.clock().now();
        let access = self.context.gate.admit(call.metadata())?;
        if let Some(connection) = call.extensions().get::<ConnectionHandle>() {
            connection.mark_logged_in();
        }
        let call = call.into_inner();
        match access.check(&call) {
            Ok(()) => Ok(Received { call, at, access }),
            Err(error) => Err(v1::Error::from(&error).into_status()),
        }
    }

    fn operations(&self) -> &Operations {
        &self.context.operations
    }

    /// The caller with this access.
    fn caller<'a>(&'a self, access: &'a Access) -> Caller<'a> {
        Caller {
            losses: None,
            label: &self.context.unnamed,
            subject: access.subject(),
        }
    }
}

fn answered<T>(outcome: Result<T, Error>) -> Answered<T> {
    match outcome {
        Ok(answer) => Ok(Response::new(answer)),
        Err(error) => Err(v1::Error::from(&error).into_status()),
    }
}

#[tonic::async_trait]
impl LockService for Service {
    type SessionStream = ReceiverStream<Result<v1::ServerFrame, Status>>;

    async fn session(
        &self,
        call: Request<Streaming<v1::ClientFrame>>,
    ) -> Answered<Self::SessionStream> {
        let access = self.context.gate.admit(call.metadata())?;
        let connection = call.extensions().get::<ConnectionHandle>().cloned();
        let context = Arc::clone(&self.context);
        let frames = session::start(context, call.into_inner(), connection, access);
        Ok(Response::new(frames))
    }

    async fn acquire(&self, call: Request<v1::AcquireCall>) -> Answered<v1::AcquireAnswer> {
        let Received { call, at, access } = self.receive(call)?;
        answered(unary::acquire(&self.context, call, at, access.until()).await)
    }

    async fn renew(&self, call: Request<v1::RenewLease>) -> Answered<v1::RenewAnswer> {
        let Received { call, access, .. } = self.receive(call)?;
        answered(self.operations().renew(call, self.caller(&access)).await)
    }

    async fn release(&self, call: Request<v1::ReleaseLease>) -> Answered<v1::ReleaseAnswer> {
        let call = self.receive(call)?.call;
        answered(self.operations().release(call).await)
    }

    async fn hand_over(&self, call: Request<v1::HandOverLease>) -> Answered<v1::HandOverAnswer> {
        let Received { call, at, .. } = self.receive(call)?;
        answered(self.operations().hand_over(call, at, None).await)
    }

    async fn inspect(&self, call: Request<v1::InspectLock>) -> Answered<v1::LockState> {
        let call = self.receive(call)?.call;
        answered(self.operations().inspect(call).await)
    }

    async fn list(&self, call: Request<v1::ListLocks>) -> Answered<v1::LockList> {
        let call = self.receive(call)?.call;
        answered(self.operations().list(call).await)
    }

    async fn force_release(
        &self,
        call: Request<v1::ForceReleaseLock>,
    ) -> Answered<v1::ForceReleaseAnswer> {
        let Received { call, access, .. } = self.receive(call)?;
        let caller = self.caller(&access);
        answered(self.operations().force_release(call, caller).await)
    }

    async fn health(&self, call: Request<v1::CheckHealth>) -> Answered<v1::HealthReport> {
        self.receive(call)?;
        answered(self.operations().health().await)
    }

    async fn get_records(&self, call: Request<v1::ReadRecords>) -> Answered<v1::RecordValues> {
        let call = self.receive(call)?.call;
        answered(self.operations().get(call).await)
    }

    async fn put_record(&self, call: Request<v1::WriteRecord>) -> Answered<v1::WriteAnswer> {
        let call = self.receive(call)?.call;
        answered(self.operations().put(call).await)
    }

    async fn delete_record(&self, call: Request<v1::RemoveRecord>) -> Answered<v1::RemoveAnswer> {
        let call = self.receive(call)?.call;
        answered(self.operations().delete(call).await)
    }

    async fn scan_records(&self, call: Request<v1::ListRecords>) -> Answered<v1::RecordList> {
        let call = self.receive(call)?.call;
        answered(self.operations().scan(call).await)
    }
}
