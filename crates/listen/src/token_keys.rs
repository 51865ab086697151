//! The keys of a file, which sign and check the tokens of clients.
//!
//! The file has one key per line. The first one signs, and all are accepted, so that one key can
//! replace another while tokens of both are in use. A file that cannot be used must never replace
//! good keys, and no error shows a key.

use std::{fmt, path::Path, sync::Arc};

use distlock_backend_kit::{FileReads, read_bounded};
use distlock_core::{Result, sync::RwLock};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    NamedFile,
    jwt::{self, Hs256, MIN_KEY_BYTES, TokenProblem},
    tls::READ_LIMIT,
};

/// The most keys of a file: each one that is tried costs time.
const MOST_KEYS: usize = 8;

/// The keys of a file.
pub struct TokenKeys {
    file: NamedFile,
    reads: FileReads,
    keys: RwLock<Arc<[Hs256]>>,
}

impl TokenKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that cannot
    /// be read, and for a key of less than 32 bytes.
    pub async fn read(file: NamedFile) -> Result<Self> {
        let keys = Self {
            file,
            reads: FileReads::within(READ_LIMIT),
            keys: RwLock::new(Arc::new([])),
        };
        keys.reload().await?;
        Ok(keys)
    }

    /// Reads the file again. A file that cannot be used changes nothing.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub async fn reload(&self) -> Result<()> {
        let file = self.file.clone();
        let keys = self.reads.read(move || read(&file)).await;
        let keys = keys.map_err(|error| error.during("read the keys of tokens"))?;
        *self.keys.write() = keys.into();
        Ok(())
    }

    /// Signs claims with the first key.
    ///
    /// # Errors
    /// As for [`Hs256::sign`].
    pub fn sign(&self, claims: &impl Serialize) -> Result<String> {
        let keys = Arc::clone(&self.keys.read());
        // A file without a key is refused.
        keys[0].sign(claims)
    }

    /// The claims of a token that one of the keys has signed. Only the signature is checked.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn read_claims<T: DeserializeOwned>(&self, token: &str) -> Result<T, TokenProblem> {
        let keys = Arc::clone(&self.keys.read());
        jwt::read_claims(token, keys.iter())
    }
}

impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenKeys").field(&self.file).finish()
    }
}

fn read(file: &NamedFile) -> Result<Vec<Hs256>> {
    let content = read_bounded(Path::new(&file.path)).map_err(|error| file.unreadable(error))?;
    let lines = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let keys: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if !(1..=MOST_KEYS).contains(&keys.len()) {
        return Err(file.wrong("which holds not 1 to 8 keys, one on each line"));
    }
    if keys.iter().any(|key| key.len() < MIN_KEY_BYTES) {
        return Err(file.wrong("which holds a key of less than 32 bytes"));
    }
    keys.into_iter().map(Hs256::new).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    #[tokio::test]
    async fn the_first_key_signs_all_check_and_a_wrong_file_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        let keys = async |text: &str| {
            fs::write(&path, text).unwrap();
            let path = path.to_str().unwrap().to_owned();
            let setting = "token_key";
            TokenKeys::read(NamedFile { setting, path }).await
        };
        let (old, new) = ("o".repeat(32), "n".repeat(32));
        let claims = json!({"sub": "app"});
        let by_old = keys(&old).await.unwrap().sign(&claims).unwrap();
        let by_new = keys(&new).await.unwrap().sign(&claims).unwrap();
        let both = keys(&format!("{new}\n\n{old}\n")).await.unwrap();
        assert_eq!(both.sign(&claims).unwrap(), by_new);
        for token in [&by_old, &by_new] {
            assert_eq!(both.read_claims::<Value>(token).unwrap(), claims);
        }
        for wrong in [
            "",
            "short",
            &format!("{old}\nshort"),
            &format!("{old}\n").repeat(9),
        ] {
            fs::write(&path, wrong).unwrap();
            let error = both.reload().await.unwrap_err();
            assert_eq!(error.setting(), Some("token_key"));
            assert!(!error.to_string().contains("oooo"), "{error}");
            assert!(both.read_claims::<Value>(&by_old).is_ok());
        }
        fs::write(&path, &new).unwrap();
        both.reload().await.unwrap();
        let refused = both.read_claims::<Value>(&by_old).unwrap_err();
        assert!(refused.contains("signature"), "{refused}");
    }
}
