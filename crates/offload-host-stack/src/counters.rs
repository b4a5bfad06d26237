//! What a host counts, under the names of Linux' SNMP tables where it has them.

use offload_formats::IpVersion;

offload_base::counters! {
    /// Counters of one host's ARP, NDP, IP, ICMP, UDP and TCP; those of UDP and TCP are of both IPs. Those without a name in Linux begin with `Host`.
    ///
    /// ```
    /// use offload_host_stack::HostCounters;
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
        /// Fragments received.
        pub ip_reassembly_requests: "IpReasmReqds",
        /// Packets put together of fragments.
        pub ip_reassembly_oks: "IpReasmOKs",
        /// Fragments refused, and packets of which not all came.
        pub ip_reassembly_fails: "IpReasmFails",
        /// Packets of which not all came in time.
        pub ip_reassembly_timeouts: "IpReasmTimeout",
        /// Packets sent in fragments.
        pub ip_fragmentation_oks: "IpFragOKs",
        /// Packets not sent because they could not be fragmented.
        pub ip_fragmentation_fails: "IpFragFails",
        /// Fragments made.
        pub ip_fragments_created: "IpFragCreates",
        /// Fragments refused because they overlapped with others, of both IPs.
        pub reassembly_overlaps: "IpExtReasmOverlaps",
        /// Packets whose IP or TCP checksum was wrong, found by the device or by software.
        pub checksum_errors: "TcpInCsumErrors",
        /// Packets handed to the device (a packet for segmentation is one).
        pub ip_out_requests: "IpOutRequests",
        /// Packets not sent because there is no way to their destination.
        pub ip_out_no_routes: "IpOutNoRoutes",
        /// IPv6 packets received, good or bad.
        pub ip6_in_receives: "Ip6InReceives",
        /// IPv6 packets whose headers made no sense.
        pub ip6_in_header_errors: "Ip6InHdrErrors",
        /// IPv6 packets for another host.
        pub ip6_in_address_errors: "Ip6InAddrErrors",
        /// IPv6 packets of a protocol that nobody here speaks.
        pub ip6_in_unknown_protocols: "Ip6InUnknownProtos",
        /// IPv6 packets handed to the device.
        pub ip6_out_requests: "Ip6OutRequests",
        /// IPv6 packets not sent because there is no way to their destination.
        pub ip6_out_no_routes: "Ip6OutNoRoutes",
        /// IPv6 fragments received.
        pub ip6_reassembly_requests: "Ip6ReasmReqds",
        /// IPv6 packets put together of fragments.
        pub ip6_reassembly_oks: "Ip6ReasmOKs",
        /// IPv6 fragments refused, and packets of which not all came.
        pub ip6_reassembly_fails: "Ip6ReasmFails",
        /// IPv6 packets of which not all came in time.
        pub ip6_reassembly_timeouts: "Ip6ReasmTimeout",
        /// IPv6 packets sent in fragments.
        pub ip6_fragmentation_oks: "Ip6FragOKs",
        /// IPv6 packets not sent because they could not be fragmented.
        pub ip6_fragmentation_fails: "Ip6FragFails",
        /// IPv6 fragments made.
        pub ip6_fragments_created: "Ip6FragCreates",
        /// ARP packets received that made no sense, or spoke of this host's own address.
        pub arp_in_errors: "HostArpInErrors",
        /// ARP requests sent.
        pub arp_requests: "HostArpOutRequests",
        /// ARP requests answered.
        pub arp_replies: "HostArpOutReplies",
        /// Neighbour solicitations and advertisements that made no sense, or spoke of this host's own address.
        pub ndp_in_errors: "HostNdpInErrors",
        /// Neighbour solicitations received.
        pub neighbour_solicits_in: "Icmp6InNeighborSolicits",
        /// Neighbour advertisements received.
        pub neighbour_advertisements_in: "Icmp6InNeighborAdvertisements",
        /// Neighbour solicitations sent.
        pub neighbour_solicits_out: "Icmp6OutNeighborSolicits",
        /// Neighbour advertisements sent.
        pub neighbour_advertisements_out: "Icmp6OutNeighborAdvertisements",
        /// Routers' advertisements received.
        pub router_advertisements_in: "Icmp6InRouterAdvertisements",
        /// Router solicitations sent.
        pub router_solicits_out: "Icmp6OutRouterSolicits",
        /// Addresses that this host was about to take, and somebody else had.
        pub duplicate_addresses: "HostNdpDuplicates",
        /// Packets dropped because the next hop's Ethernet address was not to be found, or too many waited for it.
        pub unresolved_discards: "HostUnresolvedDiscards",
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
        /// ICMPv6 messages received.
        pub icmp6_in_messages: "Icmp6InMsgs",
        /// ICMPv6 messages received that made no sense.
        pub icmp6_in_errors: "Icmp6InErrors",
        /// ICMPv6 messages received with a wrong checksum.
        pub icmp6_in_checksum_errors: "Icmp6InCsumErrors",
        /// ICMPv6 echo requests received.
        pub icmp6_in_echos: "Icmp6InEchos",
        /// ICMPv6 "destination unreachable" received.
        pub icmp6_in_unreachables: "Icmp6InDestUnreachs",
        /// ICMPv6 "packet too big" received.
        pub icmp6_in_too_bigs: "Icmp6InPktTooBigs",
        /// ICMPv6 echo replies sent.
        pub icmp6_out_echo_replies: "Icmp6OutEchoReplies",
        /// ICMPv6 "destination unreachable" sent.
        pub icmp6_out_unreachables: "Icmp6OutDestUnreachs",
        /// ICMPv6 "time exceeded" sent.
        pub icmp6_out_time_exceeded: "Icmp6OutTimeExcds",
        /// ICMPv6 "parameter problem" sent.
        pub icmp6_out_parameter_problems: "Icmp6OutParmProblems",
        /// ICMP "time exceeded" sent.
        pub icmp_out_time_exceeded: "IcmpOutTimeExcds",
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
        /// SYNs answered with cookies because the listener had too many half-open connections.
        pub cookies_sent: "TcpExtSyncookiesSent",
        /// Acknowledgments of cookies.
        pub cookies_received: "TcpExtSyncookiesRecv",
        /// Segments that might have been, and were not.
        pub cookies_failed: "TcpExtSyncookiesFailed",
        /// SYNs dropped because the listener had too many half-open connections, and a cookie would not do.
        pub request_queue_drops: "TcpExtTCPReqQFullDrop",
        /// Final ACKs of a handshake dropped because nobody accepted connections fast enough.
        pub listen_overflows: "TcpExtListenOverflows",
        /// Connections in TIME-WAIT that gave way because there were as many connections as there may be.
        pub time_wait_overflows: "TcpExtTCPTimeWaitOverflow",
        /// Connections that ended because there was no room for more, or no memory: nobody held them, or their peers kept
        /// their windows closed.
        pub aborts_on_memory: "TcpExtTCPAbortOnMemory",
        /// Times that the connections' queues took more memory than is good.
        pub memory_pressures: "TcpExtTCPMemoryPressures",
        /// Segments received that found too little memory: they, or others, were copied or thrown away.
        pub prune_called: "TcpExtPruneCalled",
        /// Connections refused because there was no memory for what they would queue.
        pub memory_refusals: "HostTcpMemoryRefusals",
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
        /// Data segments received that the network had marked (RFC 3168).
        pub in_marked: "IpExtInCEPkts",
        /// Times the window was cut because the peer reported marks.
        pub window_cuts_for_marks: "HostTcpEcnCuts",
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
        /// Packets handed on to another shard of the host: nobody here knew their flow.
        pub shard_passed: "HostShardPassed",
        /// Packets that another shard had no room for, or that a device had worked on for a flow that is gone.
        pub shard_drops: "HostShardDrops",
    }
}

/// What is counted of either IP, under a name of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ip {
    InReceives,
    InHeaderErrors,
    InAddressErrors,
    InUnknownProtocols,
    OutRequests,
    OutNoRoutes,
    ReassemblyRequests,
    ReassemblyOks,
    ReassemblyFails,
    ReassemblyTimeouts,
    FragmentationOks,
    FragmentationFails,
    FragmentsCreated,
}

impl HostCounters {
    /// Counts one more.
    pub(crate) fn count(&mut self, version: IpVersion, what: Ip) {
        self.count_many(version, what, 1);
    }

    pub(crate) fn count_many(&mut self, version: IpVersion, what: Ip, more: u64) {
        let (four, six) = match what {
            Ip::InReceives => (&mut self.ip_in_receives, &mut self.ip6_in_receives),
            Ip::InHeaderErrors => (&mut self.ip_in_header_errors, &mut self.ip6_in_header_errors),
            Ip::InAddressErrors => (&mut self.ip_in_address_errors, &mut self.ip6_in_address_errors),
            Ip::InUnknownProtocols => (&mut self.ip_in_unknown_protocols, &mut self.ip6_in_unknown_protocols),
            Ip::OutRequests => (&mut self.ip_out_requests, &mut self.ip6_out_requests),
            Ip::OutNoRoutes => (&mut self.ip_out_no_routes, &mut self.ip6_out_no_routes),
            Ip::ReassemblyRequests => (&mut self.ip_reassembly_requests, &mut self.ip6_reassembly_requests),
            Ip::ReassemblyOks => (&mut self.ip_reassembly_oks, &mut self.ip6_reassembly_oks),
            Ip::ReassemblyFails => (&mut self.ip_reassembly_fails, &mut self.ip6_reassembly_fails),
            Ip::ReassemblyTimeouts => (&mut self.ip_reassembly_timeouts, &mut self.ip6_reassembly_timeouts),
            Ip::FragmentationOks => (&mut self.ip_fragmentation_oks, &mut self.ip6_fragmentation_oks),
            Ip::FragmentationFails => (&mut self.ip_fragmentation_fails, &mut self.ip6_fragmentation_fails),
            Ip::FragmentsCreated => (&mut self.ip_fragments_created, &mut self.ip6_fragments_created),
        };
        *match version {
            IpVersion::V4 => four,
            IpVersion::V6 => six,
        } += more;
    }
}
