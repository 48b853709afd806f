#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| overfly_fuzz::broker_drivers::broker_messages(data));
