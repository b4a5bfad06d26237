//! Restarts of an agent.

use offload_console::say;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

/// Runs `agent` until it fails. Then ends with [`ExitCode::FAILURE`] or, if `for_ever`, runs `agent` again half a
/// second later. Writes each error to standard error, with the name of `program`, unless it repeats the previous one.
pub fn supervise(program: &str, path: &Path, for_ever: bool, mut agent: impl FnMut() -> io::Error) -> ExitCode {
    let mut told = None;
    loop {
        let error = agent().to_string();
        // A mirror that stays absent would otherwise fill the log with one line every half second.
        if told.as_ref() != Some(&error) {
            say!("{program}: {}: {error}", path.display());
            told = Some(error);
        }
        if !for_ever {
            return ExitCode::FAILURE;
        }
        sleep(RETRY_INTERVAL);
    }
}

const RETRY_INTERVAL: Duration = Duration::from_millis(500);
