//! Reads the credentials of a configuration file again for each new connection.
//!
//! Invariant: credentials are used only for the store for which they were written. A file that
//! cannot be used now changes nothing.

use std::path::PathBuf;

use async_trait::async_trait;
use distlock_backend_kit::{
    CredentialProvider, Credentials, FileReads, Target, WrittenCredentials,
};
use distlock_core::{Error, ErrorKind, Result, path_excerpt, sync::Mutex};

use super::{Config, file::StoreTable};

/// The credentials in the `[backend]` or `[records]` table of a configuration file.
pub(super) struct FileCredentials {
    path: PathBuf,
    table: StoreTable,
    reads: FileReads,
    // A blocking mutex: it is held to copy and to replace the values only.
    last: Mutex<Last>,
}

struct Last {
    good: WrittenCredentials,
    /// The problem that was logged last, until the file is good again.
    said: Option<String>,
}

impl FileCredentials {
    /// The credentials in this table of the file at `path`, which named this `target` when it was
    /// read.
    ///
    /// # Errors
    /// As [`Target::written_credentials`].
    pub(super) fn new(path: PathBuf, table: StoreTable, target: &Target) -> Result<Self> {
        let last = Last {
            good: target.written_credentials()?,
            said: None,
        };
        Ok(Self {
            path,
            table,
            reads: FileReads::default(),
            last: Mutex::new(last),
        })
    }

    async fn read(&self) -> Result<WrittenCredentials> {
        let path = self.path.clone();
        // A thread of its own: the file system may hang, and the caller's thread renews leases.
        let config = self.reads.read(move || Config::load(path)).await?;
        let target = config.store(self.table).cloned();
        let written = target
            .unwrap_or_else(|| Target::new(""))
            .written_credentials()?;
        if written.address != self.last.lock().good.address {
            // The new password belongs to another store, which may be another owner's.
            let shown = path_excerpt(&self.path);
            let says = format!("{shown} names another store now, which takes a restart");
            return Err(Error::new(ErrorKind::InvalidConfig, says));
        }
        Ok(written)
    }

    /// The credentials that the file has now, or those that it had when it could be used last. An
    /// editor may have written only a part of the file.
    async fn latest(&self) -> WrittenCredentials {
        let read = self.read().await;
        let mut last = self.last.lock();
        match read {
            Ok(written) => {
                last.good = written;
                last.said = None;
            }
            Err(error) => {
                let problem = error.to_string();
                if last.said.as_ref() != Some(&problem) {
                    tracing::warn!(
                        %problem,
                        "new connections use the password that was read before, until the file is \
                         good again",
                    );
                    last.said = Some(problem);
                }
            }
        }
        last.good.clone()
    }
}

#[async_trait]
impl CredentialProvider for FileCredentials {
    async fn credentials(&self) -> Result<Credentials> {
        Ok(self.latest().await.store)
    }

    async fn sentinel_credentials(&self) -> Result<Option<Credentials>> {
        Ok(Some(self.latest().await.sentinels))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn the_file_is_read_again_and_a_file_that_cannot_be_used_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("distlock.toml");
        let write = |text: &str| fs::write(&path, text).unwrap();
        let text = |url: &str, more: &str| format!("[backend]\nurl = \"{url}\"\n{more}\n");
        write(&text("redis://h", "password = \"one\""));
        let target = Target::from(Config::load(&path).unwrap());
        let table = StoreTable::Backend;
        let provider = FileCredentials::new(path.clone(), table, &target).unwrap();
        let password = async || {
            let credentials = provider.credentials().await.unwrap();
            let password = credentials.password.unwrap();
            password.reveal().to_owned()
        };
        assert_eq!(password().await, "one");
        write(&text("redis://bob:two@h", ""));
        assert_eq!(password().await, "two");
        for unusable in [
            "",
            "[backend]\nurl = \"redis://bob:thr",
            "[backend]\nulr = \"redis://bob:three@h\"",
            &text("redis://bob:three@other", ""),
            &text("rediss://bob:three@h", ""),
        ] {
            write(unusable);
            assert_eq!(password().await, "two", "{unusable}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(password().await, "two");
        write(&text("redis://bob:four@h?password=five", ""));
        assert_eq!(password().await, "five");
    }

    #[tokio::test]
    async fn each_store_uses_the_password_of_its_own_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("distlock.toml");
        let write = |locks: &str, records: &str| {
            let text = format!(
                "[backend]\nurl = \"redis://:{locks}@h\"\n\
                 [records]\nurl = \"redis://:{records}@i\"\n"
            );
            fs::write(&path, text).unwrap();
        };
        write("one", "two");
        let config = Config::load(&path).unwrap();
        let provider = |table| {
            let target = config.store(table).unwrap();
            FileCredentials::new(path.clone(), table, target).unwrap()
        };
        let both = [StoreTable::Backend, StoreTable::Records].map(provider);
        let passwords = async || {
            let mut passwords = Vec::new();
            for provider in &both {
                let password = provider.credentials().await.unwrap().password.unwrap();
                passwords.push(password.reveal().to_owned());
            }
            passwords
        };
        assert_eq!(passwords().await, ["one", "two"]);
        write("three", "four");
        assert_eq!(passwords().await, ["three", "four"]);
        // The file names no other store for the records any more.
        fs::write(&path, "[backend]\nurl = \"redis://:five@h\"\n").unwrap();
        assert_eq!(passwords().await, ["five", "four"]);
    }
}
