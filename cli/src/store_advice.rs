//! Completes the commands that a failure advises with the flags that name the store of this call.

use distlock::config::mask;

use crate::{
    advice::INSPECT_COMMAND,
    exit::{Failure, code},
    global::Global,
    shell_word::quote_for_shell,
};

/// Adds the `--backend` and `--config` of this call to the commands that a failure advises. The
/// library does not know these flags, and without them the advised command would use another store.
/// A password is masked.
pub fn add_store_flags(failure: Failure, global: &Global) -> Failure {
    let flags = store_flags(global);
    // An error that advises `migrate` contains the URL of its store, but not the password. Flags
    // are needed only if that URL is not enough.
    let named_well = |url: &String| global.config.is_none() && mask(url) == *url;
    let says_more = !global.backend.last().is_some_and(named_well);
    let is_wrong = failure.code == code::CONFIG;
    failure.map_message(|message| match message.strip_suffix('`') {
        Some(rest) if rest.contains(&format!("look with `{INSPECT_COMMAND}")) => {
            format!("{rest}{flags}`")
        }
        // A lock name or a holder may contain any text, also a text that looks like such a command.
        // So only messages about a wrong configuration are changed: they contain neither names nor
        // holders.
        _ if is_wrong && says_more => complete_migrate_command(message, &flags),
        _ => message.to_owned(),
    })
}

/// Puts the flags into an advised `distlock migrate`.
fn complete_migrate_command(message: &str, flags: &str) -> String {
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

/// The flags of this call that name its store, each after a space.
fn store_flags(global: &Global) -> String {
    let config = global.config.as_ref().map(|path| path.to_string_lossy());
    let config = config.map(|path| format!(" --config {}", quote_for_shell(&path)));
    let backend = global.backend.last();
    let backend = backend.map(|url| format!(" --backend {}", quote_for_shell(&mask(url))));
    let system = global.system.then(|| " --system".to_owned());
    let own = global.own.then(|| " --user".to_owned());
    [config, backend, system, own]
        .into_iter()
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        add_store_flags(Failure::new(code, message), &global).to_string()
    }

    #[test]
    fn the_advised_command_names_the_store_of_this_call() {
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
