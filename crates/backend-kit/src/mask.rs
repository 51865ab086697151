//! Removes passwords from URLs before they are printed.

/// Returns a backend URL without secrets: the user stays, and the password and the values of secret
/// query options become `***`.
///
/// The function accepts any text, also one that is no URL. In doubt it hides more: a password may
/// hold an unescaped `/`, `?` or `@`.
#[must_use]
pub fn mask(url: &str) -> String {
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
    mask_options(&shown)
}

/// Hides the values of secret options wherever an option can begin: after `?` and after `&`. If a
/// URL has an `@`, the beginning of its query cannot be recognised with certainty.
fn mask_options(url: &str) -> String {
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
        match secret {
            Some((at, _)) => format!("{}***", &part[..=at]),
            None => part.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join("&")
}

/// A part of an option, with its escapes resolved.
fn decoded(part: &str) -> String {
    let pairs = form_urlencoded::parse(part.as_bytes());
    pairs.map(|(part, _)| part.into_owned()).collect()
}

/// Options that name the file of a private key.
const KEY_FILES: [&str; 4] = ["ssl-key", "sslkey", "tls_key", "peer_tls_key"];

/// Whether the value of an option must not be shown. The path of a key file is no secret. A private
/// key itself, given by mistake instead of its path, is a secret.
#[must_use]
pub fn is_secret(key: &str, value: &str) -> bool {
    let key = key.to_lowercase();
    let is_file = value.contains('/') || value.ends_with(".pem") || value.ends_with(".key");
    if is_file && KEY_FILES.contains(&&*key) {
        return false;
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
}
