//! The rest of a fuzzer's input, extended by zeros without end.

pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// Takes as many bytes as the next byte says.
    pub(crate) fn take_some(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte());
        self.take(len)
    }

    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(len.min(self.0.len()));
        self.0 = left;
        taken
    }
}
