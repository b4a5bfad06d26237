//! What a protocol may ask of an offload NIC, and what the NIC tells about a packet: traits and plain types.
