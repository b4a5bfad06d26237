//! The way in: README, book, and the examples that teach. What they claim, name and show is there, and runs.

mod book;
mod commands;
mod engines;
mod prose;
mod shown;
mod teaching;
mod types;
mod words;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Every page that a reader may come to, by its path from the root.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = files(&root(), &|path| path.ends_with(".md"));
    // Patches and inputs for tests are no pages of ours, nor is what a build leaves.
    pages.retain(|page| !page.starts_with("target") && !page.starts_with("fuzz/corpus"));
    pages.sort();
    pages
}

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Files under a folder that are wanted, by their paths from the root. Hidden folders are left out.
fn files(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        if path.file_name().unwrap().to_str().unwrap().starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path, is_wanted));
        } else if is_wanted(&name) {
            found.push(name);
        }
    }
    found
}

/// A program or an example where cargo puts it: in the folder above this test's, or beside it in `examples`.
fn program(name: &str) -> Command {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().and_then(Path::parent).unwrap();
    let mut places = [built.join(name), built.join("examples").join(name)].into_iter();
    let program = places.find(|place| place.exists());
    Command::new(program.unwrap_or_else(|| panic!("{name} is not built: `cargo test --workspace` builds it")))
}
