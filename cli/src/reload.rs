//! Files that a server reads again at HUP.

use tokio::{signal::unix::Signal, task::JoinHandle};

use crate::output;

/// Names for the messages: of the server, and of one of its files and of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reloaded {
    pub(crate) server: &'static str,
    pub(crate) file: &'static str,
    pub(crate) files: &'static str,
}

/// Runs `reload` at each HUP, if there is any file to read again, and tells its outcome.
pub(crate) fn at_hangups<F>(
    mut hangups: Signal,
    Reloaded {
        server,
        file,
        files,
    }: Reloaded,
    reload: Option<impl Fn() -> F + Send + Sync + 'static>,
) -> JoinHandle<()>
where
    F: Future<Output = distlock::Result<()>> + Send,
{
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let Some(reload) = &reload else {
                output::print_message(format_args!(
                    "HUP: no {file} file is configured, so nothing was read again; \
                     the {server} goes on"
                ));
                continue;
            };
            match reload().await {
                Ok(()) => output::print_message(format_args!("{files} were read again")),
                Err(error) => {
                    tracing::error!(
                        %error,
                        "not all {files} were read: the {server} keeps the old ones of the rest"
                    );
                }
            }
        }
    })
}
