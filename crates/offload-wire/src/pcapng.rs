//! Captures in the pcapng format, with the secrets that decrypt them.
//!
//! Blocks are written as events happen: one section header, a description of each interface, then packets and secrets.
//! Source: draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface description), 4.3 (enhanced packet)
//! and 4.7 (decryption secrets).
//!
//! **Position of secrets.** A reader applies a secrets block to the packets after it, and tshark reads a file once. A
//! secrets block must therefore precede the first packet that needs it: the ServerHello. A TLS server derives the
//! handshake and traffic secrets before it sends the ServerHello, so secrets from *the server's* key log are written in
//! time, and nothing has to be delayed or rewritten. A client derives the same secrets only from the ServerHello, which
//! is too late.
//!
//! Invariant: the output is a valid file at the end of every block. It is always little-endian, so the same run makes
//! the same bytes on every machine. Times count from the start of the run: a capture begins in 1970.

use super::tap::TapDirection;
use crate::frame::Frame;
use offload_base::Instant;
use std::io::{self, Write};

/// A writer of a capture to `W`. Writes are small, so `W` should be buffered.
///
/// ```
/// use offload_wire::frame::Frame;
/// use offload_wire::{TapDirection, pcapng};
/// use offload_base::Instant;
///
/// let mut capture = pcapng::CaptureWriter::new(Vec::new())?;
/// let port = capture.interface("nic0")?;
/// capture.tls_secrets("CLIENT_RANDOM 00 00\n")?;
/// capture.frame(port, Instant::from_nanos(42), TapDirection::Outbound, &Frame::from(vec![0; 60]))?;
/// let file = capture.finish()?;
/// assert_eq!(&file[..4], b"\x0a\x0d\x0d\x0a");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct CaptureWriter<W> {
    output: W,
    interfaces: u32,
}

/// An interface of a capture.
///
/// See [`CaptureWriter`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureInterface(u32);

impl<W: Write> CaptureWriter<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// Returns the error of `output`.
    pub fn new(mut output: W) -> io::Result<CaptureWriter<W>> {
        let mut body = Vec::new();
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        body.extend_from_slice(&1u16.to_le_bytes()); // major version
        body.extend_from_slice(&0u16.to_le_bytes()); // minor version
        body.extend_from_slice(&u64::MAX.to_le_bytes()); // section length: not known in advance
        option(&mut body, OPTION_APPLICATION, b"nic-offload");
        option(&mut body, OPTION_END, &[]);
        block(&mut output, SECTION_HEADER, &[&body])?;
        Ok(CaptureWriter { output, interfaces: 0 })
    }

    /// Adds an Ethernet interface called `name`, with times in nanoseconds.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn interface(&mut self, name: &str) -> io::Result<CaptureInterface> {
        let mut body = Vec::new();
        body.extend_from_slice(&LINK_ETHERNET.to_le_bytes());
        body.extend_from_slice(&0u16.to_le_bytes()); // reserved
        body.extend_from_slice(&0u32.to_le_bytes()); // no limit on captured bytes
        // The length field of an option has 16 bits, so a longer name is cut.
        option(&mut body, OPTION_INTERFACE_NAME, &name.as_bytes()[..name.len().min(usize::from(u16::MAX))]);
        option(&mut body, OPTION_TIME_RESOLUTION, &[9]); // 10^-9 s
        option(&mut body, OPTION_END, &[]);
        block(&mut self.output, INTERFACE_DESCRIPTION, &[&body])?;
        self.interfaces += 1;
        Ok(CaptureInterface(self.interfaces - 1))
    }

    /// Adds a frame that passed `interface`.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn frame(
        &mut self,
        interface: CaptureInterface,
        at: Instant,
        direction: TapDirection,
        frame: &Frame,
    ) -> io::Result<()> {
        let nanos = at.as_nanos();
        let len = length(frame.len())?;
        // Fixed-size head and tail: a capture of many frames should not allocate per frame.
        let mut head = [0; 20];
        let fields = [interface.0, (nanos >> 32) as u32, nanos as u32, len, len];
        for (place, field) in head.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        let direction: u32 = match direction {
            TapDirection::Inbound => 1,
            TapDirection::Outbound => 2,
        };
        let mut tail = [0; 12]; // one option of four bytes, and the end of options
        tail[0..2].copy_from_slice(&OPTION_PACKET_FLAGS.to_le_bytes());
        tail[2..4].copy_from_slice(&4u16.to_le_bytes());
        tail[4..8].copy_from_slice(&direction.to_le_bytes());
        block(&mut self.output, ENHANCED_PACKET, &[&head, &frame.data, padding(frame.len()), &tail])
    }

    /// Adds lines of a TLS key log (in `SSLKEYLOGFILE` format), for the packets that follow.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn tls_secrets(&mut self, key_log: &str) -> io::Result<()> {
        let mut head = [0; 8];
        head[..4].copy_from_slice(&SECRETS_TLS_KEY_LOG.to_le_bytes());
        head[4..].copy_from_slice(&length(key_log.len())?.to_le_bytes());
        block(&mut self.output, DECRYPTION_SECRETS, &[&head, key_log.as_bytes(), padding(key_log.len())])
    }

    /// Flushes the output.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// Returns the error of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Writes a block made of `parts`. Their total size is a multiple of four bytes.
fn block(output: &mut impl Write, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert_eq!(body % 4, 0, "blocks are padded to 32 bits");
    // The length is written at both ends, so that a reader can also walk backwards.
    let total = length(body + BLOCK_OVERHEAD)?.to_le_bytes();
    output.write_all(&kind.to_le_bytes())?;
    output.write_all(&total)?;
    for part in parts {
        output.write_all(part)?;
    }
    output.write_all(&total)
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    body.extend_from_slice(padding(value.len()));
}

/// Returns the bytes that pad `bytes` bytes to 32 bits.
fn padding(bytes: usize) -> &'static [u8] {
    &[0; 3][..bytes.next_multiple_of(4) - bytes]
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "too long for a pcapng block"))
}

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const DECRYPTION_SECRETS: u32 = 10;
/// Size of the block type and of the length at both ends.
const BLOCK_OVERHEAD: usize = 12;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const LINK_ETHERNET: u16 = 1;
/// Type of a TLS key log: "TLSK".
const SECRETS_TLS_KEY_LOG: u32 = 0x544c_534b;
const OPTION_END: u16 = 0;
/// Option of a section header: the application's name.
const OPTION_APPLICATION: u16 = 4;
/// Option of an interface description: the interface's name.
const OPTION_INTERFACE_NAME: u16 = 2;
/// Option of an interface description: the resolution of timestamps.
const OPTION_TIME_RESOLUTION: u16 = 9;
/// Option of an enhanced packet: flags, such as the direction.
const OPTION_PACKET_FLAGS: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A reader for these blocks, written from the specification. Returns (type, body) pairs.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let mut blocks = Vec::new();
        while !file.is_empty() {
            let total = number(&file[4..]) as usize;
            assert!(total.is_multiple_of(4) && total >= 12);
            assert_eq!(number(&file[total - 4..]) as usize, total, "both lengths agree");
            blocks.push((number(file), &file[8..total - 4]));
            file = &file[total..];
        }
        blocks
    }

    fn number(bytes: &[u8]) -> u32 {
        u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"))
    }

    /// Returns the options in `bytes` as (code, value) pairs. The bytes must finish with the end of options.
    fn options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
        let mut options = Vec::new();
        loop {
            let code = u16::from_le_bytes(bytes[..2].try_into().expect("two bytes"));
            let len = usize::from(u16::from_le_bytes(bytes[2..4].try_into().expect("two bytes")));
            let value = &bytes[4..4 + len];
            bytes = &bytes[4 + len.next_multiple_of(4)..];
            if code == 0 {
                assert!(bytes.is_empty() && value.is_empty());
                return options;
            }
            options.push((code, value));
        }
    }

    #[test]
    fn header_bytes_match_the_specification() {
        let mut capture = CaptureWriter::new(Vec::new()).expect("memory takes everything");
        capture.interface("nic0").expect("memory takes everything");
        let expected = [
            &[0x0a, 0x0d, 0x0d, 0x0a, 48, 0, 0, 0][..], // section header, 48 bytes
            &[0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0],
            &[0xff; 8],
            &[4, 0, 11, 0],
            b"nic-offload\0",
            &[0, 0, 0, 0, 48, 0, 0, 0],
            &[1, 0, 0, 0, 40, 0, 0, 0], // interface description, 40 bytes
            &[1, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 4, 0],
            b"nic0",
            &[9, 0, 1, 0, 9, 0, 0, 0],
            &[0, 0, 0, 0, 40, 0, 0, 0],
        ]
        .concat();
        assert_eq!(capture.finish().expect("memory takes everything"), expected);
    }

    proptest! {
        #[test]
        fn written_blocks_are_read_back(
            frames in prop::collection::vec((any::<u64>(), any::<bool>(), 0u32..2, prop::collection::vec(any::<u8>(), 0..80)), 0..20),
            secrets in "[a-zA-Z0-9 ]{0,20}",
        ) {
            let mut capture = CaptureWriter::new(Vec::new()).expect("memory takes everything");
            let interfaces = [capture.interface("a").expect("memory"), capture.interface("bcdef").expect("memory")];
            capture.tls_secrets(&secrets).expect("memory takes everything");
            for (at, outbound, interface, data) in &frames {
                let direction = if *outbound { TapDirection::Outbound } else { TapDirection::Inbound };
                let frame = Frame::from(data.clone());
                capture
                    .frame(interfaces[*interface as usize], Instant::from_nanos(*at), direction, &frame)
                    .expect("memory takes everything");
            }
            let file = capture.finish().expect("memory takes everything");
            let blocks = blocks(&file);
            prop_assert_eq!(blocks.len(), 4 + frames.len());
            prop_assert_eq!(options(&blocks[2].1[8..])[0], (2, &b"bcdef"[..]));
            prop_assert_eq!(number(blocks[3].1), 0x544c_534b);
            prop_assert_eq!(number(&blocks[3].1[4..]) as usize, secrets.len());
            prop_assert_eq!(&blocks[3].1[8..8 + secrets.len()], secrets.as_bytes());
            for ((kind, body), (at, outbound, interface, data)) in blocks[4..].iter().zip(&frames) {
                prop_assert_eq!(*kind, 6);
                prop_assert_eq!(number(body), *interface);
                prop_assert_eq!(u64::from(number(&body[4..])) << 32 | u64::from(number(&body[8..])), *at);
                prop_assert_eq!(number(&body[12..]) as usize, data.len());
                prop_assert_eq!(number(&body[16..]) as usize, data.len());
                prop_assert_eq!(&body[20..20 + data.len()], &data[..]);
                let flags = options(&body[20 + data.len().next_multiple_of(4)..]);
                let expected = [if *outbound { 2 } else { 1 }, 0, 0, 0];
                prop_assert_eq!(flags, vec![(2, &expected[..])]);
            }
        }
    }
}
