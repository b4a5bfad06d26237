//! The device, its driver and the host's stack use engines by number and by trait: few files name a built-in engine.

use super::{files, page, root};

#[test]
fn few_files_name_a_built_in_engine() {
    let folders = ["engine", "rings", "device", "driver", "sim", "switch"].map(|name| format!("crates/nic-{name}/src"));
    let sources =
        folders.iter().map(String::as_str).chain(["crates/offload-host-stack/src"]).flat_map(|folder| {
            files(&root().join(folder), &|path| path.ends_with(".rs") && !path.ends_with("tests.rs"))
        });
    let mut foreign: Vec<String> = sources
        // This file is the driver of the IPsec function.
        .filter(|path| path != "crates/nic-driver/src/ipsec.rs")
        .filter(|path| names_an_engine(&page(path)))
        .collect();
    foreign.sort();
    assert_eq!(
        foreign,
        ["crates/nic-sim/src/accelerator.rs", "crates/nic-sim/src/lib.rs"],
        "only the assembly of a NIC may name an engine"
    );
}

#[test]
fn an_engine_is_named_by_a_part_of_an_identifier() {
    assert!(names_an_engine("    let limit = config.tls_contexts;\n"));
    assert!(names_an_engine("use offload_api::engines::NVME_TCP;\n"));
    assert!(names_an_engine("fn new() -> EspCounters;\n"));
    assert!(names_an_engine("use nic_engines::{DataKeys, Transforms};\n"));
    assert!(!names_an_engine("    // TLS over ESP\n    let quick = espresso;\n#[cfg(test)]\nuse tls;\n"));
}

/// Tests whether code, without comments and tests, has an identifier with an engine's name in it.
fn names_an_engine(source: &str) -> bool {
    // Comments and tests may name engines.
    let code =
        source.lines().take_while(|line| *line != "#[cfg(test)]").map(|line| line.split("//").next().unwrap_or(""));
    let named = |identifier: &str| {
        let parts = identifier.split('_').flat_map(words_of);
        matches!(identifier, "DataKeys" | "Transforms") || parts.into_iter().any(|part| ENGINES.contains(&&*part))
    };
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).any(named)
}

/// Splits a camel-case identifier into words in lower case.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for letter in identifier.chars() {
        if letter.is_uppercase() && was_lower {
            words.push(String::new());
        }
        was_lower = letter.is_lowercase();
        words.last_mut().unwrap().extend(letter.to_lowercase());
    }
    words
}

const ENGINES: [&str; 5] = ["tls", "nvme", "nvmeotcp", "esp", "quic"];
