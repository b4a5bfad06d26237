//! Counters, under the names of Linux's `/proc/net/xfrm_stat` where these exist.

offload_base::counters! {
    /// Counters of an IPsec layer.
    ///
    /// ```
    /// use ipsec::SecureDevice;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (_device, driver) = nic(NicConfig::default());
    /// assert_eq!(SecureDevice::new(Box::new(driver)).counters().out_no_states, 0);
    /// ```
    pub struct IpsecCounters {
        /// Packets protected in software.
        pub out_software: "ipsec_sw_tx_pkts",
        /// Bytes protected in software, by the rules of lifetimes.
        pub out_software_bytes: "ipsec_sw_tx_bytes",
        /// Packets handed to the device for encryption (crypto offload).
        pub out_crypto: "ipsec_crypto_tx_pkts",
        /// Packets handed to the device for full ESP processing (packet offload).
        pub out_packet: "ipsec_packet_tx_pkts",
        /// Packets protected in software after the device's refusal.
        pub out_fallback: "ipsec_tx_fallback",
        /// NAT keep-alives sent.
        pub out_keep_alive: "ipsec_tx_keepalive",
        /// Packets opened in software.
        pub in_software: "ipsec_sw_rx_pkts",
        /// Bytes opened in software, by the rules of lifetimes.
        pub in_software_bytes: "ipsec_sw_rx_bytes",
        /// Packets that the device had decrypted (crypto offload).
        pub in_crypto: "ipsec_crypto_rx_pkts",
        /// Packets that the device had opened completely (packet offload).
        pub in_packet: "ipsec_packet_rx_pkts",
        /// Packets of offloaded SAs that the device left to software: fragments, and packets that the device found
        /// invalid.
        pub in_fallback: "ipsec_rx_fallback",
        /// Packets of a known peer that arrived before their SA and were kept for it.
        pub in_held: "ipsec_rx_held",
        /// Kept packets whose SA arrived in time.
        pub in_held_opened: "ipsec_rx_held_opened",
        /// Dummy packets discarded.
        pub in_dummy: "ipsec_rx_dummy",
        /// NAT keep-alives discarded.
        pub in_keep_alive: "ipsec_rx_keepalive",
        /// Neighbour discovery packets discarded because of fragmentation.
        pub in_fragmented_discovery: "ipsec_rx_nd_fragments",
        /// Neighbour discovery packets discarded because of their arrival out of a tunnel.
        pub in_tunnelled_discovery: "ipsec_rx_nd_tunnel",
        /// Router messages that lowered the path MTU of an SA.
        pub in_path_mtu: "ipsec_rx_path_mtu",
        /// Fragments that never became a whole packet.
        pub in_reassembly_failed: "ipsec_rx_reasm_fails",
        /// Packets that needed a missing SA.
        pub sa_acquires: "ipsec_sa_acquires",
        /// Soft limits reached by SAs.
        pub sa_soft_limits: "ipsec_sa_soft_limits",
        /// Hard limits reached by SAs.
        pub sa_hard_limits: "ipsec_sa_hard_limits",
        /// SAs with all sequence numbers used.
        pub sa_exhausted: "ipsec_sa_exhausted",
        /// SAs lost by the device.
        pub sa_offload_lost: "ipsec_sa_offload_lost",
        /// Attempts to give the device an SA that it had refused temporarily.
        pub sa_offload_retried: "ipsec_sa_offload_retried",
        /// SAs that the device took at a later attempt.
        pub sa_offload_later: "ipsec_sa_offload_later",
        /// Received packets dropped because their headers are malformed.
        pub in_header_error: "XfrmInHdrError",
        /// Received packets dropped because their IPv4 header checksum is wrong.
        pub in_checksum_error: "ipsec_rx_csum_err",
        /// Received packets dropped because their source is an address of this host.
        pub in_own_source: "ipsec_rx_own_source",
        /// Received packets dropped because their SA did not exist and did not arrive soon.
        pub in_no_states: "XfrmInNoStates",
        /// Received packets dropped because their ICV is wrong.
        pub in_state_proto_error: "XfrmInStateProtoError",
        /// Received packets dropped as authentic but unfit for their SA's mode.
        pub in_state_mode_error: "XfrmInStateModeError",
        /// Received packets dropped as replays or too old.
        pub in_state_seq_error: "XfrmInStateSeqError",
        /// Received packets dropped because their SA is used up.
        pub in_state_expired: "XfrmInStateExpired",
        /// Received packets dropped because they use ESP in UDP unlike their SA, or the reverse.
        pub in_state_mismatch: "XfrmInStateMismatch",
        /// Received packets dropped because their policy requires other protection.
        pub in_template_mismatch: "XfrmInTmplMismatch",
        /// Received packets dropped because their number could not be written to the store.
        pub in_numbers_unwritten: "ipsec_rx_numbers_unwritten",
        /// Received packets dropped because no policy admits them.
        pub in_no_policies: "XfrmInNoPols",
        /// Received packets dropped by a policy.
        pub in_policy_block: "XfrmInPolBlock",
        /// Packets to be sent that were dropped because their headers are malformed.
        pub out_error: "XfrmOutError",
        /// Packets to be sent that were dropped because their policy's SA does not exist.
        pub out_no_states: "XfrmOutNoStates",
        /// Packets to be sent that were dropped because their SA's numbers are used up.
        pub out_state_seq_error: "XfrmOutStateSeqError",
        /// Packets to be sent that were dropped because their number could not be written to the store.
        pub out_numbers_unwritten: "ipsec_tx_numbers_unwritten",
        /// Packets to be sent that were dropped because their SA is used up.
        pub out_state_expired: "XfrmOutStateExpired",
        /// ICMP messages dropped because the quoted packet arrived better protected than the message would leave.
        pub out_shown: "ipsec_tx_icmp_unprotected",
        /// Packets dropped because of a request for a packet engine other than ESP, which this layer does not offer.
        pub out_asks: "ipsec_tx_foreign_asks",
        /// Packets dropped as too large for their SA, or as fragments in transport mode.
        pub out_state_mode_error: "XfrmOutStateModeError",
        /// Packets dropped because the device refused the protection.
        pub out_state_invalid: "XfrmOutStateInvalid",
        /// Packets to be sent that were dropped by a policy, or because no policy matched.
        pub out_policy_block: "XfrmOutPolBlock",
    }
}
