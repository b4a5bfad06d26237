//! The common manner of our programs: options, exit statuses, one clear line for each error.

use clap::error::ErrorKind as Wrong;
use clap::{Command, Parser, ValueEnum};
use clap_complete::Shell;
use offload_console::say;
use std::process::ExitCode;

/// Exit status after a run that failed or gave a wrong result.
pub const FAILED: u8 = 1;
/// Exit status after a bad option, or a file that cannot be read or written.
pub const UNUSABLE: u8 = 2;

/// Runs a program: parses its options and calls `run`, or prints the error in the options.
///
/// ```no_run
/// use clap::Parser;
/// use offload_cli::program;
///
/// /// Says how large a file is.
/// #[derive(Parser)]
/// struct Options {
///     file: std::path::PathBuf,
/// }
///
/// program::main("size_of", |options: &Options| match options.file.metadata() {
///     Ok(about) => program::write_out("size_of", &format!("{}\n", about.len())),
///     Err(error) => program::fail("size_of", &format!("{}: {error}", options.file.display()), program::UNUSABLE),
/// });
/// ```
pub fn main<O: Parser>(program: &'static str, run: impl FnOnce(&O) -> ExitCode) -> ExitCode {
    match options(program) {
        Ok(options) => run(&options),
        Err(status) => status,
    }
}

/// Parses the options, or prints help, completions, a man page or an error.
///
/// # Errors
/// The exit status, if the program must end.
fn options<O: Parser>(program: &'static str) -> Result<O, ExitCode> {
    // Arguments need not be UTF-8, because file names need not be.
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let command = || O::command().name(program).after_help(PAGES);
    // These two work alone, without the arguments that the program otherwise requires.
    match arguments.iter().map(|argument| argument.to_str().unwrap_or_default()).collect::<Vec<_>>()[..] {
        ["--manual"] => return Err(write_out(program, &manual(command()))),
        ["--completions", shell] => return Err(completions(program, command(), shell)),
        _ => {}
    }
    let parsed = command().try_get_matches_from(std::env::args_os());
    let parsed = parsed.and_then(|matches| O::from_arg_matches(&matches).map_err(|error| error.format(&mut command())));
    parsed.map_err(|error| {
        // clap also reports `--help` and `--version` as errors, which belong on standard output.
        if error.use_stderr() {
            fail(program, &one_line(&error), UNUSABLE)
        } else {
            write_out(program, &error.to_string())
        }
    })
}

/// Returns the man page as troff, subcommands included.
fn manual(mut command: Command) -> String {
    command.build();
    let mut page = Vec::new();
    render(&command, &mut page);
    String::from_utf8_lossy(&page).into_owned()
}

fn render(command: &Command, page: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = clap_mangen::Man::new(command.clone()).render(page);
    command.get_subcommands().filter(|command| command.get_name() != "help").for_each(|command| render(command, page));
}

fn completions(program: &str, mut command: Command, shell: &str) -> ExitCode {
    let Ok(shell) = Shell::from_str(shell, true) else {
        return fail(program, &format!("--completions {shell}: bash, elvish, fish, powershell or zsh"), UNUSABLE);
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, program, &mut script);
    write_out(program, &String::from_utf8_lossy(&script))
}

const PAGES: &str = "Alone: --completions SHELL prints completions for bash, elvish, fish, powershell or zsh; --manual prints a man page.";

/// Prints an error and returns the exit status.
pub fn fail(program: &str, message: &str, status: u8) -> ExitCode {
    say!("{program}: {message}");
    ExitCode::from(status)
}

/// Prints a text. A closed reader is no failure.
pub fn write_out(program: &str, text: &str) -> ExitCode {
    offload_console::show(program, text)
}

/// Escapes a peer's text for a terminal: all characters except printable ASCII, and the backslash.
///
/// ```
/// assert_eq!(offload_cli::program::shown("disk 1\u{1b}]0;owned\u{7}"), "disk 1\\u{1b}]0;owned\\u{7}");
/// ```
pub fn shown(text: &str) -> String {
    let escaped = |character: char| {
        let plain = (character == ' ' || character.is_ascii_graphic()) && character != '\\';
        let (plain, escaped) = if plain { (Some(character), None) } else { (None, Some(character.escape_default())) };
        plain.into_iter().chain(escaped.into_iter().flatten())
    };
    text.chars().flat_map(escaped).collect()
}

/// Formats an error in the options as one line without the usage, with clap's suggestion if there is one.
///
/// ```
/// #[derive(Debug, clap::Parser)]
/// struct Options {
///     #[arg(long)]
///     seed: u64,
/// }
///
/// let error = <Options as clap::Parser>::try_parse_from(["demo", "--seed", "x"]).unwrap_err();
/// assert!(offload_cli::program::one_line(&error).starts_with("invalid value 'x' for '--seed"));
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

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn peer_text_is_escaped_for_terminals() {
        assert_eq!(shown("nqn.2026-01.test:disk 1 'a' \"b\""), "nqn.2026-01.test:disk 1 'a' \"b\"");
        // Escape, bell, a C1 control, a newline, a right-to-left override, a backslash.
        let hostile = "\u{1b}[2J\u{7}\u{9b}31m\n\u{202e}txt\\u{1b}";
        assert_eq!(shown(hostile), "\\u{1b}[2J\\u{7}\\u{9b}31m\\n\\u{202e}txt\\\\u{1b}");
        assert!(
            shown(&(0..0x3000).filter_map(char::from_u32).collect::<String>())
                .bytes()
                .all(|b| (b' '..=b'~').contains(&b))
        );
    }
}
