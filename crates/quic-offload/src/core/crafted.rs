//! A server, and a client that sends hand-made frames: in any order and size, and duplicates.

use super::connection::Conn;
use super::tests::{NOW, client_of, config, connect, datagram, sent, server_of};
use super::unordered_reader::{ReadResult, UnorderedReader, lock};
use super::{ConnectionStage, EndpointCore};
use crate::config::Config;
use crate::crypto::keyring::PlainPacket;
use bytes::BytesMut;
use noq_proto::StreamId;
use std::sync::MutexGuard;

/// A server, and a client with hand-made packets.
pub(super) struct CraftedPair {
    pub(super) server: EndpointCore,
    client: EndpointCore,
    cid: Vec<u8>,
    number: u64,
    /// Number of bytes read.
    at: u64,
}

/// The client's first unidirectional stream.
pub(super) const ID: u64 = 2;

impl CraftedPair {
    pub(super) fn new(stream_window: u32, receive_window: u32) -> CraftedPair {
        let config = |seed| Config { stream_window, receive_window, ..config(seed) };
        let (mut client, mut server) = (client_of(config(3)), server_of(config(2)));
        let at = connect(&mut client);
        let mut cid = Vec::new();
        for _ in 0..4 {
            for data in sent(&mut client) {
                if data[0] < 0x80 {
                    cid = data[1..9].to_vec();
                }
                server.receive(NOW, datagram(5000, 443, data));
            }
            sent(&mut server).into_iter().for_each(|data| client.receive(NOW, datagram(443, 5000, data)));
        }
        assert_eq!(
            (at, client.connections[0].stage, server.connections[0].stage),
            (0, ConnectionStage::Open, ConnectionStage::Open)
        );
        CraftedPair { server, client, cid, number: 1000, at: 0 }
    }

    /// Creates the pair with a stream that the server reads.
    pub(super) fn read_from(stream_window: u32, receive_window: u32) -> CraftedPair {
        let mut crafted = CraftedPair::new(stream_window, receive_window);
        crafted.send([(0, 0)], false);
        assert_eq!(crafted.read(), 0);
        crafted
    }

    pub(super) fn conn(&mut self) -> &mut Conn {
        &mut self.server.connections[0]
    }

    pub(super) fn id() -> StreamId {
        StreamId::new(noq_proto::Side::Client, noq_proto::Dir::Uni, ID >> 2)
    }

    pub(super) fn reading(&self) -> MutexGuard<'_, UnorderedReader> {
        lock(&self.server.connections[0].reading)
    }

    /// Sends a packet of frames, each given by offset and length.
    pub(super) fn send(&mut self, frames: impl IntoIterator<Item = (u64, u64)>, fin: bool) {
        let frames = frames.into_iter().map(|(at, bytes)| frame(ID, at, bytes, fin));
        self.send_payload(&frames.flatten().collect::<Vec<u8>>());
    }

    pub(super) fn send_payload(&mut self, payload: &[u8]) {
        let packet = self.packet(payload);
        self.hand(5000, packet);
    }

    /// Passes a packet from a port to the server.
    pub(super) fn hand(&mut self, port: u16, packet: BytesMut) {
        self.server.receive(NOW, datagram(port, 443, packet));
        // The server's grants would be sent in packets, which are not needed.
        let _ = sent(&mut self.server);
    }

    /// Builds a packet with the next number.
    pub(super) fn packet(&mut self, payload: &[u8]) -> BytesMut {
        self.number += 1;
        let mut packet = BytesMut::from(&[0x43][..]);
        packet.extend_from_slice(&self.cid);
        packet.extend_from_slice(&(self.number as u32).to_be_bytes());
        packet.extend_from_slice(payload);
        packet.extend_from_slice(&[0; 16 + 4]);
        let keys = self.client.connections[0].keyring.lock();
        let (key, bytes) = (keys.generation(true, 0).unwrap(), packet.len());
        drop(keys);
        let plain = PlainPacket { key, path: 0, number: self.number, bytes, cid_bytes: self.cid.len() };
        assert!(plain.seal(&mut packet));
        packet
    }

    /// Reads all available bytes.
    pub(super) fn read(&mut self) -> u64 {
        let mut bytes = 0;
        while let (ReadResult::Data(data), _) = self.conn().read_stream(CraftedPair::id(), 10_000) {
            assert!(data.len() <= 10_000);
            for byte in data {
                assert_eq!(byte, (self.at % 251) as u8, "at {}", self.at);
                self.at += 1;
                bytes += 1;
            }
        }
        bytes
    }

    pub(super) fn why(&mut self) -> String {
        self.conn().closed.as_ref().map(ToString::to_string).unwrap_or_default()
    }
}

/// Builds a STREAM frame from offset and length.
pub(super) fn frame(id: u64, at: u64, bytes: u64, fin: bool) -> Vec<u8> {
    let mut frame = vec![0x0e | u8::from(fin), id as u8];
    frame.extend((at | 0xc0 << 56).to_be_bytes());
    frame.extend((bytes as u16 | 0x40 << 8).to_be_bytes());
    frame.extend((at..at + bytes).map(|at| (at % 251) as u8));
    frame
}
