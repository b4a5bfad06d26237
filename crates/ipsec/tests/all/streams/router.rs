//! A router between two hosts, with a smaller MTU behind it.

use core::task::Waker;
use nic_sim::frame::Frame;
use nic_sim::wire::Port;
use offload_base::Instant;
use offload_formats::InternetSum;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// A router that forwards packets up to its MTU, and answers larger ones with "too big" (RFC 1191, RFC 8201).
#[derive(Clone, Debug)]
pub(crate) struct Router(Arc<Mutex<RouterState>>);

#[derive(Debug)]
struct RouterState {
    mtu: u16,
    faces: [Outbound; 2],
    largest: usize,
    refused: usize,
}

/// Frames that leave by a port, and the task to wake for them.
#[derive(Debug, Default)]
struct Outbound {
    frames: VecDeque<Frame>,
    waker: Option<Waker>,
}

/// One port of the router, which is connected to a host.
#[derive(Debug)]
pub(crate) struct Face {
    router: Router,
    number: usize,
}

impl Router {
    pub(crate) fn new(mtu: u16) -> Router {
        Router(Arc::new(Mutex::new(RouterState { mtu, faces: Default::default(), largest: 0, refused: 0 })))
    }

    pub(crate) fn face(&self, number: usize) -> Face {
        Face { router: self.clone(), number }
    }

    /// Returns the size of the largest forwarded packet and the number of refused packets.
    pub(crate) fn routed(&self) -> (usize, usize) {
        let state = self.state();
        (state.largest, state.refused)
    }

    fn state(&self) -> MutexGuard<'_, RouterState> {
        self.0.lock().unwrap()
    }
}

impl Port for Face {
    fn receive_frame(&mut self, _: Instant, frame: Frame) {
        let mut state = self.router.state();
        let bytes = frame.data.len() - ETHERNET;
        if bytes <= usize::from(state.mtu) {
            state.largest = state.largest.max(bytes);
            let to = &mut state.faces[1 - self.number];
            to.frames.push_back(frame);
            to.waker.take().into_iter().for_each(Waker::wake);
        } else {
            assert!(frame.data[12..14] != [8, 0] || frame.data[20] & 0x40 != 0, "it must not be fragmented");
            let told = too_big(&frame.data, state.mtu);
            state.refused += 1;
            state.faces[self.number].frames.push_back(told);
        }
    }

    fn poll_frame(&mut self, _: Instant) -> Option<Frame> {
        self.router.state().faces[self.number].frames.pop_front()
    }

    fn process(&mut self, _: Instant) {}

    fn next_event(&self) -> Option<Instant> {
        None
    }

    fn register_doorbell(&mut self, waker: &Waker) {
        self.router.state().faces[self.number].waker = Some(waker.clone());
    }
}

/// Builds the "too big" message for the sender of `frame`.
fn too_big(frame: &[u8], mtu: u16) -> Frame {
    let four = frame[12..14] == [8, 0];
    // The message comes from the router's link, but its source address does not matter.
    let mut told = [&frame[6..12], &frame[..6], &frame[12..14]].concat();
    let mut message = if four { vec![3, 4, 0, 0, 0, 0] } else { vec![2, 0, 0, 0, 0, 0] };
    message.extend_from_slice(&mtu.to_be_bytes());
    let quoted = if four { 28 } else { 1232 };
    message.extend_from_slice(&frame[ETHERNET..frame.len().min(ETHERNET + quoted)]);
    let mut sum = InternetSum::default();
    if four {
        told.extend_from_slice(&[0x45, 0]);
        told.extend_from_slice(&(20 + message.len() as u16).to_be_bytes());
        told.extend_from_slice(&[0, 1, 0, 0, 64, 1, 0, 0, 10, 0, 0, 99]);
        told.extend_from_slice(&frame[26..30]);
        let mut header = InternetSum::default();
        header.add(&told[ETHERNET..]);
        told[24..26].copy_from_slice(&header.finish().to_be_bytes());
    } else {
        let router = core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 99);
        let sender: [u8; 16] = frame[22..38].try_into().unwrap();
        told.extend_from_slice(&[0x60, 0, 0, 0]);
        told.extend_from_slice(&(message.len() as u16).to_be_bytes());
        told.extend_from_slice(&[58, 64]);
        told.extend_from_slice(&router.octets());
        told.extend_from_slice(&sender);
        sum = InternetSum::pseudo_header(58, router.into(), sender.into(), message.len());
    }
    sum.add(&message);
    message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    told.extend_from_slice(&message);
    told.into()
}

const ETHERNET: usize = 14;
