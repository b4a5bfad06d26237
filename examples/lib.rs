//! Helpers of the teaching examples, which are the files beside this one. [`teaching`] answers `--help` in them.

#![forbid(unsafe_code)]

use offload_console::{say, show};
use std::path::{Path, PathBuf};

/// Answers `--help` with `about`, and refuses all other arguments, for an example without options.
pub fn teaching(about: &str) {
    arguments(about, false);
}

/// Works like [`teaching`] for an example with an optional file name, which is returned.
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
    // A file name that begins with a dash would be taken for an option.
    let is_option = |argument: &&PathBuf| argument.as_os_str().as_encoded_bytes().starts_with(b"-");
    if given.iter().any(|argument| matches!(argument.to_str(), Some("--help" | "-h"))) {
        let usage = if takes_file { format!("{name} [FILE]") } else { name.clone() };
        let _ = show(&name, &format!("{about}\n\nUsage: {usage}\n"));
        std::process::exit(0);
    }
    let unknown = given.iter().find(is_option).or(given.get(usize::from(takes_file)));
    if let Some(unknown) = unknown {
        say!("{name}: unknown argument '{}'; --help shows the usage", unknown.display());
        std::process::exit(2);
    }
    given.into_iter().next()
}
