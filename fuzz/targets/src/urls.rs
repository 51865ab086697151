use distlock::{ErrorKind, Target, fuzzing};

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

/// URLs of stores: the first byte selects the scheme, the rest follows it. A password that is
/// planted at its place appears in no error and in no shown URL.
pub fn urls(data: &[u8]) {
    let Some((&scheme, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    // A fuzzer finds the planted text, and then puts it where no secret is.
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
    ] {
        let said = check(&target, text.len());
        keeps_secret(&said);
        keeps_secret(target.masked_url());
        keeps_secret(format_args!("{target:?}"));
    }
}

/// The error for a URL that is not valid; empty for a valid one.
fn check(target: &Target, input: usize) -> String {
    let Err(error) = fuzzing::target(target) else {
        return String::new();
    };
    let kinds = [ErrorKind::InvalidConfig, ErrorKind::Unsupported];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    is_bounded(&error, input + 256);
    error.to_string()
}
