//! The agent: `sa-mirror PATH` runs beside a keying daemon, and mirrors what it tells the kernel.

use offload_console::{say, show};
use sa_mirror::{Agent, supervise};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [word] if word == "--help" || word == "-h" => show("sa-mirror", HELP),
        [word] if word == "--version" || word == "-V" => {
            show("sa-mirror", concat!("sa-mirror ", env!("CARGO_PKG_VERSION"), "\n"))
        }
        [path] if !path.as_encoded_bytes().starts_with(b"-") => mirror(Path::new(path), true),
        [word, path] if word == "--once" => mirror(Path::new(path), false),
        _ => {
            say!("sa-mirror: one PATH is wanted\n{}", HELP.trim_end());
            ExitCode::from(2)
        }
    }
}

/// Mirrors to `path`; `again`: for ever.
fn mirror(path: &Path, again: bool) -> ExitCode {
    supervise("sa-mirror", path, again, || Agent::connect(path).map_or_else(|error| error, Agent::run))
}

const HELP: &str = "\
Mirrors the SAs and policies of this Linux, which a keying daemon or `ip xfrm` makes, to an emulated NIC.

Usage: sa-mirror [--once] PATH

PATH is the Unix socket that the NIC's program listens at (--mirror PATH), or the virtio-serial port of a guest
(/dev/vport0p1). Needs CAP_NET_ADMIN, and sends keys: processes that may open PATH learn them.

  --once     End when the other end goes, instead of waiting for it
  --version  Show the version

Without --once it goes on until it is killed, even if nothing can be written to standard error.

Exit status: 1 if, with --once, the other end goes or cannot be reached; 2 if PATH is missing.
";
