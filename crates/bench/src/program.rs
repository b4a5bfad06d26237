//! How our programs speak: options, exit statuses, one clear line for what is wrong.

use clap::Parser;
use clap::error::ErrorKind as Wrong;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// What was run came to nothing, or not to what it should.
pub const FAILED: u8 = 1;
/// A bad option, or a file that cannot be read or written.
pub const UNUSABLE: u8 = 2;

/// The options, or what to exit with: after help, or after a line that says what is wrong with them.
///
/// # Errors
/// The exit status, when there is nothing to go on with.
pub fn options<O: Parser>(program: &str) -> Result<O, ExitCode> {
    O::try_parse().map_err(|error| {
        if error.use_stderr() {
            fail(program, &one_line(&error), UNUSABLE)
        } else {
            write_out(program, &error.to_string())
        }
    })
}

/// Says what is wrong and gives the status to exit with.
pub fn fail(program: &str, message: &str, status: u8) -> ExitCode {
    eprintln!("{program}: {message}");
    ExitCode::from(status)
}

/// Prints. Whoever reads may have heard enough: that is no failure.
pub fn write_out(program: &str, text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            fail(program, &format!("standard output: {error}"), UNUSABLE)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// What is wrong with an option, without the usage; with what may have been meant, if that is known.
///
/// ```
/// #[derive(Debug, clap::Parser)]
/// struct Options {
///     #[arg(long)]
///     seed: u64,
/// }
///
/// let error = <Options as clap::Parser>::try_parse_from(["demo", "--seed", "x"]).unwrap_err();
/// assert!(offload_bench::program::one_line(&error).starts_with("invalid value 'x' for '--seed"));
/// ```
pub fn one_line(error: &clap::Error) -> String {
    if error.kind() == Wrong::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command or an option is missing; --help tells which there are".into();
    }
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let first: Vec<&str> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let tip = lines.find(|line| line.starts_with("tip: ")).map(|tip| format!("; {tip}")).unwrap_or_default();
    first.join(" ").trim_start_matches("error: ").to_string() + &tip
}
