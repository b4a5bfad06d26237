//! What the device counts, under the names of the mlx5 driver and of Linux where those exist.

offload_base::counters! {
    /// What the device counts.
    ///
    /// ```
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, driver) = nic(NicConfig::default());
    /// assert_eq!(device.counters().rx_packets, 0);
    /// assert_eq!(driver.counters().tx_tls_ooo, 0);
    /// ```
    pub struct DeviceCounters {
        /// Frames sent.
        pub tx_packets: "tx_packets",
        /// Bytes of frames sent.
        pub tx_bytes: "tx_bytes",
        /// Packets that were cut into segments.
        pub tx_tso_packets: "tx_tso_packets",
        /// Payload bytes of such packets.
        pub tx_tso_bytes: "tx_tso_bytes",
        /// Frames that were held back to the rate their packet asked for.
        pub tx_paced_packets: "tx_paced_packets",
        /// Frames whose checksums the device filled in.
        pub tx_csum_partial: "tx_csum_partial",
        /// Frames with payload the device encrypted.
        pub tx_tls_encrypted_packets: "tx_tls_encrypted_packets",
        /// Record bytes it encrypted and sent.
        pub tx_tls_encrypted_bytes: "tx_tls_encrypted_bytes",
        /// Packets dropped: they name a context that the device does not have.
        pub tx_drop_unknown_context: "tx_drop_unknown_context",
        /// Packets dropped: their bytes were not the next of their context, or not framed as records.
        pub tx_drop_out_of_sync: "tx_drop_out_of_sync",
        /// Packets dropped: the key that their context needs is not there, or another's. The context is given up.
        pub tx_drop_no_key: "tx_drop_no_key",
        /// Parameters and DUMPs that came to nothing: their context is gone, or out of step.
        pub tx_stale_parameters: "tx_stale_parameters",
        /// Frames received.
        pub rx_packets: "rx_packets",
        /// Bytes of frames received.
        pub rx_bytes: "rx_bytes",
        /// Packets handed up that were joined of several frames.
        pub rx_lro_packets: "rx_lro_packets",
        /// Bytes of such packets, headers once.
        pub rx_lro_bytes: "rx_lro_bytes",
        /// Frames dropped: not for this address.
        pub rx_drop_address: "rx_drop_address",
        /// Frames dropped: no receive buffer was posted, or the host has too many packets to look at.
        pub rx_out_of_buffer: "rx_out_of_buffer",
        /// Frames dropped: longer than a receive buffer.
        pub rx_oversize_pkts_phy: "rx_oversize_pkts_phy",
        /// Frames whose checksums were checked and right.
        pub rx_csum_unnecessary: "rx_csum_unnecessary",
        /// Frames whose checksums were not checked.
        pub rx_csum_none: "rx_csum_none",
        /// Frames with a wrong checksum, handed up so marked.
        pub rx_csum_bad: "rx_csum_bad",
        /// Frames whose record bytes the device decrypted.
        pub rx_tls_decrypted_packets: "rx_tls_decrypted_packets",
        /// Record bytes decrypted.
        pub rx_tls_decrypted_bytes: "rx_tls_decrypted_bytes",
        /// Frames with a wrong tag or without the record that should be there.
        pub rx_tls_err: "rx_tls_err",
        /// Times a receive context lost its place in the stream.
        pub rx_tls_lost: "rx_tls_lost",
        /// Times one took up its work again after a gap.
        pub rx_tls_found: "rx_tls_found",
        /// Frames with which a context asked for help.
        pub rx_tls_resync_req_pkt: "rx_tls_resync_req_pkt",
        /// Answers of a record number that were of use.
        pub rx_tls_resync_res_ok: "rx_tls_resync_res_ok",
        /// Answers that said no, or came too late.
        pub rx_tls_resync_res_skip: "rx_tls_resync_res_skip",
        /// Packets that the device protected with ESP.
        pub ipsec_tx_pkts: "ipsec_tx_pkts",
        /// Bytes of those frames.
        pub ipsec_tx_bytes: "ipsec_tx_bytes",
        /// Packets dropped, and below why: they were to be ESP, and nothing else may leave in their place.
        pub ipsec_tx_drop_pkts: "ipsec_tx_drop_pkts",
        /// There is no SA or policy for it, or the SA is used up.
        pub ipsec_tx_drop_no_state: "ipsec_tx_drop_no_state",
        /// It has no headers that ESP could stand behind.
        pub ipsec_tx_drop_not_ip: "ipsec_tx_drop_not_ip",
        /// There is no room for the trailer: the frame would be too long.
        pub ipsec_tx_drop_trailer: "ipsec_tx_drop_trailer",
        /// Of those dropped, the SA is used up.
        pub xfrm_out_state_expired: "XfrmOutStateExpired",
        /// Of those dropped, the SA's numbers are used up.
        pub xfrm_out_state_seq_error: "XfrmOutStateSeqError",
        /// Of those dropped, there is no SA for it.
        pub xfrm_out_no_states: "XfrmOutNoStates",
        /// Packets that the device decrypted, or opened altogether.
        pub ipsec_rx_pkts: "ipsec_rx_pkts",
        /// Bytes of those frames.
        pub ipsec_rx_bytes: "ipsec_rx_bytes",
        /// Packets dropped: replays, what an SA that is used up is sent, and what is no packet of its SA.
        pub ipsec_rx_drop_pkts: "ipsec_rx_drop_pkts",
        /// Of those dropped, replays, and those that are too old.
        pub xfrm_in_state_seq_error: "XfrmInStateSeqError",
        /// Of those dropped, the SA is used up.
        pub xfrm_in_state_expired: "XfrmInStateExpired",
        /// Of those dropped, authentic ones that are not what the SA carries.
        pub xfrm_in_state_mode_error: "XfrmInStateModeError",
        /// Dummy packets discarded.
        pub ipsec_rx_dummy: "ipsec_rx_dummy",
        /// Packets with a wrong ICV, handed up as they are.
        pub ipsec_rx_auth_fail: "ipsec_rx_auth_fail",
        /// Fragments of ESP packets, handed up as they are.
        pub ipsec_rx_fragments: "ipsec_rx_fragments",
        /// Frames of which something was placed in a command's buffer.
        pub rx_nvmeotcp_packets: "rx_nvmeotcp_packets",
        /// Bytes placed.
        pub rx_nvmeotcp_bytes: "rx_nvmeotcp_bytes",
        /// Bytes placed that passed stages.
        pub rx_nvmeotcp_opened_bytes: "rx_nvmeotcp_opened_bytes",
        /// Frames whose digests the device vouches for.
        pub rx_nvmeotcp_checked: "rx_nvmeotcp_checked",
        /// Times an NVMe/TCP context lost its place in the stream.
        pub rx_nvmeotcp_drop: "rx_nvmeotcp_drop",
        /// Times one found it again with software's help.
        pub rx_nvmeotcp_resync: "rx_nvmeotcp_resync",
        /// Data digests filled in and sent.
        pub tx_nvmeotcp_digests: "tx_nvmeotcp_digests",
        /// Bytes of data that passed stages on their way out, once for each time that they left.
        pub tx_nvmeotcp_sealed_bytes: "tx_nvmeotcp_sealed_bytes",
        /// QUIC packets that the device sealed.
        pub quic_tx_pkts: "quic_tx_pkts",
        /// Bytes of those packets, headers and tags included.
        pub quic_tx_bytes: "quic_tx_bytes",
        /// Packets dropped: they were to be sealed, and could not be.
        pub quic_tx_drop_pkts: "quic_tx_drop_pkts",
        /// Of those dropped, the number was used before on its path.
        pub quic_tx_drop_number: "quic_tx_drop_number",
        /// Of those dropped, the key of their generation is not there.
        pub quic_tx_drop_key: "quic_tx_drop_key",
        /// QUIC packets that the device opened.
        pub quic_rx_pkts: "quic_rx_pkts",
        /// Bytes of those packets, headers and tags included.
        pub quic_rx_bytes: "quic_rx_bytes",
        /// Packets of a known connection that no key in place opens, handed up as they are.
        pub quic_rx_auth_fail: "quic_rx_auth_fail",
        /// Packets of a key phase whose key is not there, handed up as they are.
        pub quic_rx_no_key: "quic_rx_no_key",
        /// Contexts fetched from host memory.
        pub ctx_fetched: "ctx_fetched",
        /// Contexts written to host memory to make room for others.
        pub ctx_evicted: "ctx_evicted",
        /// Interrupts raised.
        pub interrupts: "ch_events",
        /// Times the device was reset.
        pub resets: "resets",
    }
}
