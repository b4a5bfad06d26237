//! A harness around intel-ipsec-mb (`peer.c`). It is built where the library's header and a C compiler are installed.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests say why they skip, and what they measured")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program, in a temporary folder that is removed when the value is dropped.
pub(crate) struct IpsecMbPeer {
    folder: PathBuf,
}

impl IpsecMbPeer {
    /// Returns `None` if it cannot be built, with the reason on standard error.
    pub(crate) fn build() -> Option<IpsecMbPeer> {
        let folder = std::env::temp_dir().join(format!("ipsec-mb-peer-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the folder for temporary files takes a folder");
        let peer = IpsecMbPeer { folder };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/ipsec_mb/peer.c");
        let built = Command::new("cc").args(["-O2", "-o"]).arg(peer.program()).args([source, "-lIPSec_MB"]).output();
        match built {
            Ok(output) if output.status.success() => Some(peer),
            _ => {
                eprintln!("SKIPPED: intel-ipsec-mb cannot be built against here (Debian: libipsec-mb-dev, gcc)");
                None
            }
        }
    }

    /// Returns the program's output, or `None` if the processor lacks the instructions for `arguments`.
    pub(crate) fn run(&self, arguments: &[&str], input: Vec<u8>) -> Option<Vec<u8>> {
        let mut child = Command::new(self.program())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        let mut stdin = child.stdin.take().expect("piped");
        // A thread writes, because the program may fill its output before it has read its input.
        let writer = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output().expect("it ends");
        let _ = writer.join();
        match output.status.code() {
            Some(0) => Some(output.stdout),
            // The program's status for a processor without the instructions.
            Some(3) => None,
            status => panic!("ipsec-mb's program {arguments:?} ended with status {status:?}"),
        }
    }

    fn program(&self) -> PathBuf {
        self.folder.join("peer")
    }
}

impl Drop for IpsecMbPeer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
