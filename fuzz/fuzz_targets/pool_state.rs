//! `pool_state` of [`kvferry_tests::fuzz`].
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| kvferry_tests::fuzz::pool::pool_state(bytes));
