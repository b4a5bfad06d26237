//! What a host counts, under the names of Linux' SNMP tables where it has them.

offload_base::counters! {
    /// Counters of one host's ARP, IP, ICMP, UDP and TCP. Those without a name in Linux begin with `Host`.
    ///
    /// ```
    /// use host_stack::HostCounters;
    /// use offload_base::counters::CounterSet;
    ///
    /// let mut set = CounterSet::default();
    /// set.add(&HostCounters { retransmitted_segments: 3, ..HostCounters::default() });
    /// assert_eq!(set.value("TcpRetransSegs"), 3);
    /// ```
    pub struct HostCounters {
        /// Packets received, good or bad.
        pub ip_in_receives: "IpInReceives",
        /// Packets whose Ethernet or IP header made no sense.
        pub ip_in_header_errors: "IpInHdrErrors",
        /// Packets for another host.
        pub ip_in_address_errors: "IpInAddrErrors",
        /// Packets of a protocol that nobody here speaks.
        pub ip_in_unknown_protocols: "IpInUnknownProtos",
        /// Fragments; they are not put together.
        pub ip_fragments_dropped: "IpReasmFails",
        /// Packets whose IP or TCP checksum was wrong, found by the device or by software.
        pub checksum_errors: "TcpInCsumErrors",
        /// Packets handed to the device (a packet for segmentation is one).
        pub ip_out_requests: "IpOutRequests",
        /// Packets not sent because there is no way to their destination.
        pub ip_out_no_routes: "IpOutNoRoutes",
        /// ARP packets received that made no sense, or spoke of this host's own address.
        pub arp_in_errors: "HostArpInErrors",
        /// ARP requests sent.
        pub arp_requests: "HostArpOutRequests",
        /// ARP requests answered.
        pub arp_replies: "HostArpOutReplies",
        /// Packets dropped because the next hop's Ethernet address was not to be found, or too many waited for it.
        pub arp_unresolved_discards: "HostArpUnresolvedDiscards",
        /// ICMP messages received.
        pub icmp_in_messages: "IcmpInMsgs",
        /// ICMP messages received that made no sense.
        pub icmp_in_errors: "IcmpInErrors",
        /// ICMP messages received with a wrong checksum.
        pub icmp_in_checksum_errors: "IcmpInCsumErrors",
        /// Echo requests received.
        pub icmp_in_echos: "IcmpInEchos",
        /// "Destination unreachable" received.
        pub icmp_in_unreachables: "IcmpInDestUnreachs",
        /// Echo replies sent.
        pub icmp_out_echo_replies: "IcmpOutEchoReps",
        /// "Destination unreachable" sent.
        pub icmp_out_unreachables: "IcmpOutDestUnreachs",
        /// Answers not sent because there were too many of their kind in this second.
        pub icmp_out_limited: "IcmpOutRateLimitGlobal",
        /// Answers not sent because too many others waited for the device.
        pub answers_dropped: "HostAnswersDropped",
        /// Datagrams received and kept for a socket.
        pub udp_in_datagrams: "UdpInDatagrams",
        /// Datagrams received that made no sense.
        pub udp_in_errors: "UdpInErrors",
        /// Datagrams received with a wrong checksum.
        pub udp_in_checksum_errors: "UdpInCsumErrors",
        /// Datagrams dropped because their socket had too many.
        pub udp_receive_drops: "UdpRcvbufErrors",
        /// Datagrams sent.
        pub udp_out_datagrams: "UdpOutDatagrams",
        /// Datagrams for ports at which nobody listens.
        pub udp_no_ports: "UdpNoPorts",
        /// ICMP errors about what was not under way: stale, or forged.
        pub stray_icmp_errors: "TcpExtOutOfWindowIcmps",
        /// Paths found to take smaller packets only.
        pub paths_narrowed: "HostPathMtuReductions",
        /// Packets a driver dropped rather than send them unencrypted.
        pub device_drops: "HostTxDeviceDrops",
        /// Units that software sealed because no device would.
        pub sealed_units: "HostTxSealedUnits",
        /// Connections ended because a unit could not be sealed.
        pub seal_failures: "HostTxSealFailures",
        /// Segments received.
        pub in_segments: "TcpInSegs",
        /// Segments received that made no sense.
        pub in_errors: "TcpInErrs",
        /// Segments sent, retransmitted ones left out.
        pub out_segments: "TcpOutSegs",
        /// Segments sent again.
        pub retransmitted_segments: "TcpRetransSegs",
        /// Segments sent with RST.
        pub out_resets: "TcpOutRsts",
        /// Connections begun from here.
        pub active_opens: "TcpActiveOpens",
        /// Connections begun from elsewhere.
        pub passive_opens: "TcpPassiveOpens",
        /// Connections that never were established.
        pub attempt_fails: "TcpAttemptFails",
        /// Established connections that ended with a reset.
        pub established_resets: "TcpEstabResets",
        /// SYNs dropped because the listener had too many half-open connections.
        pub request_queue_drops: "TcpExtTCPReqQFullDrop",
        /// Final ACKs of a handshake dropped because nobody accepted connections fast enough.
        pub listen_overflows: "TcpExtListenOverflows",
        /// SYNs dropped for whatever reason.
        pub listen_drops: "TcpExtListenDrops",
        /// Retransmission timeouts.
        pub timeouts: "TcpExtTCPTimeouts",
        /// Segments sent again in fast recovery.
        pub fast_retransmits: "TcpExtTCPFastRetrans",
        /// Segments sent again after a timeout.
        pub slow_start_retransmits: "TcpExtTCPSlowStartRetrans",
        /// Retransmissions that were lost as well.
        pub lost_retransmits: "TcpExtTCPLostRetransmit",
        /// Recoveries that selective acknowledgments began.
        pub sack_recoveries: "TcpExtTCPSackRecovery",
        /// Recoveries that duplicate acknowledgments began.
        pub reno_recoveries: "TcpExtTCPRenoRecovery",
        /// Times that data came out of order although nothing was lost.
        pub sack_reorders: "TcpExtTCPSACKReorder",
        /// Peers that threw away what they had selectively acknowledged.
        pub sack_reneging: "TcpExtTCPSACKReneging",
        /// Tail loss probes sent.
        pub loss_probes: "TcpExtTCPLossProbes",
        /// Losses that a probe repaired.
        pub loss_probe_recoveries: "TcpExtTCPLossProbeRecovery",
        /// Congestion responses taken back because duplicate reports showed that nothing was lost.
        pub dsack_undos: "TcpExtTCPDSACKUndo",
        /// Congestion responses taken back because timestamps showed that nothing was lost.
        pub full_undos: "TcpExtTCPFullUndo",
        /// Connections given up after too many timeouts.
        pub aborts_on_timeout: "TcpExtTCPAbortOnTimeout",
        /// Connections reset because data came for a stream that was dropped, or were left unread.
        pub aborts_on_data: "TcpExtTCPAbortOnData",
        /// Segments dropped as older than what came before.
        pub paws_drops: "TcpExtPAWSEstab",
        /// ACKs sent in answer to segments that might be forged.
        pub challenge_acks: "TcpExtTCPChallengeACK",
        /// ACKs that waited for company.
        pub delayed_acks: "TcpExtDelayedACKs",
        /// Segments that came out of order and were kept.
        pub out_of_order_queued: "TcpExtTCPOFOQueue",
        /// Segments that came out of order and found no memory.
        pub out_of_order_drops: "TcpExtTCPOFODrop",
        /// Out-of-order data thrown away to make room for data in order.
        pub out_of_order_pruned: "TcpExtOfoPruned",
        /// Segments in order that found no memory.
        pub receive_queue_drops: "TcpExtTCPRcvQDrop",
        /// Segments copied out of their buffers to save memory.
        pub receive_collapsed: "TcpExtTCPRcvCollapsed",
        /// Duplicates reported to the sender.
        pub dsacks_sent: "TcpExtTCPDSACKOldSent",
        /// Duplicates reported by the receiver.
        pub dsacks_received: "TcpExtTCPDSACKRecv",
        /// Times the advertised window fell to nothing.
        pub to_zero_window: "TcpExtTCPToZeroWindowAdv",
        /// Times it opened again.
        pub from_zero_window: "TcpExtTCPFromZeroWindowAdv",
        /// Probes of silent peers.
        pub keep_alives: "TcpExtTCPKeepAlive",
        /// Probes of a peer's closed window.
        pub window_probes: "TcpExtTCPWinProbe",
    }
}
