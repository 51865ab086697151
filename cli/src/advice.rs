//! Rewrites errors of the library for users of the tool.

use distlock::{BUSY_ADVICE, Error};

use crate::shell_word::quote_for_shell;

/// The text of an error for users of the tool. Options and commands of the tool replace the methods
/// of the library that the error advises.
pub(crate) fn message_for_tool(error: &Error) -> String {
    let advice = error.name().map_or_else(String::new, |name| {
        let name = quote_for_shell(name.as_str());
        format!("; allow more time with `--wait`, look with `{INSPECT_COMMAND}{name}`")
    });
    // The error may be the cause of another one, so the advice is not always the end of the text.
    error.to_string().replace(BUSY_ADVICE, &advice)
}

/// The command that shows a lock. The name of the lock follows it.
pub(crate) const INSPECT_COMMAND: &str = "distlock inspect ";

#[cfg(test)]
mod tests {
    use distlock::{ErrorKind, LockName};

    use super::*;

    #[test]
    fn a_busy_lock_is_answered_with_options_of_the_tool() {
        let name = LockName::new("it's \u{202e}a").unwrap();
        let error = |message| Error::new(ErrorKind::Timeout, message).about(&name);
        let said = message_for_tool(&error(format!("busy: held by a{BUSY_ADVICE}")));
        let advice =
            "allow more time with `--wait`, look with `distlock inspect $'it\\'s \\U0000202ea'`";
        assert!(
            said.ends_with(&format!("busy: held by a; {advice}")),
            "{said}"
        );
        assert!(!said.contains("LockBuilder"), "{said}");
        let outer = Error::new(ErrorKind::Unavailable, "no turn")
            .caused_by(error(format!("busy: held by a{BUSY_ADVICE}")));
        let said = message_for_tool(&outer);
        assert!(said.contains("held by a"), "{said}");
        assert!(!said.contains("LockBuilder"), "{said}");
        let other = error("slow".to_owned());
        assert_eq!(message_for_tool(&other), other.to_string());
    }
}
