//! All inputs of the committed corpora, run through their targets.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print reasons for skipping, and measurements")]

use offload_base::Seed;
use std::fs;
use std::path::Path;

#[test]
fn every_input_kept_is_still_taken() {
    for (target, run) in fuzz_bodies::TARGETS {
        // An empty input is valid for every target.
        run(&[]);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let Ok(folder) = fs::read_dir(folder) else { continue };
        for entry in folder {
            let path = entry.expect("a folder that can be read").path();
            println!("{}", path.display());
            run(&fs::read(path).expect("a file that can be read"));
        }
    }
}

#[test]
fn every_corpus_is_a_targets() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let names = fs::read_dir(corpora).expect("the corpora").map(|entry| entry.expect("a folder").file_name());
    let names: Vec<String> = names.map(|name| name.into_string().expect("a name in UTF-8")).collect();
    // A wrong path would otherwise pass.
    assert!(!names.is_empty());
    for name in names {
        assert!(fuzz_bodies::TARGETS.iter().any(|(target, _)| *target == name), "{name} is nobody's");
    }
}

#[test]
fn the_targets_of_cargo_fuzz_are_these() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    let listed: Vec<&str> = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")).collect();
    let mut listed: Vec<&str> = listed.iter().filter_map(|line| line.strip_suffix(".rs\"")).collect();
    listed.sort_unstable();
    let ours: Vec<&str> = fuzz_bodies::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, ours);
}

#[test]
fn seeded_bytes_are_taken_by_a_connection() {
    // Random inputs find faults that no corpus covers, and the seed makes them repeatable.
    let mut random = Seed(1).stream("bytes for a connection");
    for round in 0..ROUNDS {
        let mut input = vec![0; 1 + random.below(600) as usize];
        random.fill(&mut input);
        println!("round {round} of the stream of Seed(1): {} bytes", input.len());
        fuzz_bodies::host_connection::run(&input);
    }
}

#[test]
fn seeded_bytes_are_taken_by_contexts() {
    let mut random = Seed(1).stream("bytes for contexts");
    for round in 0..ROUNDS {
        let mut input = vec![0; 1 + random.below(900) as usize];
        random.fill(&mut input);
        println!("round {round} of the stream of Seed(1): {} bytes", input.len());
        fuzz_bodies::device_contexts::run(&input);
    }
}

#[test]
fn seeded_bytes_are_taken_by_a_node() {
    let mut random = Seed(1).stream("bytes for a node");
    for round in 0..ROUNDS {
        let mut input = vec![0; 1 + random.below(2000) as usize];
        random.fill(&mut input);
        println!("round {round} of the stream of Seed(1): {} bytes", input.len());
        fuzz_bodies::gtpu_datagrams::run(&input);
    }
}

#[test]
fn node_accepts_more_than_256_key_changes() {
    fuzz_bodies::gtpu_datagrams::run(&[1; 600]);
}

const ROUNDS: u32 = 2_000;
