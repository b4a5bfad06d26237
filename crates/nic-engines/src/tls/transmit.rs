//! The TLS transmit engine: encrypts records as their bytes leave.
//!
//! It knows nothing of retransmission. The driver promises that a packet's bytes are the next of the stream, and
//! rebuilds the state with parameters and DUMPs when they are not; a packet that breaks the promise is refused.

use super::record::{Mode, Protection, RecordCursor, RecordError, Walked};
use bytes::BytesMut;
use nic_engine::{ImageReader, ImageWriter};
use offload_base::Seq;
use resumable_aead::Key;

/// A transmit context's state.
#[derive(Clone, Debug)]
pub(crate) struct TlsTransmit {
    protection: Protection,
    /// From static parameters: the number of the record that progress parameters point at.
    initial_number: u64,
    position: Option<Position>,
}

#[derive(Clone, Copy, Debug)]
struct Position {
    next: Seq,
    cursor: RecordCursor,
}

/// Why the engine would not encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransmitError {
    /// The bytes are not the next of the stream.
    OutOfOrder,
    /// The bytes are not framed as records.
    Record(RecordError),
}

impl TlsTransmit {
    /// A context without parameters: it encrypts nothing yet.
    pub(crate) fn new(protection: Protection) -> TlsTransmit {
        TlsTransmit { protection, initial_number: 0, position: None }
    }

    pub(crate) fn set_static(&mut self, number: u64) {
        self.initial_number = number;
    }

    pub(crate) fn set_progress(&mut self, start: Seq) {
        self.position = Some(Position { next: start, cursor: RecordCursor::at_record(self.initial_number) });
    }

    /// Writes the state out.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        self.protection.write(image);
        image.put_u64(self.initial_number);
        image.put_u8(u8::from(self.position.is_some()));
        if let Some(position) = &self.position {
            image.put_seq(position.next);
            position.cursor.write(image);
        }
    }

    /// Reads back what [`write`](Self::write) wrote.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<TlsTransmit> {
        let (protection, initial_number) = (Protection::read(image)?, image.take_u64()?);
        let position = match image.take_u8()? {
            0 => None,
            _ => Some(Position { next: image.take_seq()?, cursor: RecordCursor::read(image)? }),
        };
        Some(TlsTransmit { protection, initial_number, position })
    }

    /// Whether the byte at `seq` is the next.
    pub(crate) fn expects(&self, seq: Seq) -> bool {
        self.position.is_some_and(|position| position.next == seq)
    }

    /// Encrypts the bytes at `seq`, and appends what comes of them to `destination`. After an error the context waits for
    /// parameters, and what was appended until then is of no use.
    pub(crate) fn encrypt(
        &mut self,
        key: &Key,
        seq: Seq,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<Walked, TransmitError> {
        // Worked on where it is: it is too large to be moved about for each packet.
        let Some(position) = self.position.as_mut().filter(|at| at.next == seq) else {
            self.position = None;
            return Err(TransmitError::OutOfOrder);
        };
        position.next += source.len() as u32;
        let walked = position.cursor.walk(Mode::Seal, key, &self.protection, source, destination);
        if walked.is_err() {
            self.position = None;
        }
        walked.map_err(TransmitError::Record)
    }
}
