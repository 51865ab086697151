#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| distlock_fuzz_targets::zookeeper_values(data));
