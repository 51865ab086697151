use distlock::{ErrorKind, Registry, Target};

use crate::text::{SECRET, is_bounded, keeps_secret};

const SCHEMES: [&str; 11] = [
    "mariadb",
    "memory",
    "mysql",
    "postgres",
    "postgresql",
    "redis",
    "redis+cluster",
    "redis+sentinel",
    "rediss",
    "sqlite",
    "zookeeper",
];

/// Checks URLs of stores: the first byte selects the scheme, and the rest of the input follows the
/// scheme. A password is planted at its place in the URL. No error and no shown URL may contain the
/// password.
pub fn urls(data: &[u8]) {
    let Some((&scheme, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    // The fuzzer can learn the planted secret from this program and write it into the input. Errors
    // may show parts of the input, so such an input would fail the checks without a bug.
    if text.contains(SECRET) {
        return;
    }
    let scheme = SCHEMES[usize::from(scheme) % SCHEMES.len()];
    let sign = if text.contains('?') { '&' } else { '?' };
    for url in [text.to_owned(), format!("{scheme}:{text}")] {
        check(&Target::new(url), text.len());
    }
    for target in [
        Target::new(format!("{scheme}://user:{SECRET}@{text}")),
        Target::new(format!("{scheme}:{text}{sign}password={SECRET}")),
        Target::new(format!("{scheme}:{text}{sign}password={SECRET}@h")),
        Target::new(format!("{scheme}:{text}")).option("password", SECRET),
        Target::new(format!(
            "quorum:?member=a={scheme}%3A%2F%2Fuser:{SECRET}%40{text}"
        )),
        Target::new(format!("quorum:?member=a={scheme}://user:{SECRET}@{text}")),
        Target::new(format!("ring:?records={scheme}://user:{SECRET}@{text}")),
    ] {
        let said = check(&target, text.len());
        keeps_secret(&said);
        keeps_secret(target.masked_url());
        keeps_secret(format_args!("{target:?}"));
    }
}

/// Returns the error for a URL that is not valid. The text is empty for a valid URL.
fn check(target: &Target, input: usize) -> String {
    let Err(error) = Registry::builtin().drivers().check(target) else {
        return String::new();
    };
    let kinds = [ErrorKind::InvalidConfig, ErrorKind::Unsupported];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    is_bounded(&error, input + 256);
    error.to_string()
}
