//! Commands that a message advises, made to look at the store that was meant.

use distlock::{BUSY_ADVICE, Error, config::mask};

use crate::{
    args::Global,
    exit::{Failure, code},
};

/// The text of an error of the library, with the tool's options in place of the library's methods.
pub(crate) fn of_the_tool(error: &Error) -> String {
    let message = error.to_string();
    match (message.strip_suffix(BUSY_ADVICE), error.name()) {
        (Some(busy), Some(name)) => {
            let name = quoted(name.as_str());
            format!("{busy}; allow more time with `--wait`, look with `{INSPECT}{name}`")
        }
        _ => message,
    }
}

/// The command that shows a lock. What follows is its name.
const INSPECT: &str = "distlock inspect ";

/// Puts this call's `--backend` and `--config` into the commands that a failure advises: the library does not know them, and
/// without them the advised command would look at another store. A password is not shown.
pub(crate) fn with_store(failure: Failure, global: &Global) -> Failure {
    let flags = flags(global);
    // A store names itself where it advises to migrate, as far as it can without its password.
    let named_well = |url: &String| global.config.is_none() && mask(url) == *url;
    let says_more = !global.backend.last().is_some_and(named_well);
    let is_wrong = failure.code == code::CONFIG;
    failure.reworded(|message| match message.strip_suffix('`') {
        Some(rest) if rest.contains(&format!("look with `{INSPECT}")) => format!("{rest}{flags}`"),
        // Names and labels may hold anything, so only where no lock is spoken of.
        _ if is_wrong && says_more => migrated(message, &flags),
        _ => message.to_owned(),
    })
}

fn migrated(message: &str, flags: &str) -> String {
    const COMMAND: &str = "`distlock migrate";
    let Some(start) = message.rfind(COMMAND) else {
        return message.to_owned();
    };
    let (before, rest) = message.split_at(start);
    match rest[1..].split_once('`') {
        Some((_, after)) => format!("{before}{COMMAND}{flags}`{after}"),
        None => message.to_owned(),
    }
}

fn flags(global: &Global) -> String {
    let config = global.config.as_ref().map(|path| path.to_string_lossy());
    let config = config.map(|path| format!(" --config {}", quoted(&path)));
    let backend = global.backend.last();
    let backend = backend.map(|url| format!(" --backend {}", quoted(&mask(url))));
    let system = global.system.then(|| " --system".to_owned());
    [config, backend, system].into_iter().flatten().collect()
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-~+@,:=%".contains(&byte);
    if word.bytes().all(plain) {
        word.to_owned()
    } else if word.chars().any(|c| !is_shown(c)) {
        // What cannot be seen, or turns the line around, is written as its number.
        let shown = word.chars().map(|c| match c {
            '\'' | '\\' => format!("\\{c}"),
            c if is_shown(c) => c.to_string(),
            c => format!("\\U{:08x}", u32::from(c)),
        });
        format!("$'{}'", shown.collect::<String>())
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn is_shown(c: char) -> bool {
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use distlock::{ErrorKind, LockName};

    use super::*;

    #[test]
    fn a_busy_lock_is_answered_with_options_of_the_tool() {
        let name = LockName::new("it's \u{202e}a").unwrap();
        let error = |message| Error::new(ErrorKind::Timeout, message).about(&name);
        let said = of_the_tool(&error(format!("busy: held by a{BUSY_ADVICE}")));
        let advice =
            "allow more time with `--wait`, look with `distlock inspect $'it\\'s \\U0000202ea'`";
        assert!(
            said.ends_with(&format!("busy: held by a; {advice}")),
            "{said}"
        );
        assert!(!said.contains("LockBuilder"), "{said}");
        let other = error("slow".to_owned());
        assert_eq!(of_the_tool(&other), other.to_string());
    }

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(quoted("a\u{202e}b'c"), r"$'a\U0000202eb\'c'");
        assert_eq!(quoted("é"), "'é'");
        assert_eq!(quoted("order:42"), "order:42");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    fn advised(message: &str, backend: Option<&str>, config: Option<&str>) -> String {
        let global = Global {
            backend: backend.into_iter().map(str::to_owned).collect(),
            config: config.map(Into::into),
            ..Global::default()
        };
        let code = if message.starts_with("busy") {
            code::BUSY
        } else {
            code::CONFIG
        };
        with_store(Failure::new(code, message), &global).to_string()
    }

    #[test]
    fn the_advised_command_looks_at_the_store_that_was_meant() {
        let busy = "busy: held by a; look with `distlock inspect 'a`b'`";
        let strict = "absent: run `distlock migrate --backend 'mysql://bob@h/d'` now";
        for (message, backend, config, says) in [
            (busy, None, None, "`distlock inspect 'a`b'`"),
            (
                busy,
                Some("sqlite:/a b.db"),
                None,
                "`distlock inspect 'a`b' --backend 'sqlite:/a b.db'`",
            ),
            (
                busy,
                Some("redis://u:hunter2@h"),
                Some("x.toml"),
                "`distlock inspect 'a`b' --config x.toml --backend 'redis://u:***@h'`",
            ),
            (strict, None, None, "run `distlock migrate` now"),
            (
                "busy: held by `distlock migrate`; look with `distlock inspect a`",
                None,
                Some("x.toml"),
                "held by `distlock migrate`; look with `distlock inspect a --config x.toml`",
            ),
            (strict, Some("mysql://bob@h/d"), None, strict),
            (
                strict,
                Some("mysql://bob:hunter2@h/d"),
                None,
                "run `distlock migrate --backend 'mysql://bob:***@h/d'` now",
            ),
            (
                strict,
                None,
                Some("x.toml"),
                "run `distlock migrate --config x.toml` now",
            ),
        ] {
            let said = advised(message, backend, config);
            assert!(said.ends_with(says), "{said}");
        }
    }
}
