//! The bodies of the fuzz targets, over the inputs that are kept.

#[path = "../../../fuzz/bodies/esp_input.rs"]
mod esp_input;
#[path = "../../../fuzz/bodies/key_file.rs"]
mod key_file;

use std::path::Path;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut inputs: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(inputs.len() >= 3, "seeds are there");
    for input in inputs {
        eprintln!("{}", input.display());
        body(&std::fs::read(&input).unwrap());
    }
}

#[test]
fn esp_input_over_its_seeds() {
    replay("esp_input", esp_input::run);
}

#[test]
fn key_file_over_its_seeds() {
    replay("key_file", key_file::run);
}
