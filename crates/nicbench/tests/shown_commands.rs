//! Commands of `nicbench` in pages use existing options, and sizes may have units.

#[path = "../../../examples/tests/front_door/shown.rs"]
mod shown;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn nicbench_takes_the_options_that_pages_show() {
    let mut checked = 0;
    for path in
        ["README.md", "docs/studies.md", "docs/many-machines.md", "docs/results.md", "docs/start.md", "CONTRIBUTING.md"]
    {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        for command in shown::commands(&text).filter(|command| command.contains("-p nicbench -- ")) {
            let (_, arguments) = command.split_once(" -- ").unwrap_or_else(|| panic!("{path}: {command}"));
            let words = arguments.split_whitespace();
            let subcommand: Vec<&str> = words.clone().take(1).collect();
            let help = nicbench(&[&subcommand[..], &["--help"]].concat());
            assert!(help.status.success(), "{path}: {command}");
            let options = shown::options_in(&String::from_utf8(help.stdout).unwrap());
            for option in words.filter(|word| word.starts_with("--")) {
                assert!(options.contains(option), "{path}: {command}: there is no option {option}");
            }
            checked += 1;
        }
    }
    // A parser that finds no commands would pass every page.
    assert!(checked >= 8, "only {checked} commands were found");
}

#[test]
fn loopback_commands_report_the_facts_of_their_programs() {
    for (kind, command, mode) in [
        ("tls", "ktls_loopback", "tls-nic"),
        ("nvme", "nvme_loopback", "place-check"),
        ("esp", "ipsec_loopback", "esp-packet"),
        ("quic", "quic", "quic-nic"),
    ] {
        let output = nicbench(&[kind, "--size", "1MiB", "--mode", mode, "--json"]);
        assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
        let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&facts["command"], &facts["runs"][0]["mode"]), (&command.into(), &mode.into()), "{facts}");
    }
    let refused = nicbench(&["tls", "none"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.starts_with("nicbench: none: "), "{said}");
}

#[test]
fn a_disk_of_ciphertext_is_read_by_the_nic_and_by_the_cpu() {
    let output = nicbench(&["nvme", "--size", "2MiB", "--mode", "cpu,place-check", "--xts", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let opened = |run: usize| facts["runs"][run]["counters"]["rx_nvmeotcp_opened_bytes"].as_u64();
    // The CPU mode must not use the NIC's cipher, and the NIC mode must.
    assert!(opened(0).is_none_or(|bytes| bytes == 0) && opened(1).is_some_and(|bytes| bytes > 1 << 20), "{facts}");
    // Emulation fills no buffers, so there would be nothing to decrypt.
    let refused = nicbench(&["nvme", "--mode", "emulate", "--xts"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// The chapter's table names each row's options and the number of packets that the NIC opened.
#[test]
fn quic_figures_match_the_command() {
    let page = std::fs::read_to_string(root().join("docs/quic.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| packets opened by the NIC"));
    let mut checked = 0;
    for row in rows {
        let options = row.split('`').nth(1).unwrap_or_else(|| panic!("no options: {row}"));
        let shown = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap().trim();
        let words = ["quic", "--mode", "quic-nic", "--json"].into_iter().chain(options.split_whitespace());
        let output = nicbench(&words.collect::<Vec<_>>());
        assert!(output.status.success(), "{row}: {}", String::from_utf8_lossy(&output.stderr));
        let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| facts["runs"][0]["counters"][name].as_u64().unwrap_or_default();
        let (by_nic, by_software) = (count("QuicOpenedDevice"), count("QuicOpenedSw"));
        assert_eq!(format!("{by_nic} of {}", by_nic + by_software), shown.replace(',', ""), "{row}");
        checked += 1;
    }
    assert_eq!(checked, 3, "rows of the table");
}

#[test]
fn sizes_are_written_as_people_write_them() {
    for size in ["16KiB", "16384"] {
        let output = nicbench(&["iperf", "--streams", "1", "--bytes", "1MiB", "--record-size", size, "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let facts = String::from_utf8(output.stdout).unwrap();
        assert!(facts.contains(r#""record_size":"16384""#), "{facts}");
    }
    let refused = nicbench(&["iperf", "--record-size", "17KiB"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("from 1 to 16384 bytes"), "{said}");
}

fn nicbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicbench")).args(arguments).output().unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn every_scenario_writes_csv_with_a_line_for_each_run() {
    for arguments in [&["tls", "--size", "64KiB"][..], &["iperf", "--bytes", "64KiB"], &["ipsec", "--packets", "10"]] {
        let output = nicbench(&[arguments, &["--csv"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let columns = text.lines().next().unwrap().split(',').count();
        assert!(text.lines().count() > 3 && columns > 10, "{text}");
        assert!(text.lines().all(|line| line.split(',').count() == columns), "{text}");
    }
}

#[test]
fn completions_and_the_manual_name_every_command() {
    for arguments in [&["--completions", "bash"][..], &["--manual"]] {
        let text = String::from_utf8(nicbench(arguments).stdout).unwrap();
        for word in ["iperf", "recovery", "pcap"] {
            assert!(text.contains(word), "{arguments:?}: {word}");
        }
    }
    assert_eq!(nicbench(&["--completions", "ksh"]).status.code(), Some(2));
}

/// The page's table lists the options that commands lack; every command has the others.
#[test]
fn options_of_every_command_match_the_page() {
    let page = std::fs::read_to_string(root().join("docs/studies.md")).unwrap();
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let (_, table) = page.split_once("| commands | not in their help | reason |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rows: Vec<_> = rows.map(|row| row.split('|').skip(1).take(2).map(quoted).collect::<Vec<_>>()).collect();
    let group =
        ["--json", "--csv", "--wide", "--pcap", "--trace", "--watch", "--every", "--nic", "--nic-set", "--real"];
    let commands = [
        "tls",
        "nvme",
        "esp",
        "quic",
        "pdcp",
        "iperf",
        "http",
        "fio",
        "ipsec",
        "recovery",
        "reservoir",
        "vms",
        "crypto",
        "cipher",
    ];
    // A row for an unknown command would exempt nothing and stay unnoticed.
    assert!(rows.iter().flat_map(|row| &row[0]).all(|command| commands.contains(&&command[..])), "{rows:?}");
    for command in commands {
        let help = nicbench(&[command, "--help"]);
        let options = shown::options_in(&String::from_utf8(help.stdout).unwrap());
        let absent: Vec<_> = rows.iter().filter(|row| row[0].iter().any(|name| name == command)).collect();
        for option in group {
            // `--every` is the step of `--watch`.
            let name = if option == "--every" { "--watch" } else { option };
            let is_absent = absent.iter().any(|row| row[1].iter().any(|absent| absent == name));
            assert_eq!(options.contains(option), !is_absent, "{command} {option}");
        }
    }
}

#[test]
fn tables_are_narrow_unless_wide_is_given() {
    let reservoir =
        "reservoir --scale 400 --round-trip 40ms --pacing paced --time 500ms --omit 0s --mode tls-cpu,tls-nic";
    for (command, factor, only_wide) in [
        ("http --connections 2 --requests 4", "tls-cpu", "p99.9"),
        (reservoir, "tls-cpu", "retransmits"),
        ("recovery --streams 2 --records 2", "dump", "again"),
    ] {
        let printed = |more: &[&str]| {
            let words: Vec<&str> = command.split(' ').chain(more.iter().copied()).collect();
            String::from_utf8(nicbench(&words).stdout).unwrap()
        };
        let (narrow, wide) = (printed(&[]), printed(&["--wide"]));
        assert!(narrow.lines().all(|line| line.len() <= 100) && narrow.contains(factor), "{narrow}");
        assert!(!narrow.contains(only_wide) && wide.contains(only_wide) && wide.contains("\ncounter "), "{wide}");
    }
}
