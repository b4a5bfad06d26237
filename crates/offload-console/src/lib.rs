//! Output of programs: lines on standard error that never stop the program, and results on standard output.
//!
//! `println!` and `eprintln!` panic if the write fails, and wait forever for a pipe that nobody reads.
//!
//! Invariant: [`say!`] never panics and never fails. The wait for a reader takes at most 200 ms, and is not repeated
//! until the reader is back. Lost lines are counted, and the next line written is preceded by their number.

#![forbid(unsafe_code)]

use core::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Writes a line to standard error, like `eprintln!`. A line that cannot be written is lost.
///
/// ```
/// let peer = "10.0.0.1";
/// offload_console::say!("{peer}: no such file");
/// ```
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::say_line(::core::format_args!($($words)*)) };
}

/// Writes a line to standard error. This is the function behind [`say!`].
///
/// ```
/// offload_console::say_line(format_args!("{} connections", 3));
/// ```
pub fn say_line(line: fmt::Arguments<'_>) {
    static CONSOLE: Mutex<Console> = Mutex::new(Console::new(PATIENCE));
    let mut text = String::new();
    // Formatted before the lock, because formatting a value may call `say!`. A value that fails to format ends the
    // line.
    let _ = fmt::write(&mut text, line);
    let mut console = CONSOLE.lock().unwrap_or_else(PoisonError::into_inner);
    console.say(&mut io::stderr().lock(), format_args!("{text}"));
}

/// Writes the results of a program to standard output. It is no error if the reader has closed its end.
///
/// ```
/// offload_console::write_out("12 files copied\n")?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If the text cannot be written, for example because the disk is full.
pub fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes the results of a program called `program` to standard output, and returns the exit status. If the write
/// fails, the status is 1, and a line on standard error reports the error.
///
/// ```
/// use std::process::ExitCode;
///
/// assert_eq!(offload_console::show("copy", "12 files copied\n"), ExitCode::SUCCESS);
/// ```
pub fn show(program: &str, text: &str) -> ExitCode {
    match write_out(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say!("{program}: standard output: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The state of standard error.
struct Console {
    patience: Duration,
    /// Number of lines lost since the last written line.
    lost: u64,
    /// Whether the reader was late, so that writes no longer wait.
    is_stuck: bool,
}

impl Console {
    const fn new(patience: Duration) -> Console {
        Console { patience, lost: 0, is_stuck: false }
    }

    fn say(&mut self, out: &mut impl Output, line: fmt::Arguments<'_>) {
        let text = match self.lost {
            0 => format!("{line}\n"),
            lost => format!("{lost} lines could not be written here\n{line}\n"),
        };
        match self.write(out, text.as_bytes()) {
            Ok(()) => self.lost = 0,
            Err(_) => self.lost += 1,
        }
    }

    fn write(&mut self, out: &mut impl Output, text: &[u8]) -> io::Result<()> {
        // A ready pipe takes one piece of this size without waiting. A larger write could block in the middle.
        for piece in text.chunks(MAX_ATOMIC) {
            let patience = if self.is_stuck { Duration::ZERO } else { self.patience };
            self.is_stuck = !is_ready(out, patience);
            if self.is_stuck {
                return Err(io::ErrorKind::TimedOut.into());
            }
            out.write_all(piece)?;
        }
        Ok(())
    }
}

#[cfg(unix)]
use std::os::fd::AsFd as Descriptor;

/// Without `poll`, writes may wait.
#[cfg(not(unix))]
trait Descriptor {}
#[cfg(not(unix))]
impl<T> Descriptor for T {}

trait Output: Write + Descriptor {}
impl<T: Write + Descriptor> Output for T {}

/// Tests whether [`MAX_ATOMIC`] bytes can be written without waiting, or fail at once, within `patience`.
#[cfg(unix)]
fn is_ready(out: &impl Descriptor, patience: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Ok(patience) = Timespec::try_from(patience) else { return true };
    // A failing `poll` tells nothing about the output, so the write is tried.
    poll(&mut [PollFd::new(out, PollFlags::OUT)], Some(&patience)).map_or(true, |ready| ready > 0)
}

#[cfg(not(unix))]
fn is_ready(_: &impl Descriptor, _: Duration) -> bool {
    true
}

/// Number of bytes that a ready pipe accepts without waiting (`PIPE_BUF` of Linux, pipe(7)).
const MAX_ATOMIC: usize = 4096;
const PATIENCE: Duration = Duration::from_millis(200);

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader};

    #[test]
    fn pipe_without_a_reader_does_not_block() {
        let (reader, mut pipe) = io::pipe().unwrap();
        let mut console = Console::new(Duration::ZERO);
        let long = "x".repeat(3 * MAX_ATOMIC);
        while console.lost < 10 {
            console.say(&mut pipe, format_args!("{long}"));
        }
        let mut reader = BufReader::new(reader);
        let mut line = String::new();
        // The output may end in the middle of a line.
        while console.lost > 0 {
            line.clear();
            reader.read_line(&mut line).unwrap();
            console.say(&mut pipe, format_args!("later"));
        }
        drop(pipe);
        let lines: Vec<String> = reader.lines().map(Result::unwrap).collect();
        assert!(lines.iter().any(|line| line.ends_with(" lines could not be written here")), "{} lines", lines.len());
        assert_eq!(lines.last().map(String::as_str), Some("later"));
    }

    #[test]
    fn failing_or_printing_value_does_not_block() {
        struct PrintedValue(bool);
        impl fmt::Display for PrintedValue {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                say!("a value is formatted");
                self.0.then_some(()).ok_or(fmt::Error)
            }
        }
        say!("{}", PrintedValue(true));
        say!("{}", PrintedValue(false));
    }

    #[test]
    fn full_disk_and_closed_pipe_lose_lines() {
        let mut console = Console::new(Duration::ZERO);
        if let Ok(mut full) = File::options().write(true).open("/dev/full") {
            (0..3).for_each(|_| console.say(&mut full, format_args!("lost")));
            assert_eq!(console.lost, 3);
        }
        let (reader, mut pipe) = io::pipe().unwrap();
        drop(reader);
        let before = console.lost;
        console.say(&mut pipe, format_args!("lost"));
        assert_eq!(console.lost, before + 1);
        let (reader, mut pipe) = io::pipe().unwrap();
        console.say(&mut pipe, format_args!("back"));
        drop(pipe);
        let said: Vec<String> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        assert_eq!(said, [format!("{} lines could not be written here", before + 1), "back".into()]);
    }
}
