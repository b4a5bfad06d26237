//! `nicbench` from its user's point of view.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GRID: &str = r#"
    [[study]]
    name = "small"
    command = "iperf"
    fixed = { bytes = "64KiB" }
    grid = { mode = ["tcp", "tls-nic"], streams = [1, 2] }
    plot = { x = "streams", series = "mode", y = ["goodput_gbps"] }
"#;

#[test]
fn repeated_run_reports_the_same_facts() {
    let facts = || {
        let arguments =
            ["iperf", "--json", "--streams", "3", "--bytes", "100000", "--mode", "tls-nic", "--loss", "0.02"];
        let output = nicbench(&arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let (one, other) = (facts(), facts());
    assert_eq!((&one["command"], &one["seed"], &one["clock"]), (&"iperf".into(), &1.into(), &"virtual".into()));
    let run = &one["runs"][0];
    assert_eq!((&run["mode"], &run["bytes"], &run["sha256_ok"]), (&"tls-nic".into(), &300_000.into(), &true.into()));
    // CPU times differ from run to run; these fields may not.
    for field in ["goodput_gbps", "packets", "counters", "dma_bytes", "fairness", "seconds"] {
        assert_eq!(run[field], other["runs"][0][field], "{field}");
    }
}

#[test]
fn every_command_reports_its_runs_in_the_same_fields() {
    let commands: [&[&str]; 5] = [
        &["iperf", "--bytes", "64KiB", "--mode", "tcp"],
        &["http", "--connections", "2", "--requests", "4", "--mode", "tcp"],
        &["fio", "--operations", "4", "--mode", "tcp"],
        &["ipsec", "--packets", "10", "--mode", "plain"],
        &["recovery", "--streams", "2", "--records", "2"],
    ];
    for command in commands {
        let output = nicbench(&[command, &["--json", "--seed", "3"]].concat());
        let facts: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&facts["command"], &facts["seed"]), (&command[0].into(), &3.into()));
        let run = &facts["runs"][0];
        assert_eq!(run["sha256_ok"], true, "{command:?}");
        for field in ["mode", "bytes", "goodput_gbps", "device_ns_per_byte", "packets", "counters", "dma_bytes"] {
            assert!(!run[field].is_null(), "{command:?}: {field}");
        }
        for field in ["tx_host_ns_per_byte", "rx_host_ns_per_byte"] {
            assert!(run[field]["total"].is_number(), "{command:?}: {field}");
        }
    }
}

/// Small runs of every command that has NICs.
const WITH_NICS: [&[&str]; 13] = [
    &["tls", "--size", "256KiB", "--mode", "tls-nic"],
    &["nvme", "--size", "256KiB", "--mode", "place-check"],
    &["esp", "--size", "256KiB", "--mode", "esp-packet"],
    &["quic", "--size", "256KiB", "--mode", "quic-nic"],
    &["pdcp", "--size", "256KiB", "--mode", "pdcp-nic"],
    &["iperf", "--bytes", "256KiB", "--mode", "tls-nic"],
    &["http", "--connections", "2", "--requests", "4", "--mode", "tls-nic"],
    &["fio", "--operations", "16", "--mode", "tcp"],
    &["ipsec", "--packets", "100", "--mode", "esp-packet"],
    &["recovery", "--streams", "2", "--records", "4"],
    &["reservoir", "--scale", "400", "--round-trip", "40ms", "--pacing", "paced", "--time", "500ms", "--omit", "0s"],
    &["vms", "--size", "256KiB", "--vms", "1", "--mode", "overlay-esp"],
    &["crypto", "--way", "inline", "--bytes", "256KiB"],
];

/// Returns the facts of a command without the fields that hold CPU time.
fn facts_of(command: &[&str], more: &[&str]) -> Value {
    let output = nicbench(&[command, more, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{command:?} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
    let mut facts: Value = serde_json::from_slice(&output.stdout).unwrap();
    for run in facts["runs"].as_array_mut().unwrap() {
        let run = run.as_object_mut().unwrap();
        run.retain(|name, _| {
            !TIMED.contains(&&name[..]) && !name.starts_with("host_") && !name.ends_with("_host_ns_per_byte")
        });
        run.remove("target_ns_per_byte");
    }
    facts
}

#[test]
fn nic_file_of_default_values_changes_no_row() {
    let directory = scratch("default_nic");
    for command in WITH_NICS {
        let usual = facts_of(command, &[]);
        let values = usual["nic"].as_object().unwrap();
        assert!(values.len() > 20, "{command:?}: {values:?}");
        // The functions of virtual machines have their own ring size.
        let values = values.iter().filter(|(name, _)| command[0] != "vms" || *name != "receive_ring");
        let lines: String = values.map(|(name, value)| format!("{name} = {value}\n")).collect();
        let file = directory.join(format!("{}.toml", command[0]));
        fs::write(&file, lines).unwrap();
        assert_eq!(facts_of(command, &["--nic", text(&file)]), usual, "{command:?}");
        let other = facts_of(command, &["--nic-set", "delays.dma=40us", "--nic-set", "lro=false"]);
        assert_ne!(other["runs"], usual["runs"], "{command:?}");
        assert_eq!(other["nic"]["delays.dma"], "40us", "{command:?}");
    }
}

#[test]
fn every_command_with_a_wire_is_captured_traced_and_watched() {
    let directory = scratch("observed");
    let with_wire = WITH_NICS.iter().filter(|command| command[0] != "crypto");
    for command in with_wire {
        let at = |extension: &str| directory.join(command[0]).with_extension(extension);
        let (wire, timeline) = (at("pcapng"), at("pftrace"));
        let observers = ["--pcap", text(&wire), "--trace", text(&timeline), "--watch"];
        let output = nicbench(&[command, &observers[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{command:?}: {said}");
        assert!(said.contains(" Gb/s  retransmits ") && said.contains(" events, "), "{command:?}: {said}");
        assert!(fs::metadata(&wire).unwrap().len() > 10_000, "{command:?}: frames are captured");
        assert!(fs::metadata(&timeline).unwrap().len() > 1000, "{command:?}");
    }
    // Runs of one mode are distinguished by their other varying option.
    let wire = directory.join("wire.pcapng");
    let output = nicbench(&["vms", "--size", "64KiB", "--vms", "2", "--mode", "plain", "--pcap", text(&wire)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for name in ["wire-plain-1.pcapng", "wire-plain-2.pcapng"] {
        assert!(fs::metadata(directory.join(name)).unwrap().len() > 10_000, "{name}");
    }
}

#[test]
fn killed_sweep_makes_only_missing_runs() {
    let directory = scratch("sweep");
    let (grid, results) = (directory.join("grid.toml"), directory.join("grid.jsonl"));
    fs::write(&grid, GRID).unwrap();
    assert_eq!(nicbench(&["sweep", text(&grid)]).status.code(), Some(0));
    let whole = fs::read_to_string(&results).unwrap();
    assert_eq!(whole.lines().count(), 4);
    // The file ends in the middle of the third row.
    // A kill can leave any prefix of a row.
    let third = whole.lines().take(2).map(|line| line.len() + 1).sum::<usize>();
    fs::write(&results, &whole[..third + 40]).unwrap();
    let output = nicbench(&["sweep", text(&grid), "--jobs", "1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 new runs, 2 already present"), "{output:?}");
    let after = fs::read_to_string(&results).unwrap();
    // Complete rows must be kept byte by byte, because they may have taken hours.
    assert_eq!(after[..third], whole[..third]);
    let commands = |text: &str| {
        let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["arguments"].to_string());
        let mut rows: Vec<_> = rows.collect();
        rows.sort();
        rows
    };
    assert_eq!(commands(&after), commands(&whole));

    let (page, pictures) = (directory.join("page.html"), directory.join("pictures"));
    let to = ["--html", text(&page), "--svg", text(&pictures), "--csv", text(&pictures)];
    let output = nicbench(&[&["report", text(&results)][..], &to].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let values = fs::read_to_string(pictures.join("small-goodput_gbps.csv")).unwrap();
    assert!(values.starts_with("streams,line,machine,median,") && values.lines().count() == 5, "{values}");
    // Rows of another build cause a warning.
    let row: Value = serde_json::from_str(whole.lines().next().unwrap()).unwrap();
    assert!(!row["build"]["rustc"].as_str().unwrap().is_empty() && row["machine"]["processor"].is_string(), "{row}");
    let (mixed, commit) = (directory.join("mixed.jsonl"), row["build"]["commit"].to_string());
    fs::write(&mixed, whole.replacen(&format!("\"commit\":{commit}"), "\"commit\":\"0123\"", 1)).unwrap();
    let output = nicbench(&["sweep", text(&grid), "--out", text(&mixed)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("of 2 builds") && said.contains("0123") && said.contains("another --out"), "{said}");
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("4 runs, virtual time") && html.contains("<svg"), "{html}");
    // The page must work offline and from any place.
    assert!(!html.contains("href=") && !html.contains("src="), "nothing comes from elsewhere");
    assert!(fs::read_to_string(pictures.join("small-goodput_gbps.svg")).unwrap().starts_with("<svg"));

    // A page never overwrites its inputs, under any of their names.
    let (other, kept) = (directory.join("other"), fs::read(&results).unwrap());
    fs::hard_link(&results, &other).unwrap();
    for html in [&other, &grid] {
        let output = nicbench(&["report", text(&results), "--html", text(html), "--grid", text(&grid)]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains("is to be read and written"), "{html:?}: {said}");
    }
    assert!(fs::read(&results).unwrap() == kept && fs::read_to_string(&grid).unwrap() == GRID);

    // Another grid of the same name decides the plots, and rows outside of this grid are reported.
    fs::write(&grid, GRID.replace("goodput_gbps", "fairness").replace("[1, 2]", "[2, 3]")).unwrap();
    let output = nicbench(&["sweep", text(&grid)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("2 new runs, 4 already present") && said.contains("2 of them are not of this grid"),
        "{said}"
    );
    let output =
        nicbench(&["report", text(&results), "--html", text(&page), "--grid", text(&grid), "--svg", text(&pictures)]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(pictures.join("small-fairness.svg").exists());
}

/// A sweep made in parts and merged equals a sweep of one machine, except for CPU times.
#[test]
fn merged_parts_equal_a_whole_sweep() {
    let directory = scratch("parts");
    let (grid, whole) = (directory.join("grid.toml"), directory.join("whole.jsonl"));
    fs::write(&grid, GRID).unwrap();
    assert_eq!(nicbench(&["sweep", text(&grid), "--out", text(&whole), "--jobs", "1"]).status.code(), Some(0));
    let out = directory.join("grid.jsonl");
    let parts: Vec<PathBuf> = (1..=3).map(|part| directory.join(format!("grid.{part}-of-3.jsonl"))).collect();
    let merge = || nicbench(&["merge", text(&parts[0]), text(&parts[1]), text(&parts[2]), "--out", text(&out)]);
    // A share of 0.5 of four points: two points are made by two parts.
    let part = |of: &str| nicbench(&["sweep", text(&grid), "--shard", of, "--overlap", "0.5"]);
    for number in 1..=3 {
        let output = part(&format!("{number}/3"));
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    // A part of a machine that was lost in mid-run: the merge reports the missing points, with the command that makes
    // them.
    let first = fs::read_to_string(&parts[0]).unwrap();
    // The part has at least one row besides its header, so that the cut removes something.
    assert!(first.lines().count() > 1);
    let (header, _) = first.split_once('\n').unwrap();
    fs::write(&parts[0], format!("{header}\n{}", &first[header.len() + 1..][..40])).unwrap();
    let output = merge();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && !out.exists(), "{said}");
    assert!(
        said.contains("nicbench sweep ") && said.contains("--shard 1/3 ") && !said.contains("--shard 2/3"),
        "{said}"
    );
    assert_eq!(part("1/3").status.code(), Some(0));
    let output = merge();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("4 points of 3 parts; 2 were made twice, and are equal in virtual time"), "{said}");
    assert_eq!(virtual_facts(&out), virtual_facts(&whole));

    // A machine that computes differently: one counter of a shared point is changed.
    let shared = parts.iter().enumerate().flat_map(|(at, file)| {
        let rows = fs::read_to_string(file).unwrap();
        rows.lines()
            .skip(1)
            .map(|row| (serde_json::from_str::<Value>(row).unwrap()["point"].as_u64(), at))
            .collect::<Vec<_>>()
    });
    let shared: Vec<_> = shared.collect();
    let twice = |point| shared.iter().filter(|(other, _)| *other == point).count() == 2;
    let (point, at) = *shared.iter().find(|(point, _)| twice(*point)).unwrap();
    let kept = fs::read_to_string(&parts[at]).unwrap();
    // The processor's name differs too, so that the message can be checked for both machines.
    let wrong = kept.lines().map(|line| {
        let mut row: Value = serde_json::from_str(line).unwrap();
        if row["point"].as_u64() == point && row.get("run").is_some() {
            row["run"]["counters"]["tx_packets"] = 1.into();
            row["machine"]["processor"] = "another".into();
        }
        row.to_string() + "\n"
    });
    fs::write(&parts[at], wrong.collect::<String>()).unwrap();
    fs::remove_file(&out).unwrap();
    let output = merge();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && !out.exists(), "{said}");
    assert!(said.contains("do not agree") && said.contains("counters.tx_packets differ between"), "{said}");
    assert!(said.contains("another, "), "{said}");

    // Files that are not parts of one sweep.
    let others = directory.join("others.toml");
    fs::write(&others, GRID.replace("[1, 2]", "[2, 3]")).unwrap();
    assert_eq!(nicbench(&["sweep", text(&others), "--shard", "2/3", "--overlap", "0.5"]).status.code(), Some(0));
    let other = directory.join("others.2-of-3.jsonl");
    for (files, status, why) in [
        ([text(&parts[0]), text(&other)], 1, "they are of different grids"),
        ([text(&parts[0]), text(&whole)], 2, "does not say which part of a sweep it is"),
    ] {
        let output = nicbench(&["merge", files[0], files[1], "--out", text(&out)]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(status) && said.contains(why), "{said}");
    }
    let output = nicbench(&["sweep", text(&grid), "--out", text(&parts[1])]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is for part 2 of 3 only"), "{output:?}");
}

/// Every field of every command must be equal in two runs, or be listed as CPU time.
#[test]
fn parts_agree_on_every_field_but_cpu_times() {
    let directory = scratch("fields");
    let grid = directory.join("grid.toml");
    let studies = [
        ("iperf", r#"bytes = "256KiB", streams = 2"#, r#""tls-nic""#),
        ("http", r#"connections = 2, requests = 8"#, r#""tls-cpu""#),
        ("fio", r#"operations = 16, disk-size = "1MiB", ddgst = true"#, r#""tcp""#),
        ("ipsec", r#"packets = 100, sas = 2"#, r#""esp-packet""#),
        ("quic", r#"size = "256KiB""#, r#""quic-nic""#),
        ("vms", r#"size = "256KiB", vms = 1"#, r#""overlay-esp""#),
    ];
    let study = |(command, fixed, mode): &(&str, &str, &str)| {
        format!(
            "[[study]]\nname = \"{command}\"\ncommand = \"{command}\"\nfixed = {{ {fixed} }}\n\
             grid = {{ mode = [{mode}], seed = [1], nic.delays.dma = [\"600ns\"] }}\nplot = {{ x = \"seed\", series = \"mode\", y = [\"goodput_gbps\"] }}\n"
        )
    };
    let recovery = "[[study]]\nname = \"recovery\"\ncommand = \"recovery\"\nfixed = { streams = 2, records = 2, share = 0.01 }\n\
                    grid = { trouble = [\"loss\"], seed = [1], nic.lro = [true] }\nplot = { x = \"seed\", series = \"trouble\", y = [\"full\"] }\n";
    fs::write(&grid, studies.iter().map(study).collect::<String>() + recovery).unwrap();
    let parts: Vec<PathBuf> = (1..=2).map(|part| directory.join(format!("grid.{part}-of-2.jsonl"))).collect();
    for part in ["1/2", "2/2"] {
        // With a full overlap both parts make every point, so the merge compares every field.
        let output = nicbench(&["sweep", text(&grid), "--shard", part, "--overlap", "1"]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    let out = directory.join("grid.jsonl");
    let output = nicbench(&["merge", text(&parts[0]), text(&parts[1]), "--out", text(&out)]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("7 points of 2 parts; 7 were made twice"), "{said}");
    let rows = fs::read_to_string(&out).unwrap();
    // A grid may draw each of these fields.
    let study = |row: &str| {
        let row: Value = serde_json::from_str(row).unwrap();
        let (name, fields) =
            (row["study"].as_str().unwrap(), row["run"].as_object().unwrap().keys().collect::<Vec<_>>());
        let series = if name == "recovery" { "trouble = [\"loss\"]" } else { "mode = [\"tcp\"]" };
        let series_name = series.split(' ').next().unwrap();
        format!(
            "[[study]]\nname = \"{name}\"\ncommand = \"{name}\"\ngrid = {{ {series}, seed = [1] }}\n\
             plot = {{ x = \"seed\", series = \"{series_name}\", y = {fields:?} }}\n"
        )
    };
    nicbench::sweep::Sweep::parse(&rows.lines().map(study).collect::<String>()).unwrap();
    // A field that no run has any more must leave the list.
    for field in TIMED {
        assert!(rows.contains(&format!("\"{field}\":")), "no run has {field}");
    }
}

#[test]
fn scheduler_variables_select_the_part() {
    let directory = scratch("scheduler");
    let grid = directory.join("grid.toml");
    fs::write(&grid, GRID).unwrap();
    let sweep = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_nicbench"));
        program.args(["sweep", text(&grid)]).args(arguments).envs(variables.iter().copied()).output().unwrap()
    };
    let output = sweep(&["--shard", "auto/4"], &[("HQ_TASK_ID", "1")]);
    assert!(output.status.code() == Some(0) && directory.join("grid.2-of-4.jsonl").exists(), "{output:?}");
    let output = sweep(&["--shard", "auto"], &[]);
    assert!(
        output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("no scheduler"),
        "{output:?}"
    );
    assert_eq!(sweep(&[], &[]).status.code(), Some(0));
    let (costs, whole) = (directory.join("costs.jsonl"), directory.join("grid.jsonl"));
    fs::rename(whole, &costs).unwrap();
    let output = sweep(&["--shard", "1/2", "--costs", text(&costs)], &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let output = sweep(&["--shard", "2/2", "--costs", text(&directory.join("none"))], &[]);
    assert!(output.status.code() == Some(2), "{output:?}");
    // A job can be printed. A missing scheduler program is reported.
    let output = sweep(&["--submit", "slurm", "--shards", "4", "--print"], &[]);
    assert!(
        String::from_utf8_lossy(&output.stdout).starts_with("#!/bin/sh\n#SBATCH --job-name=nicbench-grid\n"),
        "{output:?}"
    );
    let output = sweep(&["--submit", "k8s", "--shards", "4"], &[("PATH", "/nonexistent")]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("kubectl") && said.contains("--print"), "{said}");
}

/// Returns the rows of a results file, in order, without machine-dependent fields.
fn virtual_facts(file: &Path) -> Vec<String> {
    let mut rows: Vec<Value> =
        fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    rows.sort_by_key(|row| row["point"].as_u64());
    for row in &mut rows {
        for of_machine in ["machine", "seconds"] {
            row.as_object_mut().unwrap().remove(of_machine);
        }
        for field in TIMED {
            row["run"].as_object_mut().unwrap().remove(field);
        }
    }
    rows.iter().map(Value::to_string).collect()
}

/// Fields of runs that hold CPU time.
const TIMED: [&str; 15] = [
    "client_us_per_request",
    "copy_crc_share",
    "device_ns_per_byte",
    "host_us_per_operation",
    "hypervisors_ns_per_byte",
    "rx_guests_ns_per_byte",
    "rx_host_ns_per_byte",
    "rx_ns_per_packet",
    "rx_packets_per_cpu_second",
    "server_us_per_request",
    "target_us_per_operation",
    "tx_guests_ns_per_byte",
    "tx_host_ns_per_byte",
    "tx_ns_per_packet",
    "tx_packets_per_cpu_second",
];

#[test]
fn bad_options_give_one_line_and_status_2() {
    let directory = scratch("wrong");
    let wrong_option = directory.join("wrong.toml");
    fs::write(&wrong_option, GRID.replace("bytes", "bites")).unwrap();
    let (all_modes, wrong_key) = (directory.join("all.toml"), directory.join("key.toml"));
    fs::write(
        &all_modes,
        GRID.replace("mode =", "queues =").replace("[\"tcp\", \"tls-nic\"]", "[1]").replace("\"mode\"", "\"queues\""),
    )
    .unwrap();
    fs::write(&wrong_key, GRID.replace("command", "comand")).unwrap();
    let unknown_figure = directory.join("figure.toml");
    fs::write(&unknown_figure, GRID.replace("gbps\"] }", "gbps\"], published = { goodput_gbps = \"x21\" } }")).unwrap();
    let no_field = directory.join("field.toml");
    fs::write(&no_field, GRID.replace("goodput_gbps", "nonsense")).unwrap();
    let rubbish = directory.join("rubbish.jsonl");
    fs::write(&rubbish, "rubbish\n{}\n").unwrap();
    let (nic, nic_grid) = (directory.join("nic.toml"), directory.join("nic_grid.toml"));
    fs::write(&nic, "lro = true\n[delays]\ndna = 1\n").unwrap();
    fs::write(&nic_grid, GRID.replace("streams = [1, 2]", "streams = [1], nic.tls.colour = [1]")).unwrap();
    // Each command line is wrong in one way; the message must name the culprit.
    let cases: [(&[&str], &str); 26] = [
        (&[], "--help"),
        (&["iperf", "--loss", "-1"], "--loss"),
        (&["iperf", "--time", "0"], "--time"),
        (&["iperf", "--bytes", "0"], "--bytes"),
        (&["iperf", "--stream", "8"], "'--streams'"),
        (&["sweep", text(&all_modes)], "makes 3 runs"),
        (&["sweep", text(&wrong_key)], "line 4: unknown field `comand`"),
        (&["sweep", text(&unknown_figure)], "`x21`"),
        (&["sweep", text(&no_field)], "field.toml: study `small`, plot.y: runs of `iperf` have no field `nonsense`"),
        (&["report", text(&rubbish), "--published", text(&wrong_key)], "unknown field `study`"),
        (&["report", text(&rubbish), "--published", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["report", text(&rubbish), "--grid", text(&unknown_figure)], "`x21`"),
        (&["iperf", "--loss", "2"], "--loss"),
        (&["sweep", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["sweep", text(&wrong_option)], "bites"),
        (&["report", text(&rubbish)], "line 1"),
        (&["report"], "RESULTS"),
        (&["iperf", "--nic", text(&nic)], "nic.toml' for '--nic <FILE>': line 3: a NIC has no value `delays.dna`"),
        (&["sweep", text(&nic_grid)], "nic_grid.toml: study `small`"),
        (&["vms", "--nic", text(&nic)], "nic.toml' for '--nic <FILE>': line 3: a NIC has no value `delays.dna`"),
        (&["extcap", "--nic", text(&nic)], "line 3: a NIC has no value `delays.dna`"),
        (&["crypto", "--nic-set", "lro=1"], "'--nic-set <KEY=VALUE>': lro: true or false"),
        (&["crypto", "--pcap", "wire.pcapng"], "unexpected argument '--pcap'"),
        (&["cipher", "--nic", text(&nic)], "unexpected argument '--nic'"),
        (&["recovery", "--real"], "unexpected argument '--real'"),
        (&["reservoir", "--wide", "--csv"], "'--wide' cannot be used with '--csv'"),
    ];
    for (arguments, about) in cases {
        let output = nicbench(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
        // One line: programs and logs show errors next to other messages.
        assert!(said.contains(about) && said.lines().count() == 1, "{arguments:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn file_names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"/nonexistent/caf\xe9");
    let output = Command::new(env!("CARGO_BIN_EXE_nicbench")).arg("tls").arg(name).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said.contains("/nonexistent/caf") && said.lines().count() == 1, "{said}");
}

#[test]
fn wireshark_captures_a_run_with_its_secrets() {
    let list = nicbench(&["extcap", "--extcap-interfaces", "--extcap-version=4.4"]);
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(
        list.starts_with("extcap {version=") && list.contains("\ninterface {value=nicbench-tls-nic}{display="),
        "{list}"
    );
    let of_tls = ["extcap", "--extcap-interface", "nicbench-tls-nic"];
    let dlts = nicbench(&[&of_tls[..], &["--extcap-dlts"]].concat());
    assert_eq!(String::from_utf8_lossy(&dlts.stdout), "dlt {number=1}{name=EN10MB}{display=Ethernet}\n");
    let config = nicbench(&[&of_tls[..], &["--extcap-config"]].concat());
    for (number, line) in String::from_utf8(config.stdout).unwrap().lines().enumerate() {
        assert!(line.starts_with(&format!("arg {{number={number}}}{{call=--")), "{line}");
    }
    let filtered = nicbench(&[&of_tls[..], &["--extcap-capture-filter", "port 1"]].concat());
    assert_eq!(filtered.status.code(), Some(2), "{filtered:?}");

    if Command::new("tshark").arg("--version").output().is_err() {
        eprintln!("SKIPPED: tshark is not here (apt-get install tshark); nobody reads the fifo");
        return;
    }
    // Wireshark passes a fifo, which the reader must open before the writer can.
    let fifo = scratch("extcap").join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut writer = Command::new(env!("CARGO_BIN_EXE_nicbench"))
        .args([&of_tls[..], &["--capture", "--size", "100000", "--fifo", text(&fifo)]].concat())
        .spawn()
        .unwrap();
    let reader = Command::new("tshark")
        .args(["-r", "-", "-Y", "tls.app_data", "-T", "fields", "-e", "tls.app_data"])
        .stdin(fs::File::open(&fifo).unwrap())
        .output()
        .unwrap();
    assert!(writer.wait().unwrap().success());
    // Application data shown by tshark was decrypted: `ready`, `go`, and all sent bytes.
    let shown = reader.stdout.len();
    assert!(shown > 100_000, "{reader:?}");
}

#[test]
fn built_in_grids_name_known_figures() {
    let ids: Vec<String> = offload_bench::published::figures().into_iter().map(|figure| figure.id).collect();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("sweeps")).unwrap() {
        let sweep = nicbench::sweep::Sweep::parse(&fs::read_to_string(file.unwrap().path()).unwrap()).unwrap();
        for study in &sweep.studies {
            for (field, id) in &study.plot.published {
                assert!(study.plot.y.contains(field) && ids.contains(id), "{}: {field}, {id}", study.name);
            }
        }
    }
}

fn nicbench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nicbench")).args(arguments).output().unwrap()
}

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _there_was_none = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
