//! Passes the source's commit, the compiler and the build settings to the program. Without `git`, or outside a
//! checkout, the commit is unknown.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let git = |arguments: &[&str]| output(Command::new("git").arg("-C").arg(&workspace).args(arguments));
    // A copy of this package may be in another project's repository.
    let is_ours = git(&["ls-files", "--error-unmatch", "crates/nicbench/build.rs"]).is_some();
    let ours = |arguments: &[&str]| if is_ours { git(arguments) } else { None };
    let commit = ours(&["rev-parse", "--short=12", "HEAD"]);
    // Untracked files are ignored: results and notes do not change the program.
    let changes = ours(&["status", "--porcelain", "--untracked-files=no", "--", "crates", "Cargo.toml", "Cargo.lock"]);
    set("COMMIT", commit.as_deref().unwrap_or(""));
    set("DIRTY", &changes.is_some_and(|changes| !changes.is_empty()).to_string());
    set("RUSTC", &output(Command::new(variable("RUSTC")).arg("--version")).unwrap_or_default());
    set("TARGET", &variable("TARGET"));
    // The folder of a profile's artifacts: OUT_DIR is PROFILE/build/PACKAGE/out.
    let profile = Path::new(&variable("OUT_DIR")).ancestors().nth(3).and_then(Path::file_name).map(ToOwned::to_owned);
    set("PROFILE", &profile.unwrap_or_default().to_string_lossy());
    let features = env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()));
    let mut features: Vec<String> = features.collect();
    features.sort();
    set("FEATURES", &features.join(","));
    // Runs again after a commit, or a change of any crate.
    let head = git(&["rev-parse", "--git-path", "logs/HEAD"]).map(|head| workspace.join(head));
    let sources = fs::read_dir(workspace.join("crates")).into_iter().flatten().flatten();
    let sources = sources.flat_map(|entry| ["src", "Cargo.toml", "build.rs"].map(|name| entry.path().join(name)));
    let locks = ["Cargo.toml", "Cargo.lock"].map(|name| workspace.join(name));
    let sources = sources.chain(locks).chain(head).filter(|path| path.exists());
    sources.for_each(|path| println!("cargo::rerun-if-changed={}", path.display()));
    println!("cargo::rerun-if-changed=build.rs");
}

fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=NICBENCH_{name}={value}");
}
