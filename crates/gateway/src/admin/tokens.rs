//! The tokens of administrators, each with a name and a right.
//!
//! Invariant of this module: a token has one right, and a token that is withdrawn has none from the
//! next request on. This module must never show a token.

use std::{fmt, str, sync::Arc};

use distlock_core::{Result, excerpt};
use distlock_listen::{FileContent, FileFormat, FileProblem, NamedFile};

use crate::config::{GatewayConfig, LEAST_TOKEN_BYTES, Secret};

/// Most tokens of a file: each is compared with the token of a request.
const MOST_TOKENS: usize = 64;
const LONGEST_NAME: usize = 64;
/// The name of the token in the setting of this name. No line of the file may have it.
const OWN_NAME: &str = "admin_token";

/// What an administrator may do. Each right includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// See everything.
    Read,
    /// End sessions, ban accounts, and drain a node.
    Operate,
    /// Everything, also to release a lock by force.
    Admin,
}

/// The sender of a request that showed a good token.
#[derive(Clone, Debug)]
pub(crate) struct Administrator {
    /// The name of the token; [`OWN_NAME`] for `admin_token`.
    pub(crate) name: Arc<str>,
    pub(crate) right: Right,
}

/// The tokens of the configuration.
#[derive(Debug)]
pub(crate) struct AdminTokens {
    own: Option<Secret>,
    file: Option<FileContent<Vec<NamedToken>>>,
}

struct NamedToken {
    name: Arc<str>,
    right: Right,
    token: Secret,
}

impl Right {
    const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Admin];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl Administrator {
    /// Whether the administrator has this right.
    ///
    /// # Errors
    /// The reason why not, for the administrator.
    pub(crate) fn check(&self, needed: Right) -> Result<(), String> {
        if self.right >= needed {
            return Ok(());
        }
        let (name, right, needed) = (&self.name, self.right.name(), needed.name());
        Err(format!(
            "the token \"{name}\" has the right {right}: this needs the right {needed}"
        ))
    }
}

impl AdminTokens {
    /// Reads the tokens of the configuration. If there is none, makes a random token, which
    /// [`made`](Self::made) returns.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that cannot
    /// be used.
    pub(crate) async fn open(config: &GatewayConfig) -> Result<Self> {
        let Some(path) = &config.admin_token_file else {
            let own = config.admin_token.clone();
            return Ok(Self::of(own.unwrap_or_else(Secret::random)));
        };
        let file = NamedFile {
            setting: "admin_token_file",
            path: path.clone(),
        };
        // A program that knows one of these secrets must not have the rights of another one.
        let others: Vec<_> = config
            .secrets()
            .map(|(key, it)| (key, it.clone()))
            .collect();
        let format = FileFormat {
            settings_of: "gateway.",
            doing: "read the tokens of administrators",
            parse: Box::new(move |content| parse(content, &others)),
        };
        Ok(Self {
            own: config.admin_token.clone(),
            file: Some(FileContent::read(file, format).await?),
        })
    }

    /// This token alone, with every right.
    pub(crate) const fn of(own: Secret) -> Self {
        Self {
            own: Some(own),
            file: None,
        }
    }

    /// Whether there is a file to read again.
    pub(crate) const fn can_reload(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file again. A file that cannot be used changes nothing.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub(crate) async fn reload(&self) -> Result<()> {
        match &self.file {
            Some(file) => file.reload().await,
            None => Ok(()),
        }
    }

    /// The token of the setting `admin_token`, or the one that was made instead.
    pub(crate) const fn own(&self) -> Option<&Secret> {
        self.own.as_ref()
    }

    /// The administrator who has this token.
    pub(crate) fn identify(&self, given: &str) -> Option<Administrator> {
        if self.own.as_ref().is_some_and(|own| own.matches(given)) {
            return Some(Administrator {
                name: OWN_NAME.into(),
                right: Right::Admin,
            });
        }
        let named = self.file.as_ref()?.current();
        let found = named.iter().find(|named| named.token.matches(given))?;
        Some(Administrator {
            name: Arc::clone(&found.name),
            right: found.right,
        })
    }
}

impl fmt::Debug for NamedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.right.name())
    }
}

/// Reads a file with one token on each line: its name, its right, and the token itself.
fn parse(
    content: &[u8],
    others: &[(&'static str, Secret)],
) -> Result<Vec<NamedToken>, FileProblem> {
    let text = str::from_utf8(content).map_err(|_| "which is not UTF-8")?;
    let mut tokens: Vec<NamedToken> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let number = at + 1;
        let token = parse_line(line).map_err(|why| format!("whose line {number} {why}"))?;
        let wrong = |other: &str, what| {
            FileProblem::from(format!(
                "whose line {number} has the {what} of {other}: give each its own"
            ))
        };
        for known in &tokens {
            if known.name == token.name {
                return Err(wrong("another line", "name"));
            }
            if known.token.matches(token.token.expose()) {
                return Err(wrong("another line", "token"));
            }
        }
        let mut others = others.iter();
        if let Some((key, _)) = others.find(|(_, it)| it.matches(token.token.expose())) {
            return Err(wrong(key, "token"));
        }
        tokens.push(token);
    }
    if (1..=MOST_TOKENS).contains(&tokens.len()) {
        return Ok(tokens);
    }
    let found = tokens.len();
    Err(format!("which holds {found} tokens: 1 to {MOST_TOKENS} are needed").into())
}

/// Reads one line. No error shows the token, nor what may be one.
fn parse_line(line: &str) -> Result<NamedToken, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(right), Some(token), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("has not three words: the name, the right and the token".into());
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.len() > LONGEST_NAME || !name.bytes().all(is_plain) {
        return Err(format!(
            "begins with no name: 1 to {LONGEST_NAME} of A-Z a-z 0-9 . _ - are needed"
        ));
    }
    if name == OWN_NAME {
        return Err(format!(
            "has the name of the setting {OWN_NAME}: another is needed"
        ));
    }
    let name = excerpt(name);
    let Some(right) = Right::ALL.into_iter().find(|it| it.name() == right) else {
        return Err(format!(
            "gives \"{name}\" no right: read, operate or admin is needed"
        ));
    };
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "gives \"{name}\" a token that cannot be sent in a header: visible ASCII characters \
             are needed"
        ));
    }
    if token.len() < LEAST_TOKEN_BYTES {
        let length = token.len();
        return Err(format!(
            "gives \"{name}\" a token of {length} bytes: at least {LEAST_TOKEN_BYTES} are needed"
        ));
    }
    Ok(NamedToken {
        name: name.into(),
        right,
        token: Secret::new(token),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_each_token_and_its_right() {
        let text = "# on call\nanna operate  hunter2-hunter2-1\n\n\tprometheus read \
                    hunter2-hunter2-2\r\nboss admin hunter2-hunter2-3";
        let tokens = parse(text.as_bytes(), &[]).unwrap();
        let shown = format!("{tokens:?}");
        assert_eq!(shown, "[anna: operate, prometheus: read, boss: admin]");
        assert!(Right::Read < Right::Operate && Right::Operate < Right::Admin);
    }

    #[test]
    fn a_file_with_any_problem_is_refused_and_no_token_is_shown() {
        let good = "anna read hunter2-hunter2-1\n";
        let many: String = (0..65)
            .map(|number| format!("a{number} read hunter2-hunter2-{number}\n"))
            .collect();
        for (text, says) in [
            ("", "holds 0 tokens: 1 to 64"),
            ("# nobody\n", "holds 0 tokens"),
            (&many, "holds 65 tokens"),
            ("hunter2-hunter2-1", "line 1 has not three words"),
            ("anna hunter2-hunter2-1", "line 1 has not three words"),
            (
                "\nanna read hunter2-hunter2-1 x",
                "line 2 has not three words",
            ),
            ("hunter2! read hunter2-hunter2-1", "begins with no name"),
            ("anna hunter2 hunter2-hunter2-1", "gives \"anna\" no right"),
            ("anna Read hunter2-hunter2-1", "gives \"anna\" no right"),
            ("anna read hunter2", "a token of 7 bytes: at least 16"),
            (
                "admin_token read hunter2-hunter2-1",
                "line 1 has the name of the setting admin_token",
            ),
            ("anna read h\u{fc}nter2-hunter2-1", "visible ASCII"),
            (
                &format!("{good}anna admin hunter2-hunter2-2"),
                "line 2 has the name of another",
            ),
            (
                &format!("{good}otto admin hunter2-hunter2-1"),
                "line 2 has the token of another",
            ),
            (
                "anna read hunter2-hunter2-send",
                "line 1 has the token of send_token",
            ),
        ] {
            let others = [("send_token", Secret::new("hunter2-hunter2-send"))];
            let problem = parse(text.as_bytes(), &others).unwrap_err();
            assert!(problem.contains(says), "{says}: {problem}");
            assert!(!problem.contains("hunter2"), "{problem}");
        }
        assert!(parse(b"anna read \xff", &[]).unwrap_err().contains("UTF-8"));
    }
}
