//! The agent: `linux-mirror sa PATH` runs beside a keying daemon, `linux-mirror tc PATH` beside `tc`; each mirrors what the kernel has.

use linux_mirror::{Agent, supervise};
use offload_console::{say, show};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    // The program and both commands take the options that print a page.
    if let Some(text) = std::env::args_os().skip(1).find_map(|argument| page(argument.to_str()?)) {
        return show("linux-mirror", text);
    }
    let command = arguments.next();
    match command.as_ref().and_then(|command| command.to_str()) {
        Some("sa") => run("linux-mirror sa", false, arguments, |path, _| Agent::of_sas(path)),
        Some("tc") => run("linux-mirror tc", true, arguments, Agent::of_filters),
        _ => misused("give a command: sa or tc"),
    }
}

/// Parses a command's arguments and mirrors until the process is killed, or once.
fn run(
    program: &str,
    counts: bool,
    mut arguments: impl Iterator<Item = OsString>,
    connect: impl Fn(&Path, Option<&Path>) -> std::io::Result<Agent>,
) -> ExitCode {
    let (mut counters, mut paths, mut again) = (None, Vec::new(), true);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--once") => again = false,
            Some("--counters") if counts => {
                match arguments.next().filter(|file| !file.as_encoded_bytes().starts_with(b"-")) {
                    Some(file) => counters = Some(PathBuf::from(file)),
                    None => return misused("--counters needs a FILE"),
                }
            }
            Some(option) if option.starts_with('-') => return misused(&format!("{program} has no option {option}")),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    match &paths[..] {
        [path] => supervise(program, path, again, || {
            connect(path, counters.as_deref()).map_or_else(|error| error, Agent::run)
        }),
        _ => misused("give one PATH"),
    }
}

/// Returns the page that an option prints, if it prints one.
fn page(option: &str) -> Option<&'static str> {
    match option {
        "--help" | "-h" => Some(HELP),
        "--version" | "-V" => Some(concat!("linux-mirror ", env!("CARGO_PKG_VERSION"), "\n")),
        _ => None,
    }
}

fn misused(fault: &str) -> ExitCode {
    say!("linux-mirror: {fault}\n{}", HELP.trim_end());
    ExitCode::from(2)
}

const HELP: &str = "\
Mirrors SAs, policies or filters of this Linux to an emulated NIC, so that the programs of this Linux control the NIC.

Usage: linux-mirror sa [--once] PATH
       linux-mirror tc [--once] [--counters FILE] PATH

  sa  SAs and policies, which a keying daemon or `ip xfrm` makes. Needs CAP_NET_ADMIN, and sends keys: processes that
      may open PATH learn them.
  tc  Flower filters, which tc or Open vSwitch makes, to the NIC's switch. Filters of devices are mirrored that are
      called as the switch's: p0, pf0vf0, vxlan0, and Open vSwitch's own tunnel devices.

PATH is the Unix socket that the NIC's program listens at (--mirror PATH, --filters PATH), or the virtio-serial port of
a guest (/dev/vport0p1).

  --counters FILE  Where to write what each rule did in the switch
  --once           End when the other end goes, instead of waiting for it
  --version        Show the version

Without --once it goes on until it is killed, even if nothing can be written to standard error.

Exit status: 1 if, with --once, the other end goes or cannot be reached; 2 if the command or PATH is missing, or an
option is unknown.
";
