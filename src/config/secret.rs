//! Keeping passwords out of everything that is printed.

/// A backend URL fit to be shown: the user stays, the password and the values of secret query options become `***`.
///
/// It works on anything, also on text that is not a URL, and rather hides too much than too little: a password may hold
/// an unescaped `/`, `?` or `@`.
#[must_use]
pub fn mask(url: &str) -> String {
    let (head, query) = match url.rfind('@').map_or_else(
        || url.find('?'),
        |at| url[at..].find('?').map(|found| at + found),
    ) {
        Some(at) => (&url[..at], Some(&url[at + 1..])),
        None => (url, None),
    };
    let mut shown = mask_userinfo(head);
    if let Some(query) = query {
        shown.push('?');
        let pairs: Vec<_> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some((key, _)) if is_secret(key) => format!("{key}=***"),
                _ => pair.to_owned(),
            })
            .collect();
        shown.push_str(&pairs.join("&"));
    }
    shown
}

/// Whether an option of this name holds something that must not be shown.
pub(super) fn is_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    ["password", "passwd", "token", "key", "secret"]
        .iter()
        .any(|word| key.contains(word))
}

fn mask_userinfo(head: &str) -> String {
    let Some(start) = head.find("://").map(|at| at + 3) else {
        return head.to_owned();
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
            (
                "distlock://h?client_key=hunter2",
                "distlock://h?client_key=***",
            ),
            (
                "sqlite:/tmp/x@y:z.db?secret=hunter2",
                "sqlite:/tmp/x@y:z.db?secret=***",
            ),
            ("memory:", "memory:"),
            ("", ""),
        ] {
            assert_eq!(mask(url), shown);
        }
    }
}
