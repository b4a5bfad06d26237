//! The states of a connection (RFC 9293 3.3.2).

/// The state of a connection, under RFC 9293's names. LISTEN is missing because only listeners have it.
///
/// ```
/// use offload_host_stack::TcpState;
///
/// assert!(TcpState::CloseWait.may_send() && !TcpState::CloseWait.may_receive());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// Waiting for the answer to a SYN.
    SynSent,
    /// Waiting for the ACK of a SYN-ACK.
    SynReceived,
    /// Open in both directions.
    Established,
    /// This side has closed; its FIN is not acknowledged.
    FinWait1,
    /// This side has closed; the peer has not.
    FinWait2,
    /// The peer has closed; this side has not.
    CloseWait,
    /// Both have closed; the FIN of this side is not acknowledged.
    Closing,
    /// The peer has closed first; the FIN of this side is not acknowledged.
    LastAck,
    /// Both have closed; late segments are answered for a while.
    TimeWait,
    /// The connection does not exist any more.
    Closed,
}

impl TcpState {
    /// Returns whether the three-way handshake is under way.
    pub fn is_opening(self) -> bool {
        matches!(self, TcpState::SynSent | TcpState::SynReceived)
    }

    /// Returns whether the application may queue data.
    pub fn may_send(self) -> bool {
        matches!(self, TcpState::SynSent | TcpState::SynReceived | TcpState::Established | TcpState::CloseWait)
    }

    /// Returns whether the peer may send data.
    pub fn may_receive(self) -> bool {
        matches!(
            self,
            TcpState::SynSent | TcpState::SynReceived | TcpState::Established | TcpState::FinWait1 | TcpState::FinWait2
        )
    }
}
