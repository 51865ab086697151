use distlock_gateway::fuzzing::peer_message;

/// Checks messages of other nodes: a message that was read is the same after it is written and read
/// again.
pub fn peer_messages(data: &[u8]) {
    if let Some((read, again)) = peer_message(data) {
        assert_eq!(read, again);
    }
}
