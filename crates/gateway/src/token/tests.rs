//! Login tokens of public keys: forged, confused and unknown ones, and the documents of keys.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_lc_rs::signature::KeyPair as _;
use axum::{
    Router,
    body::Body,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use bytes_of::chunks_without_end;
use distlock_core::{Clock, ManualClock, SystemClock, sync::Mutex};
use distlock_listen::{
    NamedFile,
    jwt::{Hs256, unix_seconds},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use super::{
    LoginKeys, LoginRefusal, TokenKey,
    key_set::{KeyChoice, KeySet},
    public_key::{is_no_secret, parse_pem},
    signers::{Signer, claims},
};
use crate::config::{ExpectedClaims, LoginKeySettings, LoginKeySource, OWN_CLAIMS};

/// An RSA key of 1024 bits.
const SHORT_RSA: &str = "-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQC1ZgzluSxT187jGaDw9I+m1KvV
681muT8fWCuqLRKAbr6BsFW5UoMAArdYLxzCNjWnpF4HxaKfy6/YbIC2MWMbdNR8
sE1EQKVy7R1zw1CDC0QhQp96kJu85hLXf/GZLuXWTQjWpajKKeb7u6iuNJJBr2Ek
Oevl9HZ4pLyYQJRB7QIDAQAB
-----END PUBLIC KEY-----
";
/// A key of curve P-384.
const OTHER_CURVE: &str = "-----BEGIN PUBLIC KEY-----
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEFYT7vteBONwkIg2IWe7X2gg755Vkva/V
s0OisqdFQ5C+RvrT6BooBVF3ZQp65qmP/bJXbhYaaqWpuBCpw4wZfanw607/8KFj
ncYbw+upZayZk0wBQCyOV8IgTa/QXQx3
-----END PUBLIC KEY-----
";
const PRIVATE: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIA/f4t1yf0y0c4nhIk5YD36BDKro0/Ta7si9m2tZ0m9OoAoGCCqGSM49
AwEHoUQDQgAELScO9PQisuQGH4qAmibCfiw10yjC7NzpLWdbwtH5ga5+O7PZoF6E
2CCo2eubxyn1HRV28b4Sx9Dp3SImufQ3Wg==
-----END EC PRIVATE KEY-----
";

fn now() -> u64 {
    unix_seconds(SystemClock.wall())
}

fn secret() -> TokenKey {
    TokenKey::new(&[7; 32]).unwrap()
}

fn settings(source: LoginKeySource) -> LoginKeySettings {
    let expected = ExpectedClaims {
        id: false,
        ..OWN_CLAIMS
    };
    LoginKeySettings { source, expected }
}

/// The keys of a node with a PEM file of this content.
async fn with_file(pem: &str) -> LoginKeys {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.pem");
    std::fs::write(&path, pem).unwrap();
    let file = NamedFile {
        setting: "login_key_file",
        path: path.to_str().unwrap().to_owned(),
    };
    let settings = settings(LoginKeySource::File(file));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    LoginKeys::open(secret(), Some(settings), &clock)
        .await
        .unwrap()
}

async fn with_url(url: &str, clock: &Arc<dyn Clock>) -> Arc<LoginKeys> {
    let source = LoginKeySource::Url(url.parse::<Uri>().unwrap());
    let keys = LoginKeys::open(secret(), Some(settings(source)), clock).await;
    Arc::new(keys.unwrap())
}

/// Why a token is refused for good.
fn refusal(keys: &LoginKeys, token: &str) -> String {
    match keys.verify(token) {
        Err(LoginRefusal::Refused(error)) => error.to_string(),
        other => panic!("{other:?}: {token}"),
    }
}

fn retry_after(keys: &LoginKeys, token: &str) -> Duration {
    match keys.verify(token) {
        Err(LoginRefusal::KeyUnknown { retry_after }) => retry_after,
        other => panic!("{other:?}: {token}"),
    }
}

#[tokio::test]
async fn each_algorithm_is_accepted_and_a_change_of_any_byte_is_refused() {
    for signer in [Signer::es256(), Signer::eddsa(), Signer::rs256()] {
        let keys = with_file(&signer.pem()).await;
        let set = json!({"keys": [signer.jwk("k1")]}).to_string();
        let set = KeySet::parse(set.as_bytes()).unwrap().keys;
        let token = signer.token(Some("k1"), &claims("anna", now()));
        let (uid, class) = keys.verify(&token).unwrap();
        assert_eq!((uid.as_str(), class), ("anna", None), "{}", signer.alg());
        // The same key as a JWK is the same key.
        let KeyChoice::Known(key) = set.choose(Some("k1")) else {
            panic!("{}", signer.alg())
        };
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        assert!(key.has_signed(signer.alg(), signed.as_bytes(), &signature));
        for at in 0..token.len() {
            for change in ["A", "_", ".", ""] {
                let mut broken = token.clone();
                broken.replace_range(at..=at, change);
                if broken != token {
                    refusal(&keys, &broken);
                }
            }
        }
        for length in 0..signature.len() {
            let short = URL_SAFE_NO_PAD.encode(&signature[..length]);
            refusal(&keys, &format!("{signed}.{short}"));
        }
        for byte in 0..signature.len() {
            for bit in [1, 0x80] {
                let mut wrong = signature.clone();
                wrong[byte] ^= bit;
                assert!(!key.has_signed(signer.alg(), signed.as_bytes(), &wrong));
            }
        }
        let zeros = URL_SAFE_NO_PAD.encode(vec![0; signature.len()]);
        refusal(&keys, &format!("{signed}.{zeros}"));
    }
}

#[tokio::test]
async fn the_key_decides_the_algorithm_and_is_never_a_secret() {
    let signers = [Signer::es256(), Signer::eddsa(), Signer::rs256()];
    let all: String = signers.iter().map(Signer::pem).collect();
    let all = with_file(&all).await;
    let good = claims("anna", now());
    for signer in &signers {
        let alone = with_file(&signer.pem()).await;
        assert!(all.verify(&signer.token(None, &good)).is_ok());
        for alg in [
            "none", "None", "NONE", "", "HS256", "HS384", "HS512", "ES256", "ES384", "ES256K",
            "EdDSA", "RS256", "RS384", "RS512", "PS256", "RS1",
        ] {
            let header = json!({"alg": alg});
            let token = signer.token_with(&header, &good);
            for keys in [&all, &alone] {
                let accepted = keys.verify(&token).is_ok();
                assert_eq!(accepted, alg == signer.alg(), "{alg} by {}", signer.alg());
            }
            // Without a signature no name helps.
            let unsigned = token.rsplit_once('.').unwrap().0;
            for forged in [format!("{unsigned}."), unsigned.to_owned()] {
                refusal(&all, &forged);
            }
        }
        // The forger signs by HS256 with what everybody knows.
        let public = match signer {
            Signer::Es256(pair) => pair.public_key().as_ref().to_vec(),
            Signer::EdDsa(pair) => pair.public_key().as_ref().to_vec(),
            Signer::Rs256(pair) => pair.public_key().as_ref().to_vec(),
        };
        let pem = signer.pem();
        let jwk = signer.jwk("k1").to_string();
        for known in [
            pem.as_bytes(),
            pem.trim().as_bytes(),
            &signer.der(),
            STANDARD.encode(signer.der()).as_bytes(),
            &public,
            jwk.as_bytes(),
            b"",
        ] {
            let forged = Hs256::new(known).unwrap().sign(&good).unwrap();
            for keys in [&all, &alone] {
                assert!(refusal(keys, &forged).contains("signature"));
            }
        }
    }
    // A token of the node's own secret goes on to be accepted, and another key of the same
    // algorithm is none.
    let uid = distlock_kickout::Uid::new("anna").unwrap();
    let own = super::mint(&secret(), &uid, Duration::from_secs(60)).unwrap();
    assert!(all.verify(&own).is_ok());
    for stranger in [Signer::es256(), Signer::eddsa(), Signer::rs256()] {
        // A header cannot bring its own key.
        for header in [
            json!({"alg": stranger.alg()}),
            json!({"alg": stranger.alg(), "jwk": stranger.jwk("k1"), "kid": "k1",
                   "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/"}),
        ] {
            let token = stranger.token_with(&header, &good);
            assert!(refusal(&all, &token).contains("signature"));
        }
    }
}

#[tokio::test]
async fn every_claim_of_a_public_keys_token_is_checked() {
    let signer = Signer::es256();
    let keys = with_file(&signer.pem()).await;
    for claim in ["sub", "iss", "aud", "iat", "exp"] {
        let mut claims = claims("anna", now());
        claims.as_object_mut().unwrap().remove(claim);
        let says = refusal(&keys, &signer.token(None, &claims));
        assert!(says.contains("lacks a claim"), "{claim}: {says}");
    }
    for (claim, value, says) in [
        ("exp", json!(now() - 6), "expired"),
        ("nbf", json!(now() + 20), "not valid yet"),
        ("iat", json!(now() + 20), "issued in the future"),
        ("exp", json!(now() + 25 * 3600), "more than 24 hours"),
        ("iss", json!("https://elsewhere"), "something else"),
        ("aud", json!("another service"), "something else"),
        ("sub", json!("a\u{1b}"), "not a valid account name"),
        ("jti", json!(""), "lacks a claim"),
        ("class", json!("a\u{1b}"), "class is not"),
    ] {
        let mut claims = claims("anna", now());
        claims[claim] = value;
        let token = signer.token(None, &claims);
        assert!(refusal(&keys, &token).contains(says), "{claim}");
    }
    let mut with_class = claims("anna", now());
    with_class["class"] = json!("tv");
    let (_, class) = keys.verify(&signer.token(None, &with_class)).unwrap();
    assert_eq!(class.unwrap().as_str(), "tv");
}

#[test]
fn a_file_holds_public_keys_that_are_long_enough() {
    let good = Signer::eddsa().pem();
    assert_eq!(parse_pem(good.repeat(8).as_bytes()).unwrap().len(), 8);
    for (content, says) in [
        (String::new(), "holds 0 public keys"),
        ("hello".into(), "holds 0 public keys"),
        (good.repeat(9), "holds 9 public keys: 1 to 8"),
        (format!("{good}{PRIVATE}"), "private key"),
        (
            good.replace("PUBLIC KEY", "CERTIFICATE"),
            "holds a certificate",
        ),
        (
            SHORT_RSA.into(),
            "key 1 is an RSA key of less than 2048 or more than 8192 bits",
        ),
        (
            format!("{good}{OTHER_CURVE}"),
            "key 2 is none of curve P-256",
        ),
        (good.replace("MC", "AA"), "key 1 is not in DER form"),
        (good.replace("-----END", "END"), "PEM form"),
    ] {
        let problem = parse_pem(content.as_bytes()).unwrap_err();
        assert!(problem.contains(says), "{says}: {problem}");
    }
}

#[test]
fn a_public_key_is_no_secret() {
    for signer in [Signer::es256(), Signer::eddsa(), Signer::rs256()] {
        let (pem, base64) = (signer.pem(), STANDARD.encode(signer.der()));
        for public in [pem, base64, signer.jwk("k1").to_string()] {
            for text in [public.clone(), format!(" {public}\n")] {
                assert!(is_no_secret(text.as_bytes()), "{text}");
                if text.len() < 32 {
                    continue;
                }
                let error = TokenKey::new(text.as_bytes()).unwrap_err();
                assert_eq!(error.setting(), Some("token_key"));
                let error = secret().also(text.as_bytes()).unwrap_err();
                assert_eq!(error.setting(), Some("token_key_also"));
                assert!(!error.to_string().contains(public.trim()), "{error}");
            }
        }
    }
    assert!(is_no_secret(SHORT_RSA.as_bytes()) && is_no_secret(PRIVATE.as_bytes()));
    // What the documentation says to take as a secret stays one.
    for length in [32, 33, 48, 64, 65, 91, 256] {
        for first in 0..=255 {
            let mut random = vec![0xa5; length];
            random[0] = first;
            assert!(!is_no_secret(STANDARD.encode(&random).as_bytes()));
            assert!(!is_no_secret(&random));
        }
    }
}

#[test]
fn a_document_gives_its_good_keys_and_a_reason_for_each_other() {
    let [es, ed, rs] = [Signer::es256(), Signer::eddsa(), Signer::rs256()];
    let with = |signer: &Signer, change: Value| {
        let mut jwk = signer.jwk("odd");
        for (member, value) in change.as_object().unwrap() {
            jwk[member] = value.clone();
        }
        jwk
    };
    let short = URL_SAFE_NO_PAD.encode([0xc1; 128]);
    let long = URL_SAFE_NO_PAD.encode([0xc1; 1025]);
    let wide = URL_SAFE_NO_PAD.encode([0xc1; 33]);
    for (jwk, says) in [
        (
            json!({"kty": "oct", "k": "AA", "kid": "odd"}),
            "\"odd\" is a secret",
        ),
        (
            with(&es, json!({"d": "AA"})),
            "\"odd\" holds its private part",
        ),
        (
            with(&es, json!({"use": "enc"})),
            "\"odd\" is for another use",
        ),
        (with(&es, json!({"key_ops": ["sign"]})), "other operations"),
        (
            with(&es, json!({"alg": "ES384"})),
            "another algorithm than ES256, EdDSA and RS256",
        ),
        (
            with(&es, json!({"alg": "HS256"})),
            "another algorithm than ES256, EdDSA and RS256",
        ),
        (
            with(&es, json!({"alg": "none"})),
            "another algorithm than ES256, EdDSA and RS256",
        ),
        (
            with(&rs, json!({"alg": "RS512"})),
            "another algorithm than ES256, EdDSA and RS256",
        ),
        (
            with(&rs, json!({"alg": "EdDSA"})),
            "another algorithm than ES256, EdDSA and RS256",
        ),
        (
            with(&es, json!({"crv": "P-384"})),
            "kind that is not supported",
        ),
        (
            with(&es, json!({"crv": "secp256k1"})),
            "kind that is not supported",
        ),
        (
            with(&ed, json!({"crv": "X25519"})),
            "kind that is not supported",
        ),
        (
            with(&es, json!({"kty": "LMS"})),
            "kind that is not supported",
        ),
        (
            with(&rs, json!({"n": short})),
            "less than 2048 or more than 8192",
        ),
        (
            with(&rs, json!({"n": long})),
            "less than 2048 or more than 8192",
        ),
        (with(&rs, json!({"e": ""})), "make no key"),
        (with(&es, json!({"x": wide})), "make no key"),
        (with(&es, json!({"x": "AA"})), "make no key"),
        (
            with(&es, json!({"y": URL_SAFE_NO_PAD.encode([1; 32])})),
            "make no key",
        ),
        (with(&ed, json!({"x": "?"})), "make no key"),
        (with(&ed, json!({"x": null})), "lacks a member"),
        (with(&es, json!({"kid": 7})), "key 2 is not a JWK"),
        (
            with(&es, json!({"kid": "k".repeat(257)})),
            "more than 256 bytes",
        ),
        (json!("hello"), "key 2 is not a JWK"),
        (json!({"kid": "odd"}), "key 2 is not a JWK"),
        (
            json!({"kty": "EC", "kid": null, "crv": "P-256"}),
            "key 2 lacks a member",
        ),
    ] {
        let set = json!({"keys": [ed.jwk("good"), jwk]}).to_string();
        let read = KeySet::parse(set.as_bytes()).unwrap_or_else(|why| panic!("{set}: {why}"));
        assert!(matches!(
            read.keys.choose(Some("good")),
            KeyChoice::Known(_)
        ));
        assert!(matches!(read.keys.choose(Some("odd")), KeyChoice::Unknown));
        let ignored = read.ignored.join("; ");
        assert!(ignored.contains(says), "{says}: {ignored}");
    }
    // An exponent of 1 would make every text its own signature.
    let weak = with(&rs, json!({"e": "AQ"}));
    let set = json!({"keys": [weak]}).to_string();
    if let Ok(read) = KeySet::parse(set.as_bytes()) {
        let KeyChoice::Known(key) = read.keys.choose(Some("odd")) else {
            panic!("{set}")
        };
        let mut block = vec![0xff; 256];
        block[..2].copy_from_slice(&[0, 1]);
        assert!(!key.has_signed("RS256", b"a", &block));
    }
}

#[test]
fn a_document_that_cannot_be_used_says_why() {
    let [one, two] = [Signer::es256(), Signer::eddsa()];
    let twice = json!({"keys": [one.jwk("k1"), two.jwk("k1")]}).to_string();
    let many = json!({"keys": vec![one.jwk("k1"); 65]}).to_string();
    for (body, says) in [
        ("", "not a JWK set in JSON"),
        ("<html>", "not a JWK set in JSON"),
        ("[]", "not a JWK set in JSON"),
        ("{}", "not a JWK set in JSON"),
        (r#"{"keys": {}}"#, "not a JWK set in JSON"),
        (r#"{"keys": []}"#, "has no key"),
        (
            r#"{"keys": [{"kty": "oct", "k": "hunter2"}]}"#,
            "key 1 is a secret",
        ),
        (&twice, "two keys of the name \"k1\""),
        (&many, "has 65 keys: at most 64"),
        (&"[".repeat(200_000), "not a JWK set in JSON"),
    ] {
        let why = KeySet::parse(body.as_bytes()).unwrap_err();
        assert!(why.contains(says), "{says}: {why}");
        assert!(!why.contains("hunter2"), "{why}");
    }
}

#[test]
fn a_token_without_a_name_needs_a_set_of_one_key() {
    let [one, two] = [Signer::es256(), Signer::eddsa()];
    let unnamed = |signer: &Signer| {
        let mut jwk = signer.jwk("");
        jwk.as_object_mut().unwrap().remove("kid");
        jwk
    };
    let set = |keys: &[Value]| {
        let set = json!({"keys": keys}).to_string();
        KeySet::parse(set.as_bytes()).unwrap().keys
    };
    let named = set(&[one.jwk("k1")]);
    assert!(matches!(named.choose(None), KeyChoice::Known(_)));
    assert!(matches!(named.choose(Some("k2")), KeyChoice::Unknown));
    assert!(matches!(named.choose(Some("")), KeyChoice::Unknown));
    let unnamed_key = set(&[unnamed(&one)]);
    for name in [None, Some("k2"), Some("")] {
        assert!(matches!(unnamed_key.choose(name), KeyChoice::Known(_)));
    }
    let both = set(&[one.jwk("k1"), two.jwk("k2")]);
    assert!(matches!(both.choose(None), KeyChoice::Unnamed));
    let half = set(&[one.jwk("k1"), unnamed(&two)]);
    assert_eq!(half.len(), 1);
    assert!(matches!(KeySet::default().choose(None), KeyChoice::Unknown));
}

/// What the server of keys does with a request.
#[derive(Clone)]
enum Answer {
    Keys(Value),
    Text(String),
    Status(StatusCode),
    Redirect(String),
    /// A body that never ends.
    Endless,
    /// A body that goes on, a byte at a time, and then stops.
    Slow,
    Never,
}

/// A server of keys, and the number of its requests.
struct KeyServer {
    at: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    asked: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl KeyServer {
    async fn start(answer: Answer) -> Self {
        let answer = Arc::new(Mutex::new(answer));
        let asked = Arc::new(AtomicUsize::new(0));
        let state = (Arc::clone(&answer), Arc::clone(&asked));
        let router = Router::new()
            .route("/keys", get(serve_keys))
            .with_state(state);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self {
            at,
            answer,
            asked,
            serving,
        }
    }

    fn url(&self) -> String {
        format!("http://{}/keys", self.at)
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock() = answer;
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve_keys(
    State((answer, asked)): State<(Arc<Mutex<Answer>>, Arc<AtomicUsize>)>,
) -> Response {
    asked.fetch_add(1, Ordering::SeqCst);
    let answer = answer.lock().clone();
    match answer {
        Answer::Keys(keys) => json!({"keys": keys}).to_string().into_response(),
        Answer::Text(text) => text.into_response(),
        Answer::Status(status) => status.into_response(),
        Answer::Redirect(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Answer::Endless => {
            Body::from_stream(chunks_without_end(vec![b' '; 65_536])).into_response()
        }
        Answer::Slow => Body::from_stream(bytes_of::chunks_then_silence(100)).into_response(),
        Answer::Never => std::future::pending().await,
    }
}

/// Bodies of answers.
mod bytes_of {
    use std::convert::Infallible;

    use futures_util::{Stream, StreamExt as _, stream};

    type Chunk = Result<Vec<u8>, Infallible>;

    pub(super) fn chunks_without_end(chunk: Vec<u8>) -> impl Stream<Item = Chunk> {
        stream::repeat(chunk).map(Ok)
    }

    pub(super) fn chunks_then_silence(chunks: usize) -> impl Stream<Item = Chunk> {
        let chunks = stream::repeat(vec![b' ']).take(chunks).map(Ok);
        chunks.chain(stream::pending())
    }
}

/// Waits, by the clock of this machine, until a condition holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            SystemClock.sleep(Duration::from_millis(2)).await;
        }
    };
    let limit = Duration::from_secs(30);
    let held = distlock_core::at_most(&SystemClock, limit, waiting).await;
    held.unwrap_or_else(|| panic!("{what} did not come"));
}

/// The keys of a URL whose reads run by a clock of the test.
struct Followed {
    keys: Arc<LoginKeys>,
    clock: ManualClock,
    following: JoinHandle<()>,
}

impl Followed {
    async fn start(url: &str) -> Self {
        let clock = ManualClock::new();
        let keys = with_url(url, &(Arc::new(clock.clone()) as Arc<dyn Clock>)).await;
        let followed = Arc::clone(&keys);
        let following = tokio::spawn(async move { followed.follow_tokens().await });
        Self {
            keys,
            clock,
            following,
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.following.abort();
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_token_of_a_new_key_gets_busy_then_one_read_and_then_its_session() {
    let [old, new] = [Signer::es256(), Signer::eddsa()];
    let server = KeyServer::start(Answer::Keys(json!([old.jwk("old")]))).await;
    let node = Followed::start(&server.url()).await;
    let by_old = old.token(Some("old"), &claims("anna", now()));
    let by_new = new.token(Some("new"), &claims("anna", now()));
    assert!(node.keys.verify(&by_old).is_ok());

    server.answers(Answer::Keys(json!([old.jwk("old"), new.jwk("new")])));
    // The first read was just now, so the next one follows 30 s later, and the client hears that.
    let wait = retry_after(&node.keys, &by_new);
    assert!(wait >= 31 * SECOND && wait <= 33 * SECOND, "{wait:?}");
    eventually("the pause", || node.clock.sleepers() == 1).await;
    assert!(node.keys.verify(&by_old).is_ok());
    node.clock.advance(29 * SECOND);
    let wait = retry_after(&node.keys, &by_new);
    assert!(wait >= 2 * SECOND && wait <= 4 * SECOND, "{wait:?}");
    assert_eq!(server.asked(), 1);
    node.clock.advance(SECOND);
    eventually("the new key", || node.keys.verify(&by_new).is_ok()).await;
    assert_eq!(server.asked(), 2);
    assert!(node.keys.verify(&by_old).is_ok());

    // After a quiet time nobody waits for the pause.
    node.clock.advance(60 * SECOND);
    server.answers(Answer::Keys(json!([new.jwk("new")])));
    let third = Signer::es256().token(Some("third"), &claims("anna", now()));
    let wait = retry_after(&node.keys, &third);
    assert!(wait >= SECOND && wait <= 3 * SECOND, "{wait:?}");
    eventually("the read without the old key", || {
        matches!(
            node.keys.verify(&by_old),
            Err(LoginRefusal::KeyUnknown { .. })
        )
    })
    .await;
    assert_eq!(server.asked(), 3);
}

#[tokio::test]
async fn many_tokens_of_invented_keys_cause_one_read_in_thirty_seconds() {
    let signer = Signer::es256();
    let server = KeyServer::start(Answer::Keys(json!([signer.jwk("k1")]))).await;
    let node = Followed::start(&server.url()).await;
    let good = signer.token(Some("k1"), &claims("anna", now()));
    for round in 0..4 {
        for invented in 0..500 {
            let kid = format!("{round} {invented}");
            let token = signer.token(Some(&kid), &claims("anna", now()));
            assert!(retry_after(&node.keys, &token) <= 33 * SECOND);
            tokio::task::yield_now().await;
        }
        assert!(node.keys.verify(&good).is_ok());
        eventually("the pause", || node.clock.sleepers() == 1).await;
        assert_eq!(server.asked(), 1 + round);
        node.clock.advance(29 * SECOND);
        let token = signer.token(Some("late"), &claims("anna", now()));
        retry_after(&node.keys, &token);
        assert_eq!(server.asked(), 1 + round);
        node.clock.advance(SECOND);
        eventually("the read", || server.asked() == 2 + round).await;
        eventually("its end", || node.clock.sleepers() == 0).await;
    }
    // The tokens before the last read are answered: none of them causes another one.
    node.clock.advance(100 * SECOND);
    let token = signer.token(Some("last"), &claims("anna", now()));
    retry_after(&node.keys, &token);
    eventually("the read", || server.asked() == 6).await;
}

#[tokio::test]
async fn a_token_that_would_be_refused_anyway_causes_no_read() {
    let signer = Signer::es256();
    let server = KeyServer::start(Answer::Keys(json!([
        signer.jwk("k1"),
        Signer::eddsa().jwk("k2")
    ])));
    let server = server.await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let keys = with_url(&server.url(), &clock).await;
    for (claim, value) in [
        ("exp", json!(now() - 60)),
        ("iss", json!("https://elsewhere")),
        ("aud", json!("another service")),
        ("iat", json!(now() + 600)),
        // The document was read long after this: the key was withdrawn.
        ("iat", json!(now() - 660)),
    ] {
        let mut claims = claims("anna", now());
        claims[claim] = value;
        let refused = refusal(&keys, &signer.token(Some("gone"), &claims));
        // A stranger does not learn which claim it was.
        assert_eq!(
            refused, "token refused: its key is not known here",
            "{claim}"
        );
    }
    let unnamed = signer.token(None, &claims("anna", now()));
    assert!(refusal(&keys, &unnamed).contains("names none of several keys"));
    // The name of another key is no help.
    let confused = signer.token(Some("k2"), &claims("anna", now()));
    assert!(refusal(&keys, &confused).contains("its algorithm is not that of its key"));
    let stranger = Signer::es256().token(Some("k1"), &claims("anna", now()));
    assert!(refusal(&keys, &stranger).contains("signature"));
    for name in [
        "k1\u{0}",
        "../k1",
        "K1",
        "k1 ",
        "k",
        "",
        "' OR 1=1 --",
        &"k".repeat(2000),
    ] {
        retry_after(&keys, &signer.token(Some(name), &claims("anna", now())));
    }
    assert_eq!(server.asked(), 1);
}

#[tokio::test]
async fn a_bad_answer_keeps_the_known_keys_and_says_why() {
    let signer = Signer::rs256();
    let server = KeyServer::start(Answer::Keys(json!([signer.jwk("k1")]))).await;
    let elsewhere = KeyServer::start(Answer::Keys(json!([Signer::es256().jwk("k1")]))).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let keys = with_url(&server.url(), &clock).await;
    let good = signer.token(Some("k1"), &claims("anna", now()));
    for (answer, says) in [
        (
            Answer::Status(StatusCode::INTERNAL_SERVER_ERROR),
            "answered 500",
        ),
        (Answer::Status(StatusCode::NOT_FOUND), "answered 404"),
        (Answer::Redirect(elsewhere.url()), "no redirect is followed"),
        (Answer::Redirect("/keys".into()), "no redirect is followed"),
        (Answer::Text("<html>".into()), "is not a JWK set in JSON"),
        (Answer::Text(" ".repeat(262_145)), "more than 262144 bytes"),
        (Answer::Endless, "more than 262144 bytes"),
        (Answer::Keys(json!([])), "has no key"),
    ] {
        server.answers(answer);
        let error = keys.reload().await.unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert!(error.contains(&server.at.to_string()), "{error}");
        assert!(keys.verify(&good).is_ok(), "{says}");
    }
    assert_eq!(elsewhere.asked(), 0);
    server.serving.abort();
    eventually("the end of the server", || server.serving.is_finished()).await;
    let error = keys.reload().await.unwrap_err().to_string();
    assert!(error.contains("login keys at 127.0.0.1"), "{error}");
    assert!(keys.verify(&good).is_ok());
}

#[tokio::test]
async fn a_slow_answer_ends_after_five_seconds_and_delays_no_login() {
    let signer = Signer::es256();
    let server = KeyServer::start(Answer::Keys(json!([signer.jwk("k1")]))).await;
    let node = Followed::start(&server.url()).await;
    let good = signer.token(Some("k1"), &claims("anna", now()));
    for answer in [Answer::Slow, Answer::Never] {
        server.answers(answer);
        let asked = server.asked();
        let keys = Arc::clone(&node.keys);
        let reading = tokio::spawn(async move { keys.reload().await });
        eventually("the request", || server.asked() == asked + 1).await;
        eventually("its limit", || node.clock.sleepers() == 1).await;
        // During the read known keys are good, and an unknown one has a short wait.
        assert!(node.keys.verify(&good).is_ok());
        let unknown = signer.token(Some("k2"), &claims("anna", now()));
        assert!(retry_after(&node.keys, &unknown) <= 3 * SECOND);
        assert!(!reading.is_finished());
        node.clock.advance(5 * SECOND);
        let error = reading.await.unwrap().unwrap_err().to_string();
        assert!(error.contains("did not answer within 5s"), "{error}");
        assert!(node.keys.verify(&good).is_ok());
        // The unknown name has a read of its own, which fails in the same way.
        eventually("the pause", || node.clock.sleepers() == 1).await;
        node.clock.advance(25 * SECOND);
        eventually("the read for the name", || server.asked() == asked + 2).await;
        server.answers(Answer::Keys(json!([signer.jwk("k1")])));
        node.clock.advance(5 * SECOND);
        eventually("the pause", || node.clock.sleepers() == 1).await;
        node.clock.advance(25 * SECOND);
        eventually("the read after the failure", || server.asked() == asked + 3).await;
        eventually("its end", || node.clock.sleepers() == 0).await;
    }
}

#[tokio::test]
async fn a_node_starts_without_its_keys_and_reads_them_when_they_come() {
    let signer = Signer::es256();
    let server = KeyServer::start(Answer::Status(StatusCode::BAD_GATEWAY)).await;
    let node = Followed::start(&server.url()).await;
    let token = signer.token(Some("k1"), &claims("anna", now()));
    let unnamed = signer.token(None, &claims("anna", now()));
    for token in [&token, &unnamed] {
        assert!(retry_after(&node.keys, token) <= 33 * SECOND);
    }
    let uid = distlock_kickout::Uid::new("anna").unwrap();
    let own = super::mint(&secret(), &uid, Duration::from_secs(60)).unwrap();
    assert!(node.keys.verify(&own).is_ok());
    server.answers(Answer::Keys(json!([signer.jwk("k1")])));
    eventually("the pause", || node.clock.sleepers() == 1).await;
    node.clock.advance(30 * SECOND);
    eventually("the keys", || node.keys.verify(&token).is_ok()).await;
    assert!(node.keys.verify(&unnamed).is_ok());
    assert_eq!(server.asked(), 2);
}
