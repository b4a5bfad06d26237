//! Commands shown on pages: the examples, tests and scripts exist and accept the shown options.

use crate::shown::{commands, options_in};
use crate::{page, pages, program, root};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn every_command_that_is_shown_exists_with_its_options() {
    let mut help = BTreeMap::new();
    let manifest = ["", "demos/", "first/"].map(|folder| page(&format!("examples/{folder}Cargo.toml"))).concat();
    let mut checked = 0;
    for (path, command) in pages()
        .into_iter()
        .flat_map(|path| commands(&page(&path)).map(move |line| (path.clone(), line)).collect::<Vec<_>>())
    {
        let words: Vec<&str> = command.split_whitespace().collect();
        let [first, verb, ..] = words[..] else { continue };
        // A command with a path runs a script of this repository.
        if first.contains('/') {
            assert!(root().join(first).exists(), "{path}: {command}: there is no {first}");
        }
        // Other commands, such as curl, are not ours to check.
        if first != "cargo" || !["run", "test", "bench", "doc", "build"].contains(&verb) {
            continue;
        }
        // Words after `--` belong to the program, the others to cargo.
        let split = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        let (ours, theirs) = (&words[..split], words.get(split + 1..).unwrap_or_default());
        let value = |name: &str| ours.iter().position(|word| *word == name).and_then(|at| ours.get(at + 1)).copied();
        let of_programs =
            value("--bin").is_some_and(|name| root().join(format!("programs/src/bin/{name}.rs")).exists());
        let package = value("-p").unwrap_or(if of_programs { "offload-programs" } else { "offload-examples" });
        let folder = match package {
            "offload-examples" => Some("examples".to_owned()),
            "offload-programs" => Some("programs".to_owned()),
            _ => folder_of(package),
        };
        let folder = folder.unwrap_or_else(|| panic!("{path}: {command}: there is no package {package}"));
        for kind in ["--test", "--bench"] {
            if let Some(name) = value(kind) {
                let places = ["s/NAME.rs", "s/NAME/main.rs"].map(|place| {
                    folder.clone() + "/" + &kind[2..].replace("bench", "benche") + &place.replace("NAME", name)
                });
                assert!(
                    places.iter().any(|place| root().join(place).exists()),
                    "{path}: {command}: there is no {kind} {name}"
                );
            }
        }
        let is_example = value("--example").is_some();
        let ours =
            value("--example").filter(|_| package == "offload-examples").or(value("--bin").filter(|_| of_programs));
        if let Some(name) = ours {
            // Values of options are not checked, only the names.
            let options: Vec<&str> = theirs.iter().copied().filter(|word| word.starts_with("--")).collect();
            let exists = !is_example || manifest.contains(&format!("name = \"{name}\""));
            assert!(exists, "{path}: {command}: there is no example {name}");
            for option in options {
                let help = help.entry(name.to_owned()).or_insert_with(|| options_of(name));
                assert!(help.contains(option), "{path}: {command}: {name} has no option {option}");
            }
        } else if let Some(name) = value("--example") {
            assert!(root().join(&folder).join("examples").join(format!("{name}.rs")).exists(), "{path}: {command}");
        }
        if let Some(name) = value("--bin").filter(|_| !of_programs) {
            assert_eq!((package, name), ("nicbench", "nicbench"), "{path}: {command}");
            // Test `shown_commands` of that package checks the options.
        }
        if let Some(features) = value("--features") {
            let manifest = std::fs::read_to_string(root().join(&folder).join("Cargo.toml")).unwrap();
            for feature in features.split(',') {
                let line = format!("\n{feature} = [");
                assert!(manifest.contains(&line), "{path}: {command}: {package} has no feature {feature}");
            }
        }
        checked += 1;
    }
    assert!(checked > 30, "only {checked} commands were found");
}

/// Returns the options of an example, with the options of its subcommands.
fn options_of(name: &str) -> BTreeSet<String> {
    let text = |arguments: &[&str]| {
        let output = program(name).args(arguments).output().unwrap();
        assert!(output.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // Options of subcommands appear only in the subcommands' own help.
    let mut help = text(&["--help"]);
    let subcommands = help.split("Commands:\n").nth(1).unwrap_or_default().lines().take_while(|line| !line.is_empty());
    let names: Vec<String> = subcommands.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    for subcommand in names.iter().filter(|name| *name != "help") {
        help += &text(&[subcommand, "--help"]);
    }
    options_in(&help)
}

/// Returns the folder of a package of this workspace.
fn folder_of(package: &str) -> Option<String> {
    // Unpublished packages are not among the dependencies, but have a folder of their name.
    let mut folders = ["crates", "tests"].map(|parent| format!("{parent}/{package}")).into_iter();
    if let Some(unpublished) = folders.find(|folder| root().join(folder).exists()) {
        return Some(unpublished);
    }
    let manifest = page("Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with(&format!("{package} = {{ path")))?;
    let path = line.split("path = \"").nth(1).and_then(|rest| rest.split('"').next());
    path.map(str::to_owned)
}
