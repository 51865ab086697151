//! Reads and removes nodes and sessions of an ensemble, like an administrator.

use anyhow::Result;

use crate::servers::zookeeper::{
    ensemble::ZooKeeper,
    session::{Owner, Session},
};

impl ZooKeeper {
    /// Returns the names of a node's children, sorted by name.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        let mut names = self.ask_leader(|session| session.children(path))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Removes a node.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.ask_leader(|session| session.delete(path))
    }

    /// Returns the session that owns an ephemeral node.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if there is no such node.
    pub fn owner(&self, path: &str) -> Result<Owner> {
        self.ask_leader(|session| session.owner(path))
    }

    /// Ends a client's session at once, and with the session its ephemeral nodes. For that, the
    /// function connects with the session's id and password. The password can be computed from the
    /// id.
    ///
    /// # Errors
    /// Returns an error if the leader does not answer, or if the session has ended.
    pub fn end_session(&self, id: i64) -> Result<()> {
        Session::take_over(self.address(self.leader()?), id)?.end();
        Ok(())
    }

    /// Opens a session with the leader for one request, with the rights of the ensemble's user.
    fn ask_leader<T>(&self, ask: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut session = Session::connect(self.address(self.leader()?))?;
        if !self.setup.open {
            session.authenticate(&self.user_and_password())?;
        }
        let answer = ask(&mut session);
        session.end();
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_session_loses_its_ephemeral_nodes() {
        let ensemble = ZooKeeper::start().unwrap();
        let mut ours = Session::connect(ensemble.address(0)).unwrap();
        ours.authenticate(&ensemble.user_and_password()).unwrap();
        // The nodes belong to the user of this session. The second node is ephemeral.
        let rights = b"\0\0\0\x01\0\0\0\x1f\0\0\0\x04auth\0\0\0\0";
        for (path, kind) in [("/stays", 0_u8), ("/ends", 1)] {
            let mut more = vec![0; 4];
            more.extend_from_slice(rights);
            more.extend_from_slice(&[0, 0, 0, kind]);
            ours.attempt(1, path, &more).unwrap();
        }
        assert_eq!(ensemble.owner("/stays").unwrap().session, 0);
        let id = ensemble.owner("/ends").unwrap().session;
        assert_ne!(id, 0);
        ensemble.end_session(id).unwrap();
        assert_eq!(ensemble.children("/").unwrap(), ["stays", "zookeeper"]);
        assert!(ensemble.end_session(id).is_err(), "it has ended");
        ensemble.remove("/stays").unwrap();
        assert_eq!(ensemble.children("/").unwrap(), ["zookeeper"]);
    }
}
