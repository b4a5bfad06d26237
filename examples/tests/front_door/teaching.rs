//! The teaching examples: each runs, prints the expected output, and is short.

use crate::{files, page, program, root};

/// Runs an example in a folder of its own and returns its output.
fn printed(name: &str, arguments: &[&str]) -> String {
    let folder = std::env::temp_dir().join(format!("nic-offload-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let output = program(name).args(arguments).current_dir(&folder).output().unwrap();
    // The folder is removed before the checks, so that a failure leaves no files.
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the numbers in a line, in order.
fn numbers(line: &str) -> Vec<f64> {
    line.split(|at: char| !at.is_ascii_digit() && at != '.').filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn tls_over_nic_and_over_tokio() {
    let text = printed("tls_over_nic", &[]);
    assert_eq!(numbers(&text)[..1], [1_048_576.0], "{text}");
    assert!(numbers(&text)[1] > 60.0 && text.ends_with("software 0\n"), "{text}");
    let text = printed("tls_over_tokio", &[]);
    assert!(text.contains("NoDevice") && text.contains("hello from software") && text.contains("TLSv1_3"), "{text}");
}

#[test]
fn two_hosts_cut_and_join() {
    let text = printed("two_hosts", &[]);
    assert!(text.contains("equal: true"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let (frames, joined) = (numbers(lines[2]), numbers(lines[3]));
    assert!(frames[0] > 1400.0 && frames[1] > 20.0 && joined[0] > 20.0, "{text}");
    assert_eq!(text, printed("two_hosts", &[]), "virtual time repeats");
}

#[test]
fn loss_reduces_offload_but_loses_no_bytes() {
    let text = printed("lose_a_packet", &[]);
    // The columns are the loss, records by NIC, both and software, answers, and the share read again.
    let rows: Vec<Vec<f64>> = text.lines().skip(2).map(numbers).collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert_eq!((rows[0][2], rows[0][3], rows[0][5]), (0.0, 0.0, 0.0), "nothing was lost: {text}");
    assert!(rows.windows(2).all(|pair| pair[0][1] > pair[1][1] && pair[0][5] < pair[1][5]), "{text}");
    assert!(rows[3][4] > 0.0, "the NIC was told where a record begins: {text}");
}

#[test]
fn disks_over_a_nic_and_over_the_kernel() {
    let text = printed("nvme_read", &[]);
    assert_eq!(text.matches("written: true").count(), 2, "{text}");
    let placed: Vec<f64> = text.lines().filter(|line| line.contains("placed")).map(|line| numbers(line)[0]).collect();
    assert_eq!(placed, [0.0, 262_144.0], "{text}");
    let text = printed("nvme_disk", &[]);
    assert!(text.contains("\"kept in a file\"") && text.ends_with("there: true\n"), "{text}");
}

#[test]
fn a_tunnel_shows_nothing_but_esp() {
    let text = printed("esp_tunnel", &[]);
    assert_eq!(text.matches(": 1048576 bytes in ").count(), 2, "{text}");
    assert_eq!(text.matches(" and 0 TCP packets").count(), 2, "{text}");
}

#[test]
fn a_capture_holds_the_stream() {
    let text = printed("capture", &["wire.pcapng"]);
    assert!(text.contains("readable in Wireshark") && text.ends_with("wire.pcapng\n"), "{text}");
}

#[test]
fn an_engine_of_ones_own_works() {
    let text = printed("own_engine", &[]);
    let counted = numbers(&text);
    assert_eq!(counted[0] + counted[1], 1_048_576.0, "{text}");
    assert!(counted[0] > 1_000_000.0, "{text}");
}

#[test]
fn teaching_examples_refuse_options_and_know_help() {
    for name in TEACHING {
        let output = program(name).arg("--bogus").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.starts_with(&format!("{name}: unknown argument '--bogus'")), "{said}");
        let help = String::from_utf8(program(name).arg("--help").output().unwrap().stdout).unwrap();
        assert!(help.contains(&format!("Usage: {name}")), "{help}");
    }
}

#[test]
fn capture_keeps_an_existing_file() {
    let file = std::env::temp_dir().join(format!("nic-offload-existing-{}", std::process::id()));
    std::fs::write(&file, "precious").unwrap();
    let output = program("capture").arg(&file).output().unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    std::fs::remove_file(&file).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains(file.to_str().unwrap()), "{said}");
}

#[test]
fn teaching_examples_are_short_and_begin_with_their_docs() {
    for path in files(&root().join("examples"), &|path| path.starts_with("examples/") && path.ends_with(".rs")) {
        let is_example = path.matches('/').count() == 1 && path != "examples/lib.rs";
        if is_example {
            let (text, limit) = (page(&path), if path == "examples/own_engine.rs" { 150 } else { 100 });
            assert!(text.lines().count() <= limit, "{path} has {} lines", text.lines().count());
            assert!(text.starts_with("//! "), "{path} must begin with a sentence about its subject");
        }
    }
}

/// A reader's first builds need neither the tool nor the options of the demos.
#[test]
fn teaching_examples_build_without_the_tool() {
    let manifest = page("examples/Cargo.toml");
    for name in ["nicbench", "offload-bench", "offload-cli", "clap"] {
        assert!(!manifest.contains(&format!("\n{name}")), "examples/Cargo.toml depends on {name}");
    }
}

#[test]
fn the_readme_is_short_and_shows_an_example_whole() {
    let readme = page("README.md");
    assert!(readme.lines().count() <= 120, "README.md has {} lines", readme.lines().count());
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    // A reader's own crate has no helper for `--help`.
    let example = page("examples/tls_over_nic.rs");
    // The README shows the file without that helper.
    let lines = example.lines().filter(|line| !line.contains("offload_examples::"));
    let lines: String = lines.map(|line| format!("{line}\n")).collect();
    assert_eq!(shown, lines, "README.md shows examples/tls_over_nic.rs");
}

#[test]
fn ci_chapter_shows_a_test_that_runs() {
    let chapter = page("docs/ci.md");
    let shown = chapter.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let test = "crates/offload-testbed/tests/all/ci.rs";
    assert!(page(test).starts_with(shown), "docs/ci.md shows the beginning of {test}");
}

const TEACHING: [&str; 9] = [
    "capture",
    "esp_tunnel",
    "lose_a_packet",
    "nvme_disk",
    "nvme_read",
    "own_engine",
    "tls_over_nic",
    "tls_over_tokio",
    "two_hosts",
];
