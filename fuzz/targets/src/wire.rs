use distlock_gateway::fuzzing;

/// Checks frames of clients. The first two bytes are the message id of the TCP front, and 0 means
/// no id. The body of a message must arrive unchanged.
pub fn client_frames(data: &[u8]) {
    let Some((&[high, low], text)) = data.split_first_chunk() else {
        return;
    };
    let Ok(text) = str::from_utf8(text) else {
        return;
    };
    let id = Some(u16::from_be_bytes([high, low])).filter(|id| *id > 0);
    match fuzzing::client_frame(text, id) {
        Ok(frame) => {
            if let Some((sent, carried)) = frame.body {
                assert_eq!(sent, carried);
                assert!(text.contains(&sent), "{sent}");
            }
            if let Some(version) = frame.version {
                let why = version.err();
                assert!(
                    why.as_ref().is_none_or(|why| why.starts_with("v is ")),
                    "{why:?}"
                );
            }
            // The id before the frame is only compared with the id inside the frame. Without the id
            // before the frame, the same frame must be readable.
            assert!(fuzzing::client_frame(text, None).is_ok());
        }
        Err(why) => assert!(why.is_none_or(|why| why.chars().count() <= 200)),
    }
}

/// Checks bytes of a client of the TCP front. The first byte selects the place at which the other
/// bytes are split. The frames must be the same as without the split.
pub fn tcp_frames(data: &[u8]) {
    const MOST: usize = 1024;
    let Some((&cut, bytes)) = data.split_first() else {
        return;
    };
    let frames = fuzzing::tcp_frames(bytes, &[], MOST);
    let (first, second) = bytes.split_at(usize::from(cut).min(bytes.len()));
    assert_eq!(fuzzing::tcp_frames(first, second, MOST), frames);
    let mut rest = bytes;
    for frame in frames {
        let Some((&[id_high, id_low, high, low], body)) = rest.split_first_chunk() else {
            panic!("a frame without a header");
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        match frame {
            Ok((id, text)) => {
                let (body, after) = body.split_at(length);
                assert!(length <= MOST && text.as_bytes() == body);
                assert_eq!(id, u16::from_be_bytes([id_high, id_low]));
                rest = after;
            }
            Err(_) => {
                let body = body.get(..length);
                assert!(length > MOST || body.is_some_and(|it| str::from_utf8(it).is_err()));
            }
        }
    }
}

/// Checks headers of the PROXY protocol. The reader must read nothing behind a header, and the
/// bytes behind a header must not change the result.
pub fn proxy_headers(data: &[u8]) {
    const BEHIND: &[u8] = b"GET / HTTP/1.1\r\n";
    let Some((source, rest)) = fuzzing::proxy_header(data) else {
        return;
    };
    let header = &data[..data.len() - rest.len()];
    let is_whole = match header.first_chunk() {
        // A header may contain a single line feed. The first CRLF ends the header.
        Some(b"PROXY ") => {
            let mut ends = header.windows(2).map(|pair| pair == b"\r\n");
            ends.position(|is_end| is_end) == Some(header.len() - 2)
        }
        _ => header.len() == 16 + usize::from(u16::from_be_bytes([header[14], header[15]])),
    };
    assert!(is_whole, "{header:?}");
    let followed = [header, BEHIND].concat();
    assert_eq!(fuzzing::proxy_header(&followed), Some((source, BEHIND)));
    assert_eq!(fuzzing::proxy_header(&header[..header.len() - 1]), None);
}
