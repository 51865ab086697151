//! Texts that messages quote never contain a raw control character, and are shortened.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::support::{Home, finish};

/// The length of the longest line: a message quotes at most two texts of 200 characters and has
/// words of its own.
const MAX_LINE: usize = 800;
/// The most lines of a message, more than any message about an input needs.
const MAX_LINES: usize = 40;

/// A text that is longer than any limit. Its control codes would change the title and the colour of
/// a terminal, move back in the line, and reverse the direction of the text.
fn hostile_text() -> String {
    format!(
        "a\u{1b}]0;title\u{7}\u{1b}[31m\rb\u{8}\u{9b}\u{202e}c{}",
        "x".repeat(5000)
    )
}

/// Checks that a message has no control character, no long line, and few lines.
#[track_caller]
fn assert_harmless(text: &str, what: &str) {
    let odd = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    let seen = text
        .find(odd)
        .map(|at| text[at..].chars().take(9).collect::<String>());
    assert_eq!(seen, None, "{what}: {text:?}");
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest.unwrap_or_default() <= MAX_LINE, "{what}: {text}");
    assert!(text.lines().count() <= MAX_LINES, "{what}: {text}");
}

#[test]
fn input_of_any_kind_is_quoted_without_control_characters_and_shortened() {
    let home = Home::new();
    let nasty = hostile_text();
    let short = nasty.get(..40).unwrap();
    // This text is long, but each of its words is short.
    let words = format!("{short} {}", "and so on ".repeat(1700));
    let file = home.write("odd.toml", &format!("[backend]\nurl = {nasty:?}\n"));
    let key = home.write(
        "key.toml",
        &format!("[backend]\n\"{}\" = 1\n", "k".repeat(5000)),
    );
    let broken = home.write("broken.toml", &format!("{nasty}\n"));
    let gateway = home.write("gateway.toml", &format!("[gateway]\npolicy = {nasty:?}\n"));
    let [file, key, broken, gateway] =
        [&file, &key, &broken, &gateway].map(|it| it.to_str().unwrap());
    let quotes = format!("{short} {}", "it's \"a\" 'b'\n".repeat(1000));
    for text in [&*nasty, short, &words, &quotes] {
        let words: [&[&str]; 26] = [
            &["inspect", text],
            &["run", text, "--", "true"],
            &["run", "job", "--holder", text, "--", "true"],
            &["run", "job", "--meta", text, "--", "true"],
            &["run", "job", "--ttl", text, "--", "true"],
            &["run", "job", "-E", text, "--", "true"],
            &["run", "job", "--every", text, "--", "true"],
            &["run", "job", "--", text],
            &["elect", "job", "--on-start", "true", "--", text],
            &["fence", "check", "job", "--file", text, "--token", "1"],
            &["fence", "check", "job", "--file", "f", "--token", text],
            &["list", "--config", text],
            &["list", "--config", file],
            &["list", "--config", key],
            &["list", "--config", broken],
            &["gateway", "run", "--node", "n1", "--config", gateway],
            &["gateway", "run", "--node", text],
            &["gateway", "run", "--node", "n1", "--listen", text],
            &["gateway", "run", "--node", "n1", "--policy", text],
            &["gateway", "kick", "--uid", "a", "--admin", text],
            &["gateway", "kick", "--uid", text],
            &["gateway", "token", "--uid", text],
            &["man", text],
            &["conformance", text],
            &["completions", text],
            &[text],
        ];
        for words in words {
            let done = home.run(words);
            assert_harmless(&done.stderr, &format!("{words:?}"));
        }
        let url = |pattern: &str| pattern.replace("NASTY", text);
        for url in [
            text.to_owned(),
            url("sqlite:/NASTY/x.db"),
            url("sqlite:/tmp/x.db?busy_timeout=NASTY"),
            url("sqlite:/tmp/x.db?NASTY=1"),
            url("redis://NASTY/0"),
            url("redis://127.0.0.1/NASTY"),
            url("redis://127.0.0.1/0?tls=NASTY"),
            url("redis+sentinel://127.0.0.1:1/NASTY"),
            url("postgres://u@127.0.0.1:1/NASTY"),
            url("postgres://u@NASTY/d"),
            url("mysql://u@127.0.0.1:1/d?ssl-mode=NASTY"),
            url("mysql://u@127.0.0.1:1/d?ssl-ca=/NASTY"),
            url("zookeeper://NASTY/r"),
            url("zookeeper://127.0.0.1:1/NASTY"),
            url("memory:NASTY"),
        ] {
            let mut list = home.bare(["list", "--backend", &url]);
            assert_harmless(&finish(&mut list, "").stderr, &url);
            let mut doctor = home.bare(["doctor"]);
            let said = finish(doctor.env("DISTLOCK_BACKEND", &url), "");
            assert_harmless(&said.stderr, &url);
            assert_harmless(&said.stdout, &url);
        }
        let mut odd = home.bare(["list"]);
        assert_harmless(
            &finish(odd.env("DISTLOCK_LOG", text), "").stderr,
            "DISTLOCK_LOG",
        );
        let mut odd = home.bare(["list"]);
        odd.env(format!("DISTLOCK_BACKND{}", text.replace('\0', "")), "1");
        assert_harmless(&finish(&mut odd, "").stderr, "a variable's name");
    }
}

/// Starts a server that answers every packet with the same error.
fn server_that_answers(answer: Vec<u8>) -> u16 {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in server.incoming() {
            let (Ok(mut stream), answer) = (stream, answer.clone()) else {
                return;
            };
            thread::spawn(move || {
                // A MySQL server sends the first packet.
                let _ = stream.write_all(&answer);
                while matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
                    if stream.write_all(&answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[test]
fn messages_of_servers_are_quoted_without_control_characters_and_shortened() {
    let home = Home::new();
    let said = hostile_text().replace('\r', "") + &" and so on".repeat(500);
    let redis = server_that_answers(format!("-ERR {said}\r\n").into_bytes());
    let mut packet = vec![0xff, 0x15, 0x04];
    packet.extend_from_slice(b"#28000");
    packet.extend_from_slice(said.as_bytes());
    let mut mysql = u32::try_from(packet.len()).unwrap().to_le_bytes()[..3].to_vec();
    mysql.push(0);
    mysql.extend(packet);
    let mysql = server_that_answers(mysql);
    let fields = format!("SFATAL\0C28000\0M{said}\0\0");
    let mut postgres = vec![b'E'];
    postgres.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    postgres.extend(fields.into_bytes());
    let postgres = server_that_answers(postgres);
    for url in [
        format!("redis://127.0.0.1:{redis}"),
        format!("redis+cluster://127.0.0.1:{redis}"),
        format!("redis+sentinel://127.0.0.1:{redis}/main"),
        format!("mysql://u@127.0.0.1:{mysql}/d"),
        format!("postgres://u@127.0.0.1:{postgres}/d"),
    ] {
        for words in [
            &["list"][..],
            &["doctor"],
            &["run", "job", "-n", "--", "true"],
        ] {
            let mut tool = home.bare(words);
            let done = finish(tool.env("DISTLOCK_BACKEND", &url), "");
            assert_harmless(&done.stderr, &url);
            assert_harmless(&done.stdout, &url);
            assert_ne!(done.code, 70, "{url}: {done:?}");
        }
    }
}
