use distlock_gateway::fuzzing::peer_message;

/// Messages of other nodes: what is read is written and read the same.
pub fn peer_messages(data: &[u8]) {
    if let Some((read, again)) = peer_message(data) {
        assert_eq!(read, again);
    }
}
