//! The committed code equals the code that is generated from the protocol definition. So users need
//! neither `protoc` nor a generator.

use std::{fs, path::Path};

use prost::Message as _;

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = root.join("../../proto");
    let descriptors = protox::compile(["distlock/lock/v1/lock.proto"], [&protos]).unwrap();
    let mut plain = descriptors.clone();
    // Comments are for the code.
    for file in &mut plain.file {
        file.source_code_info = None;
    }
    let encoded = plain.encode_to_vec();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .out_dir(out.path())
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .codec_path("crate::codec::BoundedCodec")
        .compile_fds(descriptors)
        .unwrap();
    let fresh = fs::read_to_string(out.path().join("distlock.lock.v1.rs")).unwrap();
    let committed = root.join("src/generated/distlock.lock.v1.rs");
    let committed_set = root.join("src/generated/distlock.lock.v1.bin");
    if std::env::var_os("DISTLOCK_REGENERATE").is_some() {
        fs::create_dir_all(committed.parent().unwrap()).unwrap();
        fs::write(&committed, &fresh).unwrap();
        fs::write(&committed_set, &encoded).unwrap();
    }
    assert!(
        fs::read_to_string(&committed).is_ok_and(|committed| committed == fresh)
            && fs::read(&committed_set).is_ok_and(|committed| committed == encoded),
        "{} is not what proto/ generates: run this test with DISTLOCK_REGENERATE=1",
        committed.display()
    );
}
