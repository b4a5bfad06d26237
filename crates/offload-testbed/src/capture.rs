//! Captures for Wireshark: taps and a TLS key log that write to one file.
//!
//! The key log belongs to TLS *servers*; [`nic_sim::wire::pcapng`] gives the reason. In virtual time the same run
//! writes the same file.

use crate::runtime::lock;
use crate::secrets::key_log_line;
use core::fmt;
use nic_sim::frame::Frame;
use nic_sim::wire::{Tap, TapDirection, pcapng};
use offload_base::Instant;
use rustls::KeyLog;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A capture under construction. Clones write to the same capture.
///
/// ```
/// use nic_sim::wire::{TapDirection, Tap};
/// use offload_base::Instant;
/// use std::sync::Arc;
/// use offload_testbed::Capture;
///
/// let path = std::env::temp_dir().join(format!("example-{}.pcapng", std::process::id()));
/// let capture = Capture::create(&path)?;
/// let mut tap = capture.tap("nic0")?;
/// let key_log: Arc<dyn rustls::KeyLog> = Arc::new(capture.clone());
/// tap.frame(Instant::ZERO, TapDirection::Outbound, &vec![0; 60].into());
/// capture.finish()?;
/// assert!(std::fs::metadata(&path)?.len() > 100);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Capture {
    state: Arc<Mutex<CaptureState>>,
}

enum CaptureState {
    Open(pcapng::CaptureWriter<Box<dyn Write + Send>>),
    Failed(io::Error),
    Finished,
}

impl Capture {
    /// Begins a capture on `output`. The capture writes in small pieces, so `output` should be buffered.
    ///
    /// # Errors
    /// If `output` fails.
    pub fn new(output: impl Write + Send + 'static) -> io::Result<Capture> {
        let output: Box<dyn Write + Send> = Box::new(output);
        Ok(Capture { state: Arc::new(Mutex::new(CaptureState::Open(pcapng::CaptureWriter::new(output)?))) })
    }

    /// Begins a capture in a file. Only the owner can read a new file, because a capture may hold its connections'
    /// secrets.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(path: &Path) -> io::Result<Capture> {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Capture::new(BufWriter::new(options.open(path)?))
    }

    /// Returns a tap that records frames under interface `name`.
    ///
    /// # Errors
    /// If the output fails now or has failed before.
    pub fn tap(&self, name: &str) -> io::Result<CaptureTap> {
        let interface = match &mut *lock(&self.state) {
            CaptureState::Open(writer) => writer.interface(name)?,
            CaptureState::Failed(error) => return Err(io::Error::new(error.kind(), error.to_string())),
            CaptureState::Finished => return Err(io::Error::other("the capture is finished")),
        };
        Ok(CaptureTap { capture: self.clone(), interface })
    }

    /// Ends the capture and closes its output. Later frames are not written.
    ///
    /// # Errors
    /// If the output fails now or has failed since the beginning.
    pub fn finish(&self) -> io::Result<()> {
        match core::mem::replace(&mut *lock(&self.state), CaptureState::Finished) {
            CaptureState::Open(writer) => writer.finish().map(drop),
            CaptureState::Failed(error) => Err(error),
            CaptureState::Finished => Ok(()),
        }
    }

    /// Writes, unless an earlier write failed; [`finish`](Self::finish) returns that error.
    fn write(&self, write: impl FnOnce(&mut pcapng::CaptureWriter<Box<dyn Write + Send>>) -> io::Result<()>) {
        let mut state = lock(&self.state);
        // A tap cannot report an error to the wire, so the first error is kept for `finish`.
        if let CaptureState::Open(writer) = &mut *state
            && let Err(error) = write(writer)
        {
            *state = CaptureState::Failed(error);
        }
    }
}

impl KeyLog for Capture {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let line = key_log_line(label, client_random, secret);
        self.write(|writer| writer.tls_secrets(&line));
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &*lock(&self.state) {
            CaptureState::Open(_) => "open",
            CaptureState::Failed(_) => "failed",
            CaptureState::Finished => "finished",
        };
        f.debug_struct("Capture").field("state", &state).finish()
    }
}

/// A tap for one interface of a [`Capture`].
///
/// See [`Capture`] for an example.
#[derive(Clone, Debug)]
pub struct CaptureTap {
    capture: Capture,
    interface: pcapng::CaptureInterface,
}

impl Tap for CaptureTap {
    fn frame(&mut self, at: Instant, direction: TapDirection, frame: &Frame) {
        self.capture.write(|writer| writer.frame(self.interface, at, direction, frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for this many bytes.
    struct FullDisk(usize);

    impl Write for FullDisk {
        fn write(&mut self, data: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(data.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(data.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[cfg(unix)]
    #[test]
    fn new_capture_is_private_to_its_owner() {
        let path = std::env::temp_dir().join(format!("capture-mode-{}.pcapng", std::process::id()));
        Capture::create(&path).unwrap().finish().unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn full_disk_is_reported_at_finish() {
        let capture = Capture::new(FullDisk(200)).expect("room for the header");
        let mut tap = capture.tap("nic0").expect("room for the interface");
        for _ in 0..10 {
            tap.frame(Instant::ZERO, TapDirection::Inbound, &vec![0; 60].into());
        }
        assert!(capture.tap("nic1").is_err());
        assert_eq!(capture.finish().expect_err("it was full").kind(), io::ErrorKind::StorageFull);
        capture.finish().expect("told once");
    }
}
