//! What keeps an agent going.

use offload_console::say;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

/// Has `agent` mirror to `path` until it fails: then it ends with [`ExitCode::FAILURE`], or starts it again half a second later, `for_ever`. Each
/// reason that is not that of the last time is told on standard error, in the name of `program`.
pub fn supervise(program: &str, path: &Path, for_ever: bool, mut agent: impl FnMut() -> io::Error) -> ExitCode {
    let mut told = None;
    loop {
        let error = agent().to_string();
        if told.as_ref() != Some(&error) {
            say!("{program}: {}: {error}", path.display());
            told = Some(error);
        }
        if !for_ever {
            return ExitCode::FAILURE;
        }
        sleep(BETWEEN_ATTEMPTS);
    }
}

const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);
