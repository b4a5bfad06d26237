//! Interoperability with plain noq, whose state machine this crate uses as well: several paths.

#[path = "peer.rs"]
mod peer;

use bytes::BytesMut;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroUsize;
use noq_proto as proto;
use proto::{
    Connection, DatagramEvent, Endpoint, EndpointConfig, FourTuple, PathStatus, ServerConfig, Transmit,
    TransportConfig, VarInt,
};
use std::sync::Arc;
use std::time::Instant;

const HAS_PATHS: bool = true;

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_concurrent_multipath_paths(4).stream_receive_window(VarInt::from_u32(2 << 20));
    Arc::new(transport)
}

fn endpoint(config: Arc<EndpointConfig>, server: Option<Arc<ServerConfig>>) -> Endpoint {
    Endpoint::new(config, server, true)
}

fn handle(
    endpoint: &mut Endpoint,
    now: Instant,
    from: SocketAddr,
    to: IpAddr,
    data: BytesMut,
    answer: &mut Vec<u8>,
) -> Option<DatagramEvent> {
    endpoint.handle(now, FourTuple::new(from, Some(to)), None, data, answer)
}

fn open_path(connection: &mut Connection, to: SocketAddr, from: IpAddr, now: Instant) -> bool {
    connection.open_path(FourTuple::new(to, Some(from)), PathStatus::Available, now).is_ok()
}

fn poll_transmit(connection: &mut Connection, now: Instant, data: &mut Vec<u8>) -> Option<Transmit> {
    connection.poll_transmit(now, NonZeroUsize::new(10).unwrap(), data)
}
