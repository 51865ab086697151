use super::{super::isolation::tests::assert_isolated, session::Session, *};

/// The types of requests, and their content after the path.
const REQUESTS: [(&str, i32, &[u8]); 6] = [
    // The content: an empty value, all rights for `world:anyone`, and a persistent node.
    (
        "create",
        1,
        b"\0\0\0\0\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\0\0\0\0",
    ),
    // The content is the version -1, which matches any version of the node.
    ("delete", 2, b"\xff\xff\xff\xff"),
    ("read", 4, b"\0"),
    ("write", 5, b"\0\0\0\0\xff\xff\xff\xff"),
    (
        "give rights",
        7,
        b"\0\0\0\x01\0\0\0\x1f\0\0\0\x05world\0\0\0\x06anyone\xff\xff\xff\xff",
    ),
    ("list", 8, b"\0"),
];

/// Tells whether a session lacks the right for a request.
fn forbidden(session: &mut Session, kind: i32, path: &str, more: &[u8]) -> bool {
    let answer = session.attempt(kind, path, more);
    // The server's error -102 is `NoAuth`.
    answer.is_err_and(|error| error.to_string().ends_with("error -102"))
}

#[test]
fn no_other_user_of_this_host_can_use_zookeeper() {
    let mut ensemble = ZooKeeper::start().unwrap();
    let mut ours = Session::connect(ensemble.address(0)).unwrap();
    ours.authenticate(&ensemble.user_and_password()).unwrap();
    let (_, create, more) = REQUESTS[0];
    ours.attempt(create, "/ours", more).unwrap();
    for at in 0..ensemble.len() {
        for user in [None, Some("harness:wrong"), Some("super:super")] {
            let mut stranger = Session::connect(ensemble.address(at)).unwrap();
            if let Some(user) = user {
                stranger.authenticate(user).unwrap();
            }
            for (what, kind, more) in REQUESTS {
                let paths: &[&str] = match what {
                    "create" => &["/a", "/zookeeper/a", "/zookeeper/quota/a"],
                    "delete" => &["/ours"],
                    _ => &["/", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"],
                };
                for path in paths {
                    let is_kept = forbidden(&mut stranger, kind, path, more);
                    assert!(is_kept, "{what} {path} on {at} as {user:?}");
                }
            }
        }
        for word in [
            "stat", "cons", "dump", "crst", "srst", "stmk", "envi", "wchp",
        ] {
            let said = ensemble.ask(at, word).unwrap();
            assert!(said.contains("not in the whitelist"), "{word}: {said}");
        }
        for secret in [&ensemble.password, &ensemble.super_password] {
            assert_isolated(
                ensemble.process(at).unwrap(),
                ensemble.folder.path(),
                secret.expose(),
            );
        }
    }
    // The user with the password must have access, also after a restart.
    ensemble.restart(0).unwrap();
    ensemble.wait_until_serving().unwrap();
    let mut ours = Session::connect(ensemble.address(0)).unwrap();
    assert!(forbidden(&mut ours, create, "/a", more));
    ours.authenticate(&ensemble.user_and_password()).unwrap();
    ours.attempt(create, "/a", more).unwrap();
}

#[test]
fn an_open_ensemble_needs_no_password() {
    let ensemble = ZooKeeper::start_with(&Setup {
        servers: 1,
        open: true,
        ..Setup::default()
    })
    .unwrap();
    assert_eq!(ensemble.servers(), ensemble.address(0).to_string());
    let mut anybody = Session::connect(ensemble.address(0)).unwrap();
    let (_, create, more) = REQUESTS[0];
    anybody.attempt(create, "/a", more).unwrap();
}
