use distlock_gateway::fuzzing::peer_message;

/// Messages of other nodes: a message that was read is written and read back the same.
pub fn peer_messages(data: &[u8]) {
    if let Some((read, again)) = peer_message(data) {
        assert_eq!(read, again);
    }
}
