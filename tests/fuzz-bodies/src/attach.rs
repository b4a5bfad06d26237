//! Data from outside a wire: arbitrary bytes as a kernel's packet, as a stream of frames, and as frames to be joined.
//! Frames are the same after joining and cutting again.
use nic_sim::frame::Frame;
use nic_sim::wire::attach::{Coalescer, FrameReader, Resegmenter, VnetHeader};

/// Runs one input.
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

/// Cuts a packet with a virtio header. No frame may be longer than the packet, and there may be no more frames than the
/// packet has bytes.
fn cut(bytes: &[u8]) -> Vec<Frame> {
    let mut resegmenter = Resegmenter::default();
    let buffer = resegmenter.buffer();
    let bytes = &bytes[..bytes.len().min(buffer.len())];
    buffer[..bytes.len()].copy_from_slice(bytes);
    // A refused packet must not leave frames behind.
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

/// Reads a stream in pieces. Their size is the first byte.
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

/// Joins frames, each after its length in a byte, and cuts the result again. Length 255 marks a packet that is cut into
/// segments first, as on a wire: only the first frame's bytes decide.
fn join(bytes: &[u8]) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some((len, behind)) = rest.split_first() {
        let (frame, next) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = next;
        if *len == 255 {
            // Consecutive segments, so that some are joined.
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
    // Frames of different flows may have changed their order, so the sorted frames are compared.
    let mut all = [frames, again].map(|frames| frames.into_iter().map(|frame| frame.data).collect::<Vec<_>>());
    all.iter_mut().for_each(|frames| frames.sort());
    assert!(all[0] == all[1]);
}

const ETHERNET_BYTES: usize = 14;
