//! TLS on each listener and between nodes, with real certificates.

use std::{path::Path, sync::Arc};

use distlock_core::ErrorKind;
use distlock_gateway::GatewayConfig;
use distlock_harness::Pki;
use futures_util::{SinkExt as _, StreamExt as _};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_tungstenite::tungstenite::Message;

use crate::net::{Net, Node, http, http_over, login, soon};

fn with_tls(config: &mut GatewayConfig, pki: &Pki) {
    set_file(config, "tls_cert", &pki.path("server.crt"));
    set_file(config, "tls_key", &pki.path("server.key"));
}

fn between_nodes(config: &mut GatewayConfig, pki: &Pki, auth: &str) {
    set_file(config, "peer_tls_ca", &pki.path("ca.crt"));
    set_file(config, "peer_tls_cert", &pki.path("node.crt"));
    set_file(config, "peer_tls_key", &pki.path("node.key"));
    config.set("peer_tls_auth", auth).unwrap();
}

fn set_file(config: &mut GatewayConfig, key: &str, file: &Path) {
    config.set(key, file.to_str().unwrap()).unwrap();
}

/// Connects as a client that trusts this authority, and may show its own certificate.
async fn connect(
    to: SocketAddr,
    pki: &Pki,
    own: Option<&str>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(pki.path("ca.crt")).unwrap())
        .unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => config.with_no_client_auth(),
        Some(name) => {
            let chain = CertificateDer::from_pem_file(pki.path(&format!("{name}.crt")));
            let key = PrivateKeyDer::from_pem_file(pki.path(&format!("{name}.key")));
            config
                .with_client_auth_cert(vec![chain.unwrap()], key.unwrap())
                .unwrap()
        }
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = TcpStream::connect(to).await?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn clients_and_administrators_connect_by_tls() {
    let (net, pki) = (Net::new(), Pki::new().unwrap());
    let n1 = net.node_with("n1", |config| {
        with_tls(config, &pki);
        config.set("tcp_listen", "127.0.0.1:0").unwrap();
    });
    let n1 = n1.await;
    for to in [n1.listen, n1.admin] {
        let stream = soon("a handshake", connect(to, &pki, None)).await.unwrap();
        assert_eq!(http_over(stream, HEALTH).await.0, 200);
    }

    let stream = connect(n1.listen, &pki, None).await.unwrap();
    let url = format!("wss://{}/ws", n1.listen);
    let (mut phone, _) = tokio_tungstenite::client_async(url, stream).await.unwrap();
    phone
        .send(Message::text(login("anna", "phone").to_string()))
        .await
        .unwrap();
    let mut frame = async || {
        let message = soon("a frame", phone.next()).await.unwrap().unwrap();
        serde_json::from_str::<Value>(message.to_text().unwrap()).unwrap()
    };
    assert_eq!(frame().await["type"], "login_ok");

    // This login comes over raw TCP, and takes the account over.
    let mut tablet = connect(n1.tcp_listen.unwrap(), &pki, None).await.unwrap();
    let body = login("anna", "tablet").to_string();
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    tablet
        .write_all(&[0, 1, length[0], length[1]])
        .await
        .unwrap();
    tablet.write_all(body.as_bytes()).await.unwrap();
    let mut head = [0; 4];
    tablet.read_exact(&mut head).await.unwrap();
    let mut body = vec![0; usize::from(u16::from_be_bytes([head[2], head[3]]))];
    tablet.read_exact(&mut body).await.unwrap();
    let ok: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&ok["type"], &ok["old_confirmed"]),
        (&json!("login_ok"), &json!("node"))
    );
    assert_eq!(frame().await["type"], "offline");

    // A connection without TLS gets no answer.
    for to in [n1.listen, n1.tcp_listen.unwrap(), n1.admin] {
        let mut plain = TcpStream::connect(to).await.unwrap();
        plain.write_all(HEALTH.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = soon("the end", plain.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
}

#[tokio::test]
async fn certificates_are_read_again_when_asked() {
    let (net, old, new) = (Net::new(), Pki::new().unwrap(), Pki::new().unwrap());
    let n1 = net.node_with("n1", |config| with_tls(config, &old)).await;
    connect(n1.listen, &old, None).await.unwrap();
    let replace = |name: &str, by: &str| std::fs::copy(new.path(by), old.path(name)).unwrap();

    // The key does not belong to the certificate, so the node keeps its old certificates.
    replace("server.crt", "server.crt");
    let error = n1.reload().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let text = error.to_string();
    assert!(
        text.contains("tls_cert") && text.contains("server.crt"),
        "{text}"
    );
    connect(n1.listen, &old, None).await.unwrap();

    replace("server.key", "server.key");
    n1.reload().await.unwrap();
    assert!(connect(n1.listen, &old, None).await.is_err());
    connect(n1.listen, &new, None).await.unwrap();
}

#[tokio::test]
async fn nodes_call_one_another_by_tls() {
    for auth in ["token", "mutual"] {
        let (net, pki, other) = (Net::new(), Pki::new().unwrap(), Pki::new().unwrap());
        let node = async |name: &str| {
            let node = net.node_with(name, |config| between_nodes(config, &pki, auth));
            node.await
        };
        let (n1, n2) = (node("n1").await, node("n2").await);
        let (mut phone, _) = n1.login("anna", "phone").await;
        let (_tablet, ok) = n2.login("anna", "tablet").await;
        assert_eq!(ok["old_confirmed"], "node", "{auth}: {ok}");
        assert_eq!(phone.frame().await["type"], "offline");

        // If certificates are required, TLS itself refuses a stranger. The client sees the refusal
        // only with the first answer.
        let greet = async |own: Option<(&Pki, &str)>| {
            let pki = own.map_or(&pki, |(pki, _)| pki);
            let mut stream = connect(n1.peer, pki, own.map(|(_, name)| name)).await?;
            stream
                .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
                .await?;
            let mut settings = [0; 9];
            soon("an answer", stream.read_exact(&mut settings)).await
        };
        assert!(greet(Some((&pki, "node"))).await.is_ok(), "{auth}");
        assert_eq!(greet(None).await.is_ok(), auth == "token");
        assert!(greet(Some((&other, "node"))).await.is_err(), "{auth}");
        assert_eq!(http(n1.listen, HEALTH).await.0, 200, "clients come without");
    }
}

/// The authority changes as well, so a certificate of the old authority is refused after the
/// change.
#[tokio::test]
async fn certificates_of_nodes_change_while_channels_between_them_are_open() {
    for auth in ["token", "mutual"] {
        let (net, pki, later) = (Net::new(), Pki::new().unwrap(), Pki::new().unwrap());
        let node = async |name: &str, listen: &str| {
            let node = net.node_with(name, |config| {
                between_nodes(config, &pki, auth);
                config.set("peer_listen", listen).unwrap();
            });
            node.await
        };
        let mut n1 = node("n1", "127.0.0.1:0").await;
        let n2 = node("n2", "127.0.0.1:0").await;
        let calls = async |n1: &Node, when: &str| {
            let (mut phone, _) = n1.login("anna", &format!("phone {when}")).await;
            let (mut tablet, ok) = n2.login("anna", &format!("tablet {when}")).await;
            assert_eq!(ok["old_confirmed"], "node", "{auth}: {when}: n2 calls n1");
            assert_eq!(phone.frame().await["type"], "offline");
            let (_pc, ok) = n1.login("anna", &format!("pc {when}")).await;
            assert_eq!(ok["old_confirmed"], "node", "{auth}: {when}: n1 calls n2");
            assert_eq!(tablet.frame().await["type"], "offline");
        };
        let reload = async |n1: &Node| {
            n1.reload().await.unwrap();
            n2.reload().await.unwrap();
        };
        let shown_is_of = async |pki: &Pki| connect(n2.peer, pki, Some("node")).await.is_ok();
        calls(&n1, "before").await;

        // First all nodes trust both authorities. Then each node shows a certificate of the new
        // authority.
        let read = |pki: &Pki| std::fs::read_to_string(pki.path("ca.crt")).unwrap();
        let both = read(&pki) + &read(&later);
        std::fs::write(pki.path("ca.crt"), both).unwrap();
        reload(&n1).await;
        assert!(shown_is_of(&pki).await && !shown_is_of(&later).await);
        for name in ["node.crt", "node.key"] {
            std::fs::copy(later.path(name), pki.path(name)).unwrap();
        }
        reload(&n1).await;
        calls(&n1, "open channels").await;
        // The client of this test trusts only the first authority of a file.
        assert!(shown_is_of(&later).await && !shown_is_of(&pki).await);
        std::fs::copy(later.path("ca.crt"), pki.path("ca.crt")).unwrap();
        reload(&n1).await;
        calls(&n1, "open channels of the old authority").await;

        // A node that starts again at its address gets a new channel.
        let listen = n1.peer.to_string();
        n1.shut_down().await;
        n1 = node("n1", &listen).await;
        calls(&n1, "a new channel").await;

        std::fs::write(pki.path("node.key"), "no key").unwrap();
        for node in [&n1, &n2] {
            let error = node.reload().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let text = error.to_string();
            assert!(text.contains("peer_tls_key"), "{text}");
        }
        let shown = connect(n2.peer, &later, None).await;
        assert!(
            shown.is_ok(),
            "{auth}: the certificate of before: {shown:?}"
        );
        calls(&n1, "a broken file").await;
    }
}
