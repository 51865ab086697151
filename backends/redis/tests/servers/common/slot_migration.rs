//! Moves a slot of a cluster from one server to another.

use distlock_harness::servers::redis::RedisServer;

/// A slot that migrates from one server to another, in the same steps as with an operator's tool.
pub(crate) struct SlotMigration<'a> {
    old: &'a RedisServer,
    new: &'a RedisServer,
    pub(crate) slot: String,
    ids: [String; 2],
}

impl<'a> SlotMigration<'a> {
    /// Begins the migration of a key's slot.
    pub(crate) fn begin(old: &'a RedisServer, new: &'a RedisServer, key: &str) -> Self {
        let slot = old.command(&["CLUSTER", "KEYSLOT", key]).unwrap();
        let ids = [old, new].map(|node| node.command(&["CLUSTER", "MYID"]).unwrap());
        let moving = Self {
            old,
            new,
            slot,
            ids,
        };
        moving.set(new, "IMPORTING", 0);
        moving.set(old, "MIGRATING", 1);
        moving
    }

    pub(crate) fn move_keys(&self, keys: &[&str]) {
        let port = self.new.address().port().to_string();
        let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
        migrate.extend(["AUTH", self.new.password(), "KEYS"]);
        migrate.extend(keys);
        assert_eq!(self.old.command(&migrate).unwrap(), "OK");
    }

    pub(crate) fn end(self) {
        for node in [self.new, self.old] {
            self.set(node, "NODE", 1);
        }
    }

    fn set(&self, node: &RedisServer, state: &str, id: usize) {
        let set = ["CLUSTER", "SETSLOT", &self.slot, state, &self.ids[id]];
        assert_eq!(node.command(&set).unwrap(), "OK");
    }
}
