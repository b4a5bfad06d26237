//! The TLS transmit engine: encrypts records as their bytes leave.
//!
//! The engine does not handle retransmissions. The driver guarantees that a packet continues the stream, and otherwise
//! restores the state with parameters and DUMPs first. A packet that breaks the guarantee is refused.

use super::record::{RecordCursor, RecordError, RecordMode, RecordProtection, WalkedRecords};
use bytes::BytesMut;
use nic_engine::{ImageReader, ImageWriter};
use offload_base::Seq;
use resumable_aead::Key;

/// The state of a transmit context.
#[derive(Clone, Debug)]
pub(crate) struct TlsTransmit {
    protection: RecordProtection,
    /// Number of the record at the position of the progress parameters, from the static parameters.
    initial_number: u64,
    position: Option<RecordTransmitPosition>,
}

#[derive(Clone, Copy, Debug)]
struct RecordTransmitPosition {
    next: Seq,
    cursor: RecordCursor,
}

/// The reason why the engine did not encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransmitError {
    /// The bytes do not continue the stream.
    OutOfOrder,
    /// The bytes are not framed as records.
    Record(RecordError),
}

impl TlsTransmit {
    /// Makes a context without parameters, which refuses all packets.
    pub(crate) fn new(protection: RecordProtection) -> TlsTransmit {
        TlsTransmit { protection, initial_number: 0, position: None }
    }

    pub(crate) fn set_static(&mut self, number: u64) {
        self.initial_number = number;
    }

    pub(crate) fn set_progress(&mut self, start: Seq) {
        self.position =
            Some(RecordTransmitPosition { next: start, cursor: RecordCursor::at_record(self.initial_number) });
    }

    /// Writes the state to an image.
    pub(crate) fn write(&self, image: &mut ImageWriter<'_>) {
        self.protection.write(image);
        image.put_u64(self.initial_number);
        image.put_u8(u8::from(self.position.is_some()));
        if let Some(position) = &self.position {
            image.put_seq(position.next);
            position.cursor.write(image);
        }
    }

    /// Reads the state from an image.
    pub(crate) fn read(image: &mut ImageReader<'_>) -> Option<TlsTransmit> {
        let (protection, initial_number) = (RecordProtection::read(image)?, image.take_u64()?);
        let position = match image.take_u8()? {
            0 => None,
            _ => Some(RecordTransmitPosition { next: image.take_seq()?, cursor: RecordCursor::read(image)? }),
        };
        Some(TlsTransmit { protection, initial_number, position })
    }

    /// Tests whether `seq` is the next byte.
    pub(crate) fn expects(&self, seq: Seq) -> bool {
        self.position.is_some_and(|position| position.next == seq)
    }

    /// Encrypts the bytes at `seq` and appends the result to `destination`. After an error the context waits for
    /// parameters, and the appended bytes are invalid.
    pub(crate) fn encrypt(
        &mut self,
        key: &Key,
        seq: Seq,
        source: &[u8],
        destination: &mut BytesMut,
    ) -> Result<WalkedRecords, TransmitError> {
        // Changed in place, because the cursor is too large to move for each packet.
        let Some(position) = self.position.as_mut().filter(|at| at.next == seq) else {
            self.position = None;
            return Err(TransmitError::OutOfOrder);
        };
        position.next += source.len() as u32;
        let walked = position.cursor.walk(RecordMode::Seal, key, &self.protection, source, destination);
        if walked.is_err() {
            self.position = None;
        }
        walked.map_err(TransmitError::Record)
    }
}
