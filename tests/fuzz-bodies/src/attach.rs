//! What comes from outside a wire: any bytes as a kernel's packet, as a stream of frames, and as frames to be joined.
//! Joined and cut again, frames are what they were.
use nic_sim::frame::Frame;
use nic_sim::wire::attach::{Coalescer, FrameReader, Resegmenter, VnetHeader};

/// One input.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    match kind % 3 {
        0 => {
            cut(bytes);
        }
        1 => read(bytes),
        _ => join(bytes),
    }
}

/// A packet with a virtio header: no frame is longer than it, and there are no more frames than it has bytes.
fn cut(bytes: &[u8]) -> Vec<Frame> {
    let mut resegmenter = Resegmenter::default();
    let buffer = resegmenter.buffer();
    let bytes = &bytes[..bytes.len().min(buffer.len())];
    buffer[..bytes.len()].copy_from_slice(bytes);
    if resegmenter.filled(bytes.len()).is_err() {
        assert!(resegmenter.next_frame().is_none());
        return Vec::new();
    }
    let frames: Vec<Frame> = std::iter::from_fn(|| resegmenter.next_frame()).collect();
    let packet = bytes.len() - VnetHeader::LEN;
    assert!((1..=packet).contains(&frames.len()));
    assert!(frames.iter().all(|frame| frame.len() <= packet));
    frames
}

/// A stream, in pieces of the size that its first byte says.
fn read(bytes: &[u8]) {
    let Some((size, stream)) = bytes.split_first() else { return };
    let mut reader = FrameReader::default();
    let mut read = 0;
    for piece in stream.chunks(usize::from(*size) + 1) {
        reader.push(piece);
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => read += frame.len(),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert!(read <= stream.len());
}

/// Frames, each behind its length in a byte; and what they are made of again. A frame may end in the segments of a
/// packet of its own, as wires have them: only the first frame's bytes decide.
fn join(bytes: &[u8]) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first() {
        let (frame, next) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = next;
        if *len == 255 {
            // Segments that follow each other, so that something is joined.
            frames.extend(cut(frame).into_iter().filter(|frame| frame.len() >= ETHERNET_BYTES));
        } else if frame.len() >= ETHERNET_BYTES {
            frames.push(Frame::from(frame.to_vec()));
        }
    }
    let mut coalescer = Coalescer::default();
    let mut again = Vec::new();
    for frame in &frames {
        coalescer.push(frame.clone());
    }
    coalescer.flush();
    while let Some(packet) = coalescer.pop() {
        let written: Vec<&[u8]> = [&packet.virtio_header()[..]].into_iter().chain(packet.pieces()).collect();
        let cut = cut(&written.concat());
        assert_eq!(cut.len(), packet.frames());
        again.extend(cut);
    }
    // Flows may have overtaken each other: what there is must be the same.
    let mut all = [frames, again].map(|frames| frames.into_iter().map(|frame| frame.data).collect::<Vec<_>>());
    all.iter_mut().for_each(|frames| frames.sort());
    assert!(all[0] == all[1]);
}

const ETHERNET_BYTES: usize = 14;
