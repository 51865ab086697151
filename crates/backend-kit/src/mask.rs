//! Removes passwords from URLs before they are printed.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// The URLs that are looked for inside one another: a URL, the URL of a member in its options, and
/// one more. A text that is nested deeper is hidden.
const DEEPEST: u32 = 3;

/// The characters that are escaped in the URL of a member, in the options of another URL.
const IN_AN_OPTION: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'#')
    .add(b'%')
    .add(b'&')
    .add(b'+')
    .add(b'/')
    .add(b'?')
    .add(b'@');

/// Returns a backend URL without secrets: the user stays, and the password and the values of secret
/// query options become `***`. The same holds for a URL that is the value of an option.
///
/// The function accepts any text, also one that is no URL. In doubt it hides more: a password may
/// hold an unescaped `/`, `?` or `@`.
#[must_use]
pub fn mask(url: &str) -> String {
    mask_nested(url, DEEPEST)
}

/// As [`mask`], for a URL with at most `depth` levels of URLs inside one another.
fn mask_nested(url: &str, depth: u32) -> String {
    if depth == 0 {
        return match url.contains([':', '@', '?', '=']) {
            true => "***".to_owned(),
            false => url.to_owned(),
        };
    }
    if has_only_urls_as_options(url) {
        return mask_options(url, depth);
    }
    let (head, query) = match url.rfind('@').map_or_else(
        || url.find('?'),
        |at| url[at..].find('?').map(|found| at + found),
    ) {
        Some(at) => (&url[..at], Some(&url[at + 1..])),
        None => (url, None),
    };
    if let Some(shown) = without_what_is_no_host(head) {
        return shown;
    }
    let mut shown = mask_userinfo(head);
    if let Some(query) = query {
        shown.push('?');
        shown.push_str(query);
    }
    mask_options(&shown, depth)
}

/// Whether a URL consists of a scheme and options, as in `quorum:?member=a=redis://u:p@h`, and each
/// `@` is in an option whose value is a URL, or `NAME=URL`. The options can then be told apart,
/// although an `@` is not escaped.
fn has_only_urls_as_options(url: &str) -> bool {
    let Some((scheme, query)) = url.split_once(":?") else {
        return false;
    };
    let is_word = |text: &str| {
        let is_in_a_word = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
        !text.is_empty() && text.chars().all(is_in_a_word)
    };
    is_word(scheme)
        && query.contains('@')
        && query
            .split('&')
            .filter(|option| option.contains('@'))
            .all(|option| {
                let before = option.split_once("://").map(|(before, _)| before);
                let words = before.map(|before| before.split('=').collect::<Vec<_>>());
                words.is_some_and(|words| {
                    (2..=3).contains(&words.len()) && words.iter().all(|word| is_word(word))
                })
            })
}

/// Hides the values of secret options wherever an option can begin: after `?` and after `&`. If a
/// URL has an `@`, the beginning of its query cannot be recognised with certainty.
fn mask_options(url: &str, depth: u32) -> String {
    let mut is_first = true;
    let parts = url.split('&').map(|part| {
        let first = std::mem::take(&mut is_first);
        let secret = part.match_indices('=').find(|(at, _)| {
            let (before, value) = (&part[..*at], &part[at + 1..]);
            let key = match before.rsplit_once('?') {
                Some((_, key)) => key,
                // The text before the first `?` or `&` is no option.
                None if first => return false,
                None => before,
            };
            is_secret(&decoded(key), &decoded(value))
        });
        let shown = match secret {
            Some((at, _)) => &format!("{}***", &part[..=at]),
            None => part,
        };
        // The text before a secret option may be an option as well, whose value is a URL.
        mask_value(shown, first, depth)
    });
    parts.collect::<Vec<_>>().join("&")
}

/// Hides the secrets of the URL that is the value of this option, if it is one.
fn mask_value(part: &str, first: bool, depth: u32) -> String {
    let option = match part.find('?') {
        Some(at) if first => at + 1,
        None if first => return part.to_owned(),
        _ => 0,
    };
    let Some(at) = part[option..].find('=').map(|at| option + at + 1) else {
        return part.to_owned();
    };
    let value = unescaped(&part[at..]);
    let shown = mask_nested(&value, depth - 1);
    if shown == value {
        return part.to_owned();
    }
    let shown = utf8_percent_encode(&shown, IN_AN_OPTION);
    format!("{}{shown}", &part[..at])
}

/// The value of an option for a message: `***` for a secret, and a URL without its secrets.
pub(crate) fn shown_value(key: &str, value: &str) -> String {
    if is_secret(key, value) {
        return "***".to_owned();
    }
    let shown = mask(value);
    if shown != value {
        return shown;
    }
    // In a configuration file a URL has no escapes, but somebody may have written them.
    let value = unescaped(value);
    let without_escapes = mask(&value);
    match without_escapes == value {
        true => shown,
        false => without_escapes,
    }
}

/// A value of an option, with its escapes resolved. The value may have a `=`.
fn unescaped(value: &str) -> String {
    let value = value.replace('+', " ");
    percent_decode_str(&value).decode_utf8_lossy().into_owned()
}

/// A part of an option, with its escapes resolved.
fn decoded(part: &str) -> String {
    let pairs = form_urlencoded::parse(part.as_bytes());
    pairs.map(|(part, _)| part.into_owned()).collect()
}

/// Options that name the file of a private key.
const KEY_FILES: [&str; 4] = ["ssl-key", "sslkey", "tls_key", "peer_tls_key"];

/// Whether the value of an option must not be shown. The path of a key file, or of a token's file,
/// is no secret. The key or the token itself, given by mistake instead of its path, is a secret.
#[must_use]
pub fn is_secret(key: &str, value: &str) -> bool {
    let key = key.to_lowercase();
    let is_file = value.contains('/') || value.ends_with(".pem") || value.ends_with(".key");
    if is_file && KEY_FILES.contains(&&*key) {
        return false;
    }
    if key == "token_file" {
        // A JSON Web Token begins with the encoded `{"`.
        return value.starts_with("eyJ");
    }
    ["password", "passwd", "token", "key", "secret"]
        .iter()
        .any(|word| key.contains(word))
}

/// The longest name of a host, in bytes (RFC 1035, section 2.3.4).
const LONGEST_HOST: usize = 253;

/// Whether this text can be the list of hosts of a URL, each with or without a port. Any other text
/// may be a part of a password: the password holds an unescaped character such as `/`, or the `@`
/// after it is missing.
pub(crate) fn names_hosts(authority: &str) -> bool {
    authority.split(',').all(|host| {
        let (host, port) = match host.strip_prefix('[') {
            Some(bracketed) => match bracketed.split_once(']') {
                Some((host, "")) => (host, None),
                Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("?"))),
                None => return false,
            },
            None => match host.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (host, None),
            },
        };
        let is_in_a_name = |c: char| !c.is_control() && !c.is_whitespace() && c != '#' && c != '\\';
        let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        host.len() <= LONGEST_HOST && host.chars().all(is_in_a_name) && port.is_none_or(is_number)
    })
}

/// Hides the rest of a URL without an `@` whose part before the path is no list of hosts, because
/// that part may be a password.
fn without_what_is_no_host(head: &str) -> Option<String> {
    let start = head.find("://")? + 3;
    let rest = &head[start..];
    let authority = rest.split('/').next().unwrap_or(rest);
    if rest.contains('@') || names_hosts(authority) {
        return None;
    }
    let sign = authority.find([':', '#', '\\', '[']).unwrap_or(0);
    Some(format!("{}***", &head[..=start + sign]))
}

fn mask_userinfo(head: &str) -> String {
    let is_path = head
        .get(..7)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("sqlite:"));
    let start = match (head.find("://"), head.find("//")) {
        (Some(at), _) => at + 3,
        (None, _) if is_path => return head.to_owned(),
        // The colon of `://` is missing.
        (None, Some(at)) => at + 2,
        (None, None) => 0,
    };
    let Some(at) = head[start..].rfind('@').map(|at| start + at) else {
        return head.to_owned();
    };
    match head[start..at].find(':') {
        Some(colon) => format!("{}:***{}", &head[..start + colon], &head[at..]),
        None => head.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_secret_options_are_hidden() {
        for (url, shown) in [
            ("redis://bob:hunter2@h:6379/0", "redis://bob:***@h:6379/0"),
            ("redis://:hunter2@h", "redis://:***@h"),
            ("redis://bob@h", "redis://bob@h"),
            ("mysql://bob:hun/ter?2@h/db", "mysql://bob:***@h/db"),
            ("mysql://bob:hun@ter2@h/db?a=1", "mysql://bob:***@h/db?a=1"),
            (
                "redis://h?password=hunter2&a=1",
                "redis://h?password=***&a=1",
            ),
            ("redis://h?API_TOKEN=hunter2", "redis://h?API_TOKEN=***"),
            ("redis://h?p%61ssword=hunter2", "redis://h?p%61ssword=***"),
            (
                "distlock://h?client_key=hunter2",
                "distlock://h?client_key=***",
            ),
            (
                "sqlite:/tmp/x@y:z.db?secret=hunter2",
                "sqlite:/tmp/x@y:z.db?secret=***",
            ),
            ("memory:", "memory:"),
            (
                "distlocks://h?token_file=app.token&tls_ca=ca.pem",
                "distlocks://h?token_file=app.token&tls_ca=ca.pem",
            ),
            (
                "distlocks://h?token_file=eyJhbGciOi.eyJzdWIi.c2ln",
                "distlocks://h?token_file=***",
            ),
            (
                "rediss://h?tls_key=/etc/tls/a.key&tls_ca=/etc/ca.pem",
                "rediss://h?tls_key=/etc/tls/a.key&tls_ca=/etc/ca.pem",
            ),
            (
                "mysql://h/d?ssl-key=%2Fa%2Fb",
                "mysql://h/d?ssl-key=%2Fa%2Fb",
            ),
            ("rediss://h?key=hunter2", "rediss://h?key=***"),
            (
                "redis+cluster://h1:1,[::1]:2,h3/x",
                "redis+cluster://h1:1,[::1]:2,h3/x",
            ),
            // The colon of `://` or one slash is missing.
            ("redis//u:hunter2@h", "redis//u:***@h"),
            ("redis:/u:hunter2@h", "redis:***@h"),
            ("u:hunter2@h", "u:***@h"),
            ("redis://u:hunter2:6379", "redis://u:***"),
            ("redis://u:hunt?er=2", "redis://u:***"),
            (
                "redis://h?a=@&password=hunter2",
                "redis://h?a=@&password=***",
            ),
            ("redis://h?password=hunter2@x", "redis://h?password=***"),
            (
                "redis://u:hunter2@h&password=hunter2&a=1",
                "redis://u:***@h&password=***&a=1",
            ),
            ("redis://h?a=b?key=hunter2", "redis://h?a=b?key=***"),
            ("redis://h#hunter2", "redis://h#***"),
            ("redis://[hunter2", "redis://[***"),
            ("", ""),
        ] {
            assert_eq!(mask(url), shown);
        }
    }

    #[test]
    fn passwords_of_urls_in_options_are_hidden() {
        for (url, shown) in [
            (
                "quorum:?member=a=redis%3A%2F%2F:hunter2%40h&max_lease=60s",
                "quorum:?member=a=redis:%2F%2F:***%40h&max_lease=60s",
            ),
            (
                "quorum:?max_lease=1m&member=a%3Dredis%3A%2F%2Fbob%3Ahunter2%40h%3A1%2F0%3Fx%3D1",
                "quorum:?max_lease=1m&member=a=redis:%2F%2Fbob:***%40h:1%2F0%3Fx=1",
            ),
            // No escapes, one member and several.
            (
                "quorum:?member=a=redis://:hunter2@h",
                "quorum:?member=a=redis:%2F%2F:***%40h",
            ),
            (
                "quorum:?member=a=redis://u:hunter2@h&member=b=mysql://v:hunter2@i/d&member=c=x:",
                "quorum:?member=a=redis:%2F%2Fu:***%40h&member=b=mysql:%2F%2Fv:***%40i%2Fd\
                 &member=c=x:",
            ),
            // The options of a member.
            (
                "quorum:?member=a=redis%3A%2F%2Fh%3Fpassword%3Dhunter2",
                "quorum:?member=a=redis:%2F%2Fh%3Fpassword=***",
            ),
            (
                "quorum:?member=a=sqlite%3A%2Fx.db%3Fapi_key%3Dhunter2%26a%3D1",
                "quorum:?member=a=sqlite:%2Fx.db%3Fapi_key=***%26a=1",
            ),
            (
                "quorum:?member=redis%3A%2F%2Fu%3Ahunter2%40h",
                "quorum:?member=redis:%2F%2Fu:***%40h",
            ),
            // The `@` of a member is missing.
            (
                "quorum:?member=a=redis://u:hunter2:1&member=b=redis://h",
                "quorum:?member=a=redis:%2F%2Fu:***&member=b=redis://h",
            ),
            // An `&` in a password that is not escaped.
            (
                "quorum:?member=a=redis://u:hun&ter2@h",
                "quorum:?member=a=redis://u:***@h",
            ),
            // One URL with escapes and one without, and a secret option.
            (
                "quorum:?member=a=redis%3A%2F%2Fu:hunter2%40//:x@h?password=hunter2",
                "quorum:?member=a=redis:%2F%2Fu:***%40h%3Fpassword=***",
            ),
            // A quorum in a quorum, and deeper.
            (
                "q:?m=q%3A%3Fm%3Dredis%253A%252F%252Fu%3Ahunter2%2540h",
                "q:?m=q:%3Fm=redis:%252F%252Fu:***%2540h",
            ),
            (
                "q:?m=q:%3Fm=q:%253Fm=q:%25253Fm=redis:u:hunter2",
                "q:?m=q:%3Fm=q:%253Fm=***",
            ),
            // No secret: the URL stays as it is.
            (
                "quorum:?member=a=redis%3A%2F%2Fbob%40h&member=b%3Dsqlite%3A%2Fb.db",
                "quorum:?member=a=redis%3A%2F%2Fbob%40h&member=b%3Dsqlite%3A%2Fb.db",
            ),
            (
                "quorum:?member=a=redis://bob@h&member=b=redis://h",
                "quorum:?member=a=redis://bob@h&member=b=redis://h",
            ),
        ] {
            assert_eq!(mask(url), shown);
            assert_eq!(mask(shown), shown, "masked twice");
        }
    }

    #[test]
    fn the_value_of_an_option_is_shown_without_secrets() {
        for (value, shown) in [
            ("a=redis://:hunter2@h", "a=redis://:***@h"),
            ("a=redis%3A%2F%2F:hunter2%40h", "a=redis://:***@h"),
            ("a=redis://h?password=hunter2", "a=redis://h?password=***"),
            ("a=redis://bob@h/1", "a=redis://bob@h/1"),
            ("60s", "60s"),
            ("a+b%20c", "a+b%20c"),
        ] {
            assert_eq!(shown_value("member", value), shown);
        }
        assert_eq!(shown_value("password", "60s"), "***");
    }
}
