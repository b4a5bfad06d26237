//! Counters of the ESP engine. Names follow the mlx5 driver and Linux where possible.

offload_base::counters! {
    /// Counters of the ESP engine.
    ///
    /// ```
    /// use nic_sim::stats::EspCounters;
    /// use nic_sim::{NicConfig, nic};
    ///
    /// let (device, _driver) = nic(NicConfig::default());
    /// assert_eq!(device.engine_counters::<EspCounters>().ipsec_tx_pkts, 0);
    /// ```
    pub struct EspCounters {
        /// Packets protected with ESP.
        pub ipsec_tx_pkts: "ipsec_tx_pkts",
        /// Bytes of the protected frames.
        pub ipsec_tx_bytes: "ipsec_tx_bytes",
        /// Packets dropped because they could not be protected; the following counters give the reason.
        pub ipsec_tx_drop_pkts: "ipsec_tx_drop_pkts",
        /// Drops because no SA or policy applied, or the SA was used up.
        pub ipsec_tx_drop_no_state: "ipsec_tx_drop_no_state",
        /// Drops because the packet has no headers that ESP can follow.
        pub ipsec_tx_drop_not_ip: "ipsec_tx_drop_not_ip",
        /// Drops because the frame would be too long with the ESP trailer.
        pub ipsec_tx_drop_trailer: "ipsec_tx_drop_trailer",
        /// Drops because the SA was used up.
        pub xfrm_out_state_expired: "XfrmOutStateExpired",
        /// Drops because the SA's sequence numbers were used up.
        pub xfrm_out_state_seq_error: "XfrmOutStateSeqError",
        /// Drops because there was no SA.
        pub xfrm_out_no_states: "XfrmOutNoStates",
        /// Packets decrypted or unwrapped.
        pub ipsec_rx_pkts: "ipsec_rx_pkts",
        /// Bytes of these frames.
        pub ipsec_rx_bytes: "ipsec_rx_bytes",
        /// Packets dropped: replays, packets of a used-up SA, and packets that violate their SA.
        pub ipsec_rx_drop_pkts: "ipsec_rx_drop_pkts",
        /// Drops because of a replay or an old number.
        pub xfrm_in_state_seq_error: "XfrmInStateSeqError",
        /// Drops because the SA was used up.
        pub xfrm_in_state_expired: "XfrmInStateExpired",
        /// Drops of authentic packets of another kind than the SA carries.
        pub xfrm_in_state_mode_error: "XfrmInStateModeError",
        /// Dummy packets discarded.
        pub ipsec_rx_dummy: "ipsec_rx_dummy",
        /// Packets with a wrong ICV, passed to the host unchanged.
        pub ipsec_rx_auth_fail: "ipsec_rx_auth_fail",
        /// Fragments of ESP packets, passed to the host unchanged.
        pub ipsec_rx_fragments: "ipsec_rx_fragments",
    }
}
