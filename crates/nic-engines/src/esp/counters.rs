//! Counters of the ESP engine, under the names of the mlx5 driver and of Linux where those exist.

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
        /// Dropped packets of an SA that is used up.
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
        /// Dropped packets that were replays or too old.
        pub xfrm_in_state_seq_error: "XfrmInStateSeqError",
        /// Dropped packets of an SA that is used up.
        pub xfrm_in_state_expired: "XfrmInStateExpired",
        /// Dropped packets that were authentic, but not of the kind that the SA carries.
        pub xfrm_in_state_mode_error: "XfrmInStateModeError",
        /// Dummy packets discarded.
        pub ipsec_rx_dummy: "ipsec_rx_dummy",
        /// Packets with a wrong ICV, handed up as they are.
        pub ipsec_rx_auth_fail: "ipsec_rx_auth_fail",
        /// Fragments of ESP packets, handed up as they are.
        pub ipsec_rx_fragments: "ipsec_rx_fragments",
    }
}
