//! The key file. See the body, which `cargo test -p ipsec --test fuzz_seeds` runs over the seeds as well.
#![no_main]

#[path = "../bodies/key_file.rs"]
mod body;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| body::run(data));
