//! The entry points for readers: README, book and teaching examples. Everything that they claim, name and show exists
//! and runs.

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

/// Returns the path of every page of documentation, relative to the root.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> = files(&root(), &|path| path.ends_with(".md"));
    // Inputs for tests are no pages, and neither are files of a build.
    pages.retain(|page| !page.starts_with("target") && !page.starts_with("fuzz/corpus"));
    pages.sort();
    pages
}

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the paths, relative to the root, of the files under a folder that satisfy `is_wanted`. Hidden folders are
/// left out.
fn files(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        // Hidden folders hold no pages, and the target folder holds copies.
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

/// Returns a command that runs a program or an example. Cargo puts programs in the folder above this test's, and
/// examples beside it in `examples`.
fn program(name: &str) -> Command {
    let here = std::env::current_exe().unwrap();
    let built = here.parent().and_then(Path::parent).unwrap();
    let mut places = [built.join(name), built.join("examples").join(name)].into_iter();
    let program = places.find(|place| place.exists());
    Command::new(program.unwrap_or_else(|| panic!("{name} is not built: `cargo test --workspace` builds it")))
}
