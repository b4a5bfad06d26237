//! Input and output of one update.

/// The next bytes of a message, and the destination of the result.
pub(crate) enum MessagePiece<'a> {
    /// The result replaces the bytes.
    InPlace(&'a mut [u8]),
    /// Source and destination of equal length: [`MessagePiece::copying`] checked it.
    Copy(&'a [u8], &'a mut [u8]),
}

impl<'a> MessagePiece<'a> {
    /// Makes a piece from `source` to `destination`. Fails with both lengths if they differ.
    pub(crate) fn copying(source: &'a [u8], destination: &'a mut [u8]) -> Result<Self, (usize, usize)> {
        if source.len() != destination.len() {
            return Err((source.len(), destination.len()));
        }
        Ok(MessagePiece::Copy(source, destination))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            MessagePiece::InPlace(data) => data.len(),
            MessagePiece::Copy(source, _) => source.len(),
        }
    }

    /// Returns the input.
    pub(crate) fn source(&self) -> &[u8] {
        match self {
            MessagePiece::InPlace(data) => data,
            MessagePiece::Copy(source, _) => source,
        }
    }

    /// Returns the output, once it was written.
    pub(crate) fn result(&self) -> &[u8] {
        match self {
            MessagePiece::InPlace(data) => data,
            MessagePiece::Copy(_, destination) => destination,
        }
    }

    /// Borrows the piece for a shorter time.
    pub(crate) fn reborrow(&mut self) -> MessagePiece<'_> {
        match self {
            MessagePiece::InPlace(data) => MessagePiece::InPlace(data),
            MessagePiece::Copy(source, destination) => MessagePiece::Copy(source, destination),
        }
    }

    /// Splits the piece after `at` bytes, or at its end if it is shorter.
    pub(crate) fn split_at(self, at: usize) -> (MessagePiece<'a>, MessagePiece<'a>) {
        let at = at.min(self.len());
        match self {
            MessagePiece::InPlace(data) => {
                let (first, rest) = data.split_at_mut(at);
                (MessagePiece::InPlace(first), MessagePiece::InPlace(rest))
            }
            MessagePiece::Copy(source, destination) => {
                let (source, source_rest) = source.split_at(at);
                let (destination, destination_rest) = destination.split_at_mut(at);
                (MessagePiece::Copy(source, destination), MessagePiece::Copy(source_rest, destination_rest))
            }
        }
    }

    /// Returns the output buffer with the input in it, for back-ends that only work in place.
    pub(crate) fn into_in_place(self) -> &'a mut [u8] {
        match self {
            MessagePiece::InPlace(data) => data,
            MessagePiece::Copy(source, destination) => {
                destination.copy_from_slice(source);
                destination
            }
        }
    }
}
