#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz_bodies::tc_filters::run(input));
