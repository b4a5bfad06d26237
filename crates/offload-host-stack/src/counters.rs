//! Counters of a host, under the names of Linux's SNMP tables where Linux has one.

use offload_formats::IpVersion;

offload_base::counters! {
    /// Counters of one host's ARP, NDP, IP, ICMP, UDP and TCP. UDP and TCP counters cover both IP versions. Counters
    /// without a Linux name begin with `Host`.
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
        /// Packets received, valid or not.
        pub ip_in_receives: "IpInReceives",
        /// Packets with an invalid Ethernet or IP header.
        pub ip_in_header_errors: "IpInHdrErrors",
        /// Packets for another host.
        pub ip_in_address_errors: "IpInAddrErrors",
        /// Packets of a protocol that this host does not implement.
        pub ip_in_unknown_protocols: "IpInUnknownProtos",
        /// Fragments received.
        pub ip_reassembly_requests: "IpReasmReqds",
        /// Packets reassembled.
        pub ip_reassembly_oks: "IpReasmOKs",
        /// Fragments refused, and packets with missing fragments.
        pub ip_reassembly_fails: "IpReasmFails",
        /// Packets with fragments still missing at the reassembly timeout.
        pub ip_reassembly_timeouts: "IpReasmTimeout",
        /// Packets sent in fragments.
        pub ip_fragmentation_oks: "IpFragOKs",
        /// Packets not sent because they could not be fragmented.
        pub ip_fragmentation_fails: "IpFragFails",
        /// Fragments created.
        pub ip_fragments_created: "IpFragCreates",
        /// Fragments refused because they overlapped with others, in both IP versions.
        pub reassembly_overlaps: "IpExtReasmOverlaps",
        /// Packets with a wrong IP or TCP checksum, found by the device or by software.
        pub checksum_errors: "TcpInCsumErrors",
        /// Packets given to the device. A packet for segmentation counts once.
        pub ip_out_requests: "IpOutRequests",
        /// Packets not sent because their destination has no route.
        pub ip_out_no_routes: "IpOutNoRoutes",
        /// IPv6 packets received, valid or not.
        pub ip6_in_receives: "Ip6InReceives",
        /// IPv6 packets with invalid headers.
        pub ip6_in_header_errors: "Ip6InHdrErrors",
        /// IPv6 packets for another host.
        pub ip6_in_address_errors: "Ip6InAddrErrors",
        /// IPv6 packets of a protocol that this host does not implement.
        pub ip6_in_unknown_protocols: "Ip6InUnknownProtos",
        /// IPv6 packets given to the device.
        pub ip6_out_requests: "Ip6OutRequests",
        /// IPv6 packets not sent because their destination has no route.
        pub ip6_out_no_routes: "Ip6OutNoRoutes",
        /// IPv6 fragments received.
        pub ip6_reassembly_requests: "Ip6ReasmReqds",
        /// IPv6 packets reassembled.
        pub ip6_reassembly_oks: "Ip6ReasmOKs",
        /// IPv6 fragments refused, and packets with missing fragments.
        pub ip6_reassembly_fails: "Ip6ReasmFails",
        /// IPv6 packets with fragments still missing at the reassembly timeout.
        pub ip6_reassembly_timeouts: "Ip6ReasmTimeout",
        /// IPv6 packets sent in fragments.
        pub ip6_fragmentation_oks: "Ip6FragOKs",
        /// IPv6 packets not sent because they could not be fragmented.
        pub ip6_fragmentation_fails: "Ip6FragFails",
        /// IPv6 fragments created.
        pub ip6_fragments_created: "Ip6FragCreates",
        /// ARP packets received that were invalid or claimed this host's own address.
        pub arp_in_errors: "HostArpInErrors",
        /// ARP requests sent.
        pub arp_requests: "HostArpOutRequests",
        /// ARP replies sent.
        pub arp_replies: "HostArpOutReplies",
        /// Neighbour solicitations and advertisements that were invalid or claimed this host's own address.
        pub ndp_in_errors: "HostNdpInErrors",
        /// Neighbour solicitations received.
        pub neighbour_solicits_in: "Icmp6InNeighborSolicits",
        /// Neighbour advertisements received.
        pub neighbour_advertisements_in: "Icmp6InNeighborAdvertisements",
        /// Neighbour solicitations sent.
        pub neighbour_solicits_out: "Icmp6OutNeighborSolicits",
        /// Neighbour advertisements sent.
        pub neighbour_advertisements_out: "Icmp6OutNeighborAdvertisements",
        /// Router advertisements received.
        pub router_advertisements_in: "Icmp6InRouterAdvertisements",
        /// Router solicitations sent.
        pub router_solicits_out: "Icmp6OutRouterSolicits",
        /// Addresses given up because duplicate detection found another owner.
        pub duplicate_addresses: "HostNdpDuplicates",
        /// Packets dropped because the next hop's Ethernet address was not found, or too many packets waited for it.
        pub unresolved_discards: "HostUnresolvedDiscards",
        /// ICMP messages received.
        pub icmp_in_messages: "IcmpInMsgs",
        /// Invalid ICMP messages received.
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
        /// Invalid ICMPv6 messages received.
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
        /// Answers not sent because of the rate limit of their kind.
        pub icmp_out_limited: "IcmpOutRateLimitGlobal",
        /// Answers not sent because too many others waited for the device.
        pub answers_dropped: "HostAnswersDropped",
        /// Datagrams queued at a socket.
        pub udp_in_datagrams: "UdpInDatagrams",
        /// Invalid datagrams received.
        pub udp_in_errors: "UdpInErrors",
        /// Datagrams received with a wrong checksum.
        pub udp_in_checksum_errors: "UdpInCsumErrors",
        /// Datagrams dropped because their socket's queue was full.
        pub udp_receive_drops: "UdpRcvbufErrors",
        /// Datagrams sent.
        pub udp_out_datagrams: "UdpOutDatagrams",
        /// Datagrams for closed ports.
        pub udp_no_ports: "UdpNoPorts",
        /// ICMP errors that quote no packet in flight: stale or forged.
        pub stray_icmp_errors: "TcpExtOutOfWindowIcmps",
        /// Path MTU reductions.
        pub paths_narrowed: "HostPathMtuReductions",
        /// Packets that a driver dropped instead of sending them unencrypted.
        pub device_drops: "HostTxDeviceDrops",
        /// Units sealed in software because the device could not seal them.
        pub sealed_units: "HostTxSealedUnits",
        /// Connections aborted because a unit could not be sealed.
        pub seal_failures: "HostTxSealFailures",
        /// Segments received.
        pub in_segments: "TcpInSegs",
        /// Invalid segments received.
        pub in_errors: "TcpInErrs",
        /// Segments sent, without retransmissions.
        pub out_segments: "TcpOutSegs",
        /// Segments retransmitted.
        pub retransmitted_segments: "TcpRetransSegs",
        /// Segments sent with RST.
        pub out_resets: "TcpOutRsts",
        /// Connections opened by this host.
        pub active_opens: "TcpActiveOpens",
        /// Connections opened by peers.
        pub passive_opens: "TcpPassiveOpens",
        /// Connections that ended before they were established.
        pub attempt_fails: "TcpAttemptFails",
        /// Established connections ended by a reset.
        pub established_resets: "TcpEstabResets",
        /// SYNs answered with cookies because the listener's SYN queue was full.
        pub cookies_sent: "TcpExtSyncookiesSent",
        /// ACKs with a valid cookie.
        pub cookies_received: "TcpExtSyncookiesRecv",
        /// ACKs with an invalid cookie.
        pub cookies_failed: "TcpExtSyncookiesFailed",
        /// SYNs dropped because the listener's SYN queue was full and no cookie could be sent.
        pub request_queue_drops: "TcpExtTCPReqQFullDrop",
        /// Final handshake ACKs dropped because the accept queue was full.
        pub listen_overflows: "TcpExtListenOverflows",
        /// Connections in TIME-WAIT removed because the connection limit was reached.
        pub time_wait_overflows: "TcpExtTCPTimeWaitOverflow",
        /// Connections aborted because the connection or memory limit was reached: dropped ones, and ones with a closed
        /// peer window.
        pub aborts_on_memory: "TcpExtTCPAbortOnMemory",
        /// Times that the connections' queues came under memory pressure.
        pub memory_pressures: "TcpExtTCPMemoryPressures",
        /// Received segments that exceeded the memory limit, so that segments were copied or dropped.
        pub prune_called: "TcpExtPruneCalled",
        /// Connections refused because of the memory limit.
        pub memory_refusals: "HostTcpMemoryRefusals",
        /// SYNs dropped for any reason.
        pub listen_drops: "TcpExtListenDrops",
        /// Retransmission timeouts.
        pub timeouts: "TcpExtTCPTimeouts",
        /// Segments retransmitted in fast recovery.
        pub fast_retransmits: "TcpExtTCPFastRetrans",
        /// Segments retransmitted after a timeout.
        pub slow_start_retransmits: "TcpExtTCPSlowStartRetrans",
        /// Retransmissions lost.
        pub lost_retransmits: "TcpExtTCPLostRetransmit",
        /// Recoveries begun by selective acknowledgments.
        pub sack_recoveries: "TcpExtTCPSackRecovery",
        /// Recoveries begun by duplicate acknowledgments.
        pub reno_recoveries: "TcpExtTCPRenoRecovery",
        /// Times that reordering was detected.
        pub sack_reorders: "TcpExtTCPSACKReorder",
        /// Peers that discarded selectively acknowledged data.
        pub sack_reneging: "TcpExtTCPSACKReneging",
        /// Tail loss probes sent.
        pub loss_probes: "TcpExtTCPLossProbes",
        /// Losses repaired by a tail loss probe.
        pub loss_probe_recoveries: "TcpExtTCPLossProbeRecovery",
        /// Data segments received with a congestion mark (RFC 3168).
        pub in_marked: "IpExtInCEPkts",
        /// Window reductions because of marks that the peer reported.
        pub window_cuts_for_marks: "HostTcpEcnCuts",
        /// Congestion responses undone because of duplicate SACKs.
        pub dsack_undos: "TcpExtTCPDSACKUndo",
        /// Congestion responses undone because of timestamps.
        pub full_undos: "TcpExtTCPFullUndo",
        /// Connections aborted after too many timeouts.
        pub aborts_on_timeout: "TcpExtTCPAbortOnTimeout",
        /// Connections reset because data arrived after the stream was dropped, or were left unread.
        pub aborts_on_data: "TcpExtTCPAbortOnData",
        /// Segments dropped because of an old timestamp.
        pub paws_drops: "TcpExtPAWSEstab",
        /// ACKs sent in answer to possibly forged segments.
        pub challenge_acks: "TcpExtTCPChallengeACK",
        /// ACKs delayed.
        pub delayed_acks: "TcpExtDelayedACKs",
        /// Out-of-order segments queued.
        pub out_of_order_queued: "TcpExtTCPOFOQueue",
        /// Out-of-order segments dropped because of the memory limit.
        pub out_of_order_drops: "TcpExtTCPOFODrop",
        /// Times that out-of-order data were discarded in favour of in-order data.
        pub out_of_order_pruned: "TcpExtOfoPruned",
        /// In-order segments dropped because of the memory limit.
        pub receive_queue_drops: "TcpExtTCPRcvQDrop",
        /// Segments copied out of their buffers to save memory.
        pub receive_collapsed: "TcpExtTCPRcvCollapsed",
        /// Duplicate SACKs sent.
        pub dsacks_sent: "TcpExtTCPDSACKOldSent",
        /// Duplicate SACKs received.
        pub dsacks_received: "TcpExtTCPDSACKRecv",
        /// Times that the advertised window fell to zero.
        pub to_zero_window: "TcpExtTCPToZeroWindowAdv",
        /// Times that the advertised window reopened.
        pub from_zero_window: "TcpExtTCPFromZeroWindowAdv",
        /// Keep-alive probes sent.
        pub keep_alives: "TcpExtTCPKeepAlive",
        /// Probes of a peer's closed window.
        pub window_probes: "TcpExtTCPWinProbe",
        /// Packets passed to another shard because this shard does not know their flow.
        pub shard_passed: "HostShardPassed",
        /// Packets dropped between shards: the other shard's queue was full, or a device had processed them for a flow
        /// that is gone.
        pub shard_drops: "HostShardDrops",
    }
}

/// A counter that exists once per IP version.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IpCounter {
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
    /// Increments the counter for `version`.
    pub(crate) fn count(&mut self, version: IpVersion, what: IpCounter) {
        self.count_many(version, what, 1);
    }

    pub(crate) fn count_many(&mut self, version: IpVersion, what: IpCounter, more: u64) {
        let (four, six) = match what {
            IpCounter::InReceives => (&mut self.ip_in_receives, &mut self.ip6_in_receives),
            IpCounter::InHeaderErrors => (&mut self.ip_in_header_errors, &mut self.ip6_in_header_errors),
            IpCounter::InAddressErrors => (&mut self.ip_in_address_errors, &mut self.ip6_in_address_errors),
            IpCounter::InUnknownProtocols => (&mut self.ip_in_unknown_protocols, &mut self.ip6_in_unknown_protocols),
            IpCounter::OutRequests => (&mut self.ip_out_requests, &mut self.ip6_out_requests),
            IpCounter::OutNoRoutes => (&mut self.ip_out_no_routes, &mut self.ip6_out_no_routes),
            IpCounter::ReassemblyRequests => (&mut self.ip_reassembly_requests, &mut self.ip6_reassembly_requests),
            IpCounter::ReassemblyOks => (&mut self.ip_reassembly_oks, &mut self.ip6_reassembly_oks),
            IpCounter::ReassemblyFails => (&mut self.ip_reassembly_fails, &mut self.ip6_reassembly_fails),
            IpCounter::ReassemblyTimeouts => (&mut self.ip_reassembly_timeouts, &mut self.ip6_reassembly_timeouts),
            IpCounter::FragmentationOks => (&mut self.ip_fragmentation_oks, &mut self.ip6_fragmentation_oks),
            IpCounter::FragmentationFails => (&mut self.ip_fragmentation_fails, &mut self.ip6_fragmentation_fails),
            IpCounter::FragmentsCreated => (&mut self.ip_fragments_created, &mut self.ip6_fragments_created),
        };
        *match version {
            IpVersion::V4 => four,
            IpVersion::V6 => six,
        } += more;
    }
}
