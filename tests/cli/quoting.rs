//! Quotations in messages: never a raw control character, and never more than a reader wants to
//! see.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    thread,
};

use crate::support::{Home, finish};

/// A message quotes at most two texts of 200 characters, beside its own words.
const LONGEST_LINE: usize = 800;
/// More lines than any message about an input has.
const MOST_LINES: usize = 40;

/// A text longer than any limit. It contains codes that would change a terminal's title and colour,
/// move back in the line, and reverse the direction of text.
fn nasty() -> String {
    format!(
        "a\u{1b}]0;title\u{7}\u{1b}[31m\rb\u{8}\u{9b}\u{202e}c{}",
        "x".repeat(5000)
    )
}

#[track_caller]
fn is_tame(text: &str, what: &str) {
    let odd = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    let seen = text
        .find(odd)
        .map(|at| text[at..].chars().take(9).collect::<String>());
    assert_eq!(seen, None, "{what}: {text:?}");
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(
        longest.unwrap_or_default() <= LONGEST_LINE,
        "{what}: {text}"
    );
    assert!(text.lines().count() <= MOST_LINES, "{what}: {text}");
}

#[test]
fn whatever_is_given_to_the_tool_is_quoted_tamely() {
    let home = Home::new();
    let nasty = nasty();
    let short = nasty.get(..40).unwrap();
    // Each word is short.
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
        let words: [&[&str]; 27] = [
            &["inspect", text],
            &["run", text, "--", "true"],
            &["run", "job", "--holder", text, "--", "true"],
            &["run", "job", "--meta", text, "--", "true"],
            &["run", "job", "--ttl", text, "--", "true"],
            &["run", "job", "-E", text, "--", "true"],
            &["run", "job", "--every", text, "--", "true"],
            &["run", "job", "--", text],
            &["elect", "job", "--on-gain", "true", "--", text],
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
            &["compare", "--render", text, "--out", "out"],
            &[text],
        ];
        for words in words {
            let done = home.run(words);
            is_tame(&done.stderr, &format!("{words:?}"));
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
            is_tame(&finish(&mut list, "").stderr, &url);
            let mut doctor = home.bare(["doctor"]);
            let said = finish(doctor.env("DISTLOCK_BACKEND", &url), "");
            is_tame(&said.stderr, &url);
            is_tame(&said.stdout, &url);
        }
        let mut odd = home.bare(["list"]);
        is_tame(
            &finish(odd.env("DISTLOCK_LOG", text), "").stderr,
            "DISTLOCK_LOG",
        );
        let mut odd = home.bare(["list"]);
        odd.env(format!("DISTLOCK_BACKND{}", text.replace('\0', "")), "1");
        is_tame(&finish(&mut odd, "").stderr, "a variable's name");
    }
}

/// A server that answers every packet with the same error.
fn rude_server(answer: Vec<u8>) -> u16 {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in server.incoming() {
            let (Ok(mut stream), answer) = (stream, answer.clone()) else {
                return;
            };
            thread::spawn(move || {
                // A MySQL server speaks first.
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
fn what_servers_say_is_quoted_tamely() {
    let home = Home::new();
    let said = nasty().replace('\r', "") + &" and so on".repeat(500);
    let redis = rude_server(format!("-ERR {said}\r\n").into_bytes());
    let mut packet = vec![0xff, 0x15, 0x04];
    packet.extend_from_slice(b"#28000");
    packet.extend_from_slice(said.as_bytes());
    let mut mysql = u32::try_from(packet.len()).unwrap().to_le_bytes()[..3].to_vec();
    mysql.push(0);
    mysql.extend(packet);
    let mysql = rude_server(mysql);
    let fields = format!("SFATAL\0C28000\0M{said}\0\0");
    let mut postgres = vec![b'E'];
    postgres.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
    postgres.extend(fields.into_bytes());
    let postgres = rude_server(postgres);
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
            is_tame(&done.stderr, &url);
            is_tame(&done.stdout, &url);
            assert_ne!(done.code, 70, "{url}: {done:?}");
        }
    }
}
