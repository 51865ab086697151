//! The keys of a file, which sign and check the tokens of clients.
//!
//! The file has one key per line. The first one signs, and all are accepted, so that one key can
//! replace another while tokens of both are in use. A file that cannot be used must never replace
//! good keys, and no error shows a key.

use distlock_core::Result;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    FileContent, FileFormat, FileProblem, NamedFile,
    jwt::{self, Hs256, MIN_KEY_BYTES, TokenProblem},
};

/// The most keys of a file: each one that is tried costs time.
const MOST_KEYS: usize = 8;

/// The keys of a file.
#[derive(Debug)]
pub struct TokenKeys(FileContent<Vec<Hs256>>);

impl TokenKeys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](distlock_core::ErrorKind::InvalidConfig) for a file that cannot
    /// be read, and for a key of less than 32 bytes.
    pub async fn read(file: NamedFile) -> Result<Self> {
        let format = FileFormat {
            settings_of: "",
            doing: "read the keys of tokens",
            parse: Box::new(parse),
        };
        Ok(Self(FileContent::read(file, format).await?))
    }

    /// Reads the file again. A file that cannot be used changes nothing.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read).
    pub async fn reload(&self) -> Result<()> {
        self.0.reload().await
    }

    /// Signs claims with the first key.
    ///
    /// # Errors
    /// As for [`Hs256::sign`].
    pub fn sign(&self, claims: &impl Serialize) -> Result<String> {
        // A file without a key is refused.
        self.0.current()[0].sign(claims)
    }

    /// The claims of a token that one of the keys has signed. Only the signature is checked.
    ///
    /// # Errors
    /// The reason why the token is refused.
    pub fn read_claims<T: DeserializeOwned>(&self, token: &str) -> Result<T, TokenProblem> {
        jwt::read_claims(token, self.0.current().iter())
    }
}

fn parse(content: &[u8]) -> Result<Vec<Hs256>, FileProblem> {
    let lines = content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let keys: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    if !(1..=MOST_KEYS).contains(&keys.len()) {
        return Err("which holds not 1 to 8 keys, one on each line".into());
    }
    if keys.iter().any(|key| key.len() < MIN_KEY_BYTES) {
        return Err("which holds a key of less than 32 bytes".into());
    }
    let keys = keys.into_iter().map(Hs256::new).collect::<Result<_>>();
    keys.map_err(|_| "which holds a key that cannot be used".into())
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
