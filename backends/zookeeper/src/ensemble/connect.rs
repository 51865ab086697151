//! Opening a session.

use std::{sync::Arc, time::Duration};

#[cfg(feature = "tls")]
use distlock_core::TlsFile;
use distlock_core::{Epoch, Error, ErrorKind, Result};
use zookeeper_client as zk;

use crate::{
    config::{Mechanism, ZooKeeperConfig, invalid},
    ensemble::Ensemble,
    error::{Access, meaning, session_ended},
    names::Layout,
    session::{Session, acls, probe, pump::Line},
};

/// The shortest session that the servers are asked for, as a part of ours: the less, the less time
/// a server has to answer.
const SHORTEST: u32 = 5;

/// One try: connects, makes sure that the nodes everything hangs on are there, and that we may
/// write. The client's tasks run on that line.
pub(crate) async fn connect(ensemble: &Arc<Ensemble>, line: Line) -> Result<Arc<Session>> {
    let config = &ensemble.config;
    let opened = ensemble.clock.now();
    let client = dial(config, config.session_timeout).await?;
    let tick = tick(ensemble, client.session_timeout()).await?;
    let states = client.state_watcher();
    let acls = acls(config.acl);
    let refused = |error| meaning(error, Access::Read).during("connect");
    let parents = zk::CreateMode::Persistent.with_acls(acls);
    let layout = &ensemble.layout;
    let made = client.mkdir(&layout.records, &parents).await;
    made.map_err(|error| match error {
        zk::Error::NoAuth => may_not_make(config),
        error => refused(error),
    })?;
    let epoch = history(&client, layout, acls).await.map_err(refused)?;
    if probe(&client, layout, acls).await.map_err(refused)? != client.session_id().0 {
        return Err(session_ended());
    }
    let session = Session::start(ensemble, client, states, line, epoch, tick, opened);
    tracing::debug!(?session, "session open");
    Ok(session)
}

/// The servers' tick, or longer. They do not tell it. Unless they are told otherwise they let no
/// session be shorter than two ticks, so a session is opened that asks for less. Where that fails,
/// our own session is what they let be one.
async fn tick(ensemble: &Ensemble, granted: Duration) -> Result<Duration> {
    let config = &ensemble.config;
    if let Some(tick) = config.tick_time {
        if tick * 2 > granted {
            return Err(invalid(format!(
                "option `tick_time` is {tick:?}, and the servers let the session last {granted:?}: a session must last at \
                 least two ticks"
            )));
        }
        return Ok(tick);
    }
    let asked = ensemble.tick.get_or_try_init(async || {
        let shortest = dial(config, granted / SHORTEST).await?;
        Ok::<_, Error>(shortest.session_timeout() / 2)
    });
    match asked.await {
        Ok(tick) => Ok((*tick).min(granted / 2)),
        Err(error) => {
            tracing::debug!(%error, "no session that shows the servers' tick");
            Ok(granted / 2)
        }
    }
}

/// Who may use a root may not always make it.
fn may_not_make(config: &ZooKeeperConfig) -> Error {
    let root = &config.root;
    let whose = match config.credentials {
        Some(_) => "for these credentials",
        None => "for everybody (the URL names no credentials)",
    };
    Error::new(
        ErrorKind::AccessDenied,
        format!(
            "these credentials may not make or use {root}: have somebody who may create it with all rights {whose}, or remove \
             what stands there with other rights"
        ),
    )
    .on("zookeeper")
    .during("connect")
}

/// Names the ensemble's history by the birth of the node that all locks are under, which is made when it is absent: an
/// ensemble that was built anew, or whose tree was removed, has another one.
pub(crate) async fn history(
    client: &zk::Client,
    layout: &Layout,
    acls: zk::Acls<'_>,
) -> Result<Epoch, zk::Error> {
    let parents = zk::CreateMode::Persistent.with_acls(acls);
    loop {
        client.mkdir(&layout.locks, &parents).await?;
        if let Some(stat) = client.check_stat(&layout.locks).await? {
            return Ok(Epoch::new(format!("{:x}-{:x}", stat.czxid, stat.ctime)));
        }
    }
}

/// Opens a session that asks for this timeout.
pub(crate) async fn dial(
    config: &ZooKeeperConfig,
    session_timeout: Duration,
) -> Result<zk::Client> {
    let mut connector = zk::Client::connector()
        .with_session_timeout(session_timeout)
        // Another server must be found well before two thirds of the session timeout are over.
        .with_connection_timeout(session_timeout / 4)
        .with_fail_eagerly();
    if let Some(credentials) = &config.credentials {
        let password = credentials.password.expose();
        connector = match credentials.mechanism {
            Mechanism::Digest => connector.with_auth(
                "digest",
                format!("{}:{password}", credentials.user).as_bytes(),
            ),
            Mechanism::SaslDigestMd5 => {
                #[cfg(feature = "sasl")]
                {
                    connector.with_sasl(zk::SaslOptions::digest_md5(
                        credentials.user.clone(),
                        password.to_owned(),
                    ))
                }
                // Refused when the configuration was checked.
                #[cfg(not(feature = "sasl"))]
                connector
            }
        };
    }
    let servers = config.servers.join(",");
    let dialled = match &config.tls {
        None => connector.connect(&servers).await,
        #[cfg(feature = "tls")]
        Some(files) => {
            connector
                .with_tls(tls_options(files)?)
                .secure_connect(&servers)
                .await
        }
        #[cfg(not(feature = "tls"))]
        Some(_) => Err(zk::Error::Unimplemented),
    };
    dialled.map_err(|error| -> Error { meaning(error, Access::Read).during("connect") })
}

#[cfg(feature = "tls")]
fn tls_options(files: &crate::config::TlsFiles) -> Result<zk::TlsOptions> {
    // Small, and read once per session.
    let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
    // The client says less of what is wrong with them, and names none.
    let bad = |error: zk::Error| invalid(format!("the TLS certificates cannot be used: {error}"));
    let authorities = TlsFile::new("tls_ca", &files.ca).authorities(false)?;
    let ca = zk::TlsCa::from_pem(&text(authorities)).map_err(bad)?;
    let mut certs = zk::TlsCerts::builder().with_ca(ca);
    if let (Some(cert), Some(key)) = (&files.cert, &files.key) {
        let (cert, key) = TlsFile::new("tls_cert", cert).identity(TlsFile::new("tls_key", key))?;
        let identity = zk::TlsIdentity::from_pem(&text(cert), &text(key)).map_err(bad)?;
        certs = certs.with_identity(identity);
    }
    Ok(zk::TlsOptions::new().with_certs(certs.build().map_err(bad)?))
}
