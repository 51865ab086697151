//! The test vectors for clients in every language, against the messages of this crate.

use std::{fs, time::Duration};

use distlock_core::margin;
use distlock_wire::v1;
use prost::Message;
use serde_json::Value;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/vectors.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn all<'a>(vectors: &'a Value, kind: &str) -> &'a [Value] {
    vectors[kind].as_array().unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    assert!(hex.len().is_multiple_of(2), "{hex}");
    let digits: Vec<_> = hex.chars().map(|it| it.to_digit(16).unwrap()).collect();
    let pairs = digits.chunks(2).map(|it| it[0] * 16 + it[1]);
    pairs.map(|it| u8::try_from(it).unwrap()).collect()
}

/// Reads a message of this type and writes it again. Returns what was read.
fn reread<M: Message + Default>(hex: &str) -> M {
    let bytes = bytes(hex);
    let read = M::decode(&*bytes).unwrap();
    assert_eq!(read.encode_to_vec(), bytes);
    read
}

#[test]
fn messages_are_read_and_written_as_the_vectors_say() {
    let vectors = vectors();
    for vector in all(&vectors, "messages") {
        let json = &vector["json"];
        let hex = vector["hex"].as_str().unwrap();
        match vector["type"].as_str().unwrap() {
            "AcquireCall" => {
                let call: v1::AcquireCall = reread(hex);
                let told = &json["request"];
                assert_eq!(call.wait_us.to_string(), json["waitUs"]);
                let request = call.request.unwrap();
                assert_eq!(request.name, told["name"]);
                assert_eq!(request.ttl_us.to_string(), told["ttlUs"]);
                assert_eq!(request.holder, told["holder"]);
                assert_eq!(request.owner, (0..16).collect::<Vec<_>>());
            }
            "AcquireAnswer" => {
                let answer: v1::AcquireAnswer = reread(hex);
                match answer.answer.unwrap() {
                    v1::acquire_answer::Answer::Granted(grant) => {
                        assert_eq!(grant.token.to_string(), json["granted"]["token"]);
                        let valid_for = grant.valid_for_us.to_string();
                        assert_eq!(valid_for, json["granted"]["validForUs"]);
                        assert_eq!(grant.proof, [1, 2, 3]);
                    }
                    v1::acquire_answer::Answer::Busy(busy) => {
                        assert_eq!(busy.first, json["busy"]["first"]);
                        let holder = busy.holder.unwrap();
                        assert_eq!(holder.holder, json["busy"]["holder"]["holder"]);
                    }
                }
            }
            "RenewLease" => {
                let renewal: v1::RenewLease = reread(hex);
                assert_eq!(renewal.ttl_us.to_string(), json["ttlUs"]);
                assert_eq!(renewal.proof, [1, 2, 3]);
            }
            "RenewAnswer" => {
                let answer: v1::RenewAnswer = reread(hex);
                let lost = v1::LossReason::TakenOver.into();
                let expected = v1::renew_answer::Answer::NotHeld(lost);
                assert_eq!(answer.answer, Some(expected));
            }
            "ReleaseLease" => {
                let lease = reread::<v1::ReleaseLease>(hex).lease.unwrap();
                assert_eq!((&*lease.name, lease.token), ("nightly", None));
            }
            "ReleaseAnswer" => assert!(!reread::<v1::ReleaseAnswer>(hex).released),
            "Error" => {
                let error: v1::Error = reread(hex);
                assert_eq!(error.kind(), v1::error::Kind::Unavailable);
                assert_eq!(error.retry_in_us, Some(3_000_000));
            }
            other => panic!("{other} is checked nowhere"),
        }
    }
}

/// A call that did not wait has the margin of this library. The part for a wait is the client's.
#[test]
fn the_deadlines_of_the_vectors_have_the_margin_of_this_library() {
    let vectors = vectors();
    for vector in all(&vectors, "deadlines") {
        let time = |field: &str| Duration::from_micros(vector[field].as_u64().unwrap());
        let (valid_for, ttl) = (time("valid_for"), time("ttl"));
        let lease = valid_for.min(ttl);
        let waited = valid_for - lease;
        let deadline = time("sent") + valid_for - margin(lease) - waited / 1000;
        assert_eq!(deadline, time("deadline"), "{vector}");
    }
}
