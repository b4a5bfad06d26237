//! What is counted, under the names of Linux's `/proc/net/xfrm_stat` where those exist.

offload_base::counters! {
    /// What the IPsec layer counts.
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
        /// Bytes of those, as lifetimes count them.
        pub out_software_bytes: "ipsec_sw_tx_bytes",
        /// Packets given to the device to be encrypted.
        pub out_crypto: "ipsec_crypto_tx_pkts",
        /// Packets given to the device to be protected altogether.
        pub out_packet: "ipsec_packet_tx_pkts",
        /// Packets that software took on because the device would not.
        pub out_fallback: "ipsec_tx_fallback",
        /// NAT keep-alives sent.
        pub out_keep_alive: "ipsec_tx_keepalive",
        /// Packets opened in software.
        pub in_software: "ipsec_sw_rx_pkts",
        /// Bytes of those, as lifetimes count them.
        pub in_software_bytes: "ipsec_sw_rx_bytes",
        /// Packets that the device had decrypted.
        pub in_crypto: "ipsec_crypto_rx_pkts",
        /// Packets that the device had opened altogether.
        pub in_packet: "ipsec_packet_rx_pkts",
        /// Packets of an SA that the device has, which it left to software: fragments, and what it found wrong.
        pub in_fallback: "ipsec_rx_fallback",
        /// Packets of a peer that came before their SA, and waited for it.
        pub in_held: "ipsec_rx_held",
        /// Those of them whose SA came in time.
        pub in_held_opened: "ipsec_rx_held_opened",
        /// Dummy packets discarded.
        pub in_dummy: "ipsec_rx_dummy",
        /// NAT keep-alives discarded.
        pub in_keep_alive: "ipsec_rx_keepalive",
        /// Neighbour discovery discarded because it came in fragments.
        pub in_fragmented_discovery: "ipsec_rx_nd_fragments",
        /// Neighbour discovery discarded because it came out of a tunnel.
        pub in_tunnelled_discovery: "ipsec_rx_nd_tunnel",
        /// Times a router said that packets of an SA must be smaller.
        pub in_path_mtu: "ipsec_rx_path_mtu",
        /// Fragments that never became a packet.
        pub in_reassembly_failed: "ipsec_rx_reasm_fails",
        /// Times a packet wanted an SA that did not exist.
        pub sa_acquires: "ipsec_sa_acquires",
        /// Soft limits that SAs reached.
        pub sa_soft_limits: "ipsec_sa_soft_limits",
        /// Hard limits that SAs reached.
        pub sa_hard_limits: "ipsec_sa_hard_limits",
        /// SAs whose numbers are used up.
        pub sa_exhausted: "ipsec_sa_exhausted",
        /// SAs that the device lost.
        pub sa_offload_lost: "ipsec_sa_offload_lost",
        /// Times the device was asked again to take an SA that it had refused for the time being.
        pub sa_offload_retried: "ipsec_sa_offload_retried",
        /// SAs that it took then.
        pub sa_offload_later: "ipsec_sa_offload_later",
        /// Received packets dropped: no header that makes sense.
        pub in_header_error: "XfrmInHdrError",
        /// Received packets dropped: the checksum of their IPv4 header is wrong.
        pub in_checksum_error: "ipsec_rx_csum_err",
        /// Received packets dropped: their source is an address of ours.
        pub in_own_source: "ipsec_rx_own_source",
        /// No SA has this SPI, nor came soon.
        pub in_no_states: "XfrmInNoStates",
        /// The ICV is wrong.
        pub in_state_proto_error: "XfrmInStateProtoError",
        /// It is authentic, and not what its SA carries.
        pub in_state_mode_error: "XfrmInStateModeError",
        /// A replay, or too old.
        pub in_state_seq_error: "XfrmInStateSeqError",
        /// The SA is used up.
        pub in_state_expired: "XfrmInStateExpired",
        /// ESP in UDP where the SA has none, or the other way round.
        pub in_state_mismatch: "XfrmInStateMismatch",
        /// The policy asks for another protection than the packet had.
        pub in_template_mismatch: "XfrmInTmplMismatch",
        /// Its number could not be written down before it was accepted.
        pub in_numbers_unwritten: "ipsec_rx_numbers_unwritten",
        /// No policy lets it in.
        pub in_no_policies: "XfrmInNoPols",
        /// A policy discards it.
        pub in_policy_block: "XfrmInPolBlock",
        /// Packets to be sent that were dropped: no headers that make sense.
        pub out_error: "XfrmOutError",
        /// There is no SA for the policy.
        pub out_no_states: "XfrmOutNoStates",
        /// The SA's numbers are used up.
        pub out_state_seq_error: "XfrmOutStateSeqError",
        /// Its number could not be written down before it was used.
        pub out_numbers_unwritten: "ipsec_tx_numbers_unwritten",
        /// The SA is used up.
        pub out_state_expired: "XfrmOutStateExpired",
        /// ICMP messages with something in them that came better protected than they would leave.
        pub out_shown: "ipsec_tx_icmp_unprotected",
        /// Something else than ESP was to be made of the packet as a whole, which this layer does not offer.
        pub out_asks: "ipsec_tx_foreign_asks",
        /// The SA cannot carry the packet: too large, or a fragment in transport mode.
        pub out_state_mode_error: "XfrmOutStateModeError",
        /// The device was to protect it and would not.
        pub out_state_invalid: "XfrmOutStateInvalid",
        /// A policy discards it, or there is none.
        pub out_policy_block: "XfrmOutPolBlock",
    }
}
