//! Demos of nic-offload, one file each beside this one. [`story`] is the library of `resync_story`; [`teaching`] answers
//! `--help` in the examples that teach.

#![forbid(unsafe_code)]

pub mod story;

use offload_cli::program;
use std::path::{Path, PathBuf};

/// Answers `--help` with `about`, and refuses all other arguments: the example has no options.
pub fn teaching(about: &str) {
    arguments(about, false);
}

/// As [`teaching`], but the example takes the name of a file, which is returned.
pub fn teaching_with_file(about: &str) -> Option<PathBuf> {
    arguments(about, true)
}

fn arguments(about: &str, takes_file: bool) -> Option<PathBuf> {
    let mut arguments = std::env::args_os();
    let name = arguments
        .next()
        .as_deref()
        .map(Path::new)
        .and_then(Path::file_name)
        .map_or("example".into(), |name| name.display().to_string());
    let given: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let is_option = |argument: &&PathBuf| argument.as_os_str().as_encoded_bytes().starts_with(b"-");
    if given.iter().any(|argument| matches!(argument.to_str(), Some("--help" | "-h"))) {
        let usage = if takes_file { format!("{name} [FILE]") } else { name.clone() };
        let _ = program::write_out(&name, &format!("{about}\n\nUsage: {usage}\n"));
        std::process::exit(0);
    }
    let unknown = given.iter().find(is_option).or(given.get(usize::from(takes_file)));
    if let Some(unknown) = unknown {
        let _ = program::fail(
            &name,
            &format!("unknown argument '{}'; --help shows the usage", unknown.display()),
            program::UNUSABLE,
        );
        std::process::exit(program::UNUSABLE.into());
    }
    given.into_iter().next()
}
