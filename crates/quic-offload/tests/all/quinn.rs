//! Interoperability with plain quinn: one path.

#[path = "peer.rs"]
mod peer;

use bytes::BytesMut;
use core::net::{IpAddr, SocketAddr};
use proto::{Connection, DatagramEvent, Endpoint, EndpointConfig, ServerConfig, Transmit, TransportConfig, VarInt};
use quinn_proto as proto;
use std::sync::Arc;
use std::time::Instant;

const HAS_PATHS: bool = false;

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(2 << 20));
    Arc::new(transport)
}

fn endpoint(config: Arc<EndpointConfig>, server: Option<Arc<ServerConfig>>) -> Endpoint {
    Endpoint::new(config, server, true, None)
}

fn handle(
    endpoint: &mut Endpoint,
    now: Instant,
    from: SocketAddr,
    to: IpAddr,
    data: BytesMut,
    answer: &mut Vec<u8>,
) -> Option<DatagramEvent> {
    endpoint.handle(now, from, Some(to), None, data, answer)
}

fn open_path(_: &mut Connection, _: SocketAddr, _: IpAddr, _: Instant) -> bool {
    false
}

fn poll_transmit(connection: &mut Connection, now: Instant, data: &mut Vec<u8>) -> Option<Transmit> {
    connection.poll_transmit(now, 10, data)
}
