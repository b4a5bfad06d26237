//! The agent program: `linux-mirror sa PATH` mirrors SAs and policies, `linux-mirror tc PATH` mirrors filters.

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
        Some("sa") => run("linux-mirror sa", false, arguments, |path, _| Agent::for_sas(path)),
        Some("tc") => run("linux-mirror tc", true, arguments, Agent::for_filters),
        _ => misuse("give a command: sa or tc"),
    }
}

/// Parses a command's arguments, and mirrors until the process is killed or, with `--once`, until the connection ends.
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
                    None => return misuse("--counters needs a FILE"),
                }
            }
            Some(option) if option.starts_with('-') => return misuse(&format!("{program} has no option {option}")),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    match &paths[..] {
        // Each attempt opens the connection anew, because either end may have restarted.
        [path] => supervise(program, path, again, || {
            connect(path, counters.as_deref()).map_or_else(|error| error, Agent::run)
        }),
        _ => misuse("give one PATH"),
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

fn misuse(fault: &str) -> ExitCode {
    say!("linux-mirror: {fault}\n{}", HELP.trim_end());
    ExitCode::from(2)
}

const HELP: &str = "\
Mirrors SAs, policies or filters of this machine's kernel to an emulated NIC, so that its programs control the NIC.

Usage: linux-mirror sa [--once] PATH
       linux-mirror tc [--once] [--counters FILE] PATH

  sa  SAs and policies, made by a keying daemon or `ip xfrm`. Needs CAP_NET_ADMIN, and sends keys: a process that can
      open PATH learns them.
  tc  Flower filters, made by tc or Open vSwitch, to the NIC's switch. Only filters of devices with the names of the
      switch's devices are mirrored: p0, pf0vf0, vxlan0, and Open vSwitch's own tunnel devices.

PATH is the Unix socket at which the NIC's program listens (--mirror PATH, --filters PATH), or the virtio-serial port of
a guest (/dev/vport0p1).

  --counters FILE  Write each rule's packet and byte counts in the switch to FILE
  --once           End when the connection ends, instead of reconnecting
  --version        Show the version

Without --once, the agent runs until it is killed, even if standard error is not writable.

Exit status: 1 if, with --once, the connection ends or fails; 2 if the command or PATH is missing, or an
option is unknown.
";
