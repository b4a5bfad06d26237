//! The agent: `tc-mirror PATH` runs beside `tc`, and mirrors the kernel's filters.

use offload_console::{say, show};
use sa_mirror::supervise;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tc_mirror::Agent;

fn main() -> ExitCode {
    let (mut counters, mut paths, mut again) = (None, Vec::new(), true);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--help" | "-h") => {
                return show("tc-mirror", HELP);
            }
            Some("--version" | "-V") => {
                return show("tc-mirror", concat!("tc-mirror ", env!("CARGO_PKG_VERSION"), "\n"));
            }
            Some("--once") => again = false,
            Some("--counters") => match arguments.next().filter(|file| !file.as_encoded_bytes().starts_with(b"-")) {
                Some(file) => counters = Some(PathBuf::from(file)),
                None => return misused("--counters needs a FILE"),
            },
            Some(option) if option.starts_with('-') => return misused(&format!("there is no option {option}")),
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    match &paths[..] {
        [path] => mirror(path, counters.as_deref(), again),
        _ => misused("give one PATH"),
    }
}

fn misused(what: &str) -> ExitCode {
    say!("tc-mirror: {what}\n{}", HELP.trim_end());
    ExitCode::from(2)
}

/// Mirrors to `path`; `again`: for ever.
fn mirror(path: &Path, counters: Option<&Path>, again: bool) -> ExitCode {
    supervise("tc-mirror", path, again, || Agent::connect(path, counters).map_or_else(|error| error, Agent::run))
}

const HELP: &str = "\
Mirrors the flower filters of this Linux, which tc makes, to the switch of an emulated NIC.

Usage: tc-mirror [--once] [--counters FILE] PATH

PATH is the Unix socket that the NIC's program listens at, or the virtio-serial port of a guest (/dev/vport0p1). Filters
of devices are mirrored that are called as the switch's: p0, pf0vf0, vxlan0, and Open vSwitch's own tunnel devices.

  --counters FILE  Where to write what each rule did in the switch
  --once           End when the other end goes, instead of waiting for it
  --version        Show the version

Without --once it goes on until it is killed, even if nothing can be written to standard error.

Exit status: 1 if, with --once, the other end goes or cannot be reached; 2 if an option is unknown or PATH is missing.
";
