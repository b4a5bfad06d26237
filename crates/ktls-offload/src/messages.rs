//! Post-handshake messages other than data: alerts, session tickets and key updates (RFC 8446 sections 4.6 and 6). TLS
//! 1.2 has alerts and renegotiation requests (RFC 5246 section 7); renegotiation is refused.
//!
//! Invariant: a handshake message is complete before the stream acts on it, no other record type interrupts its
//! fragments, and at most [`HANDSHAKE_MAX`] bytes of a peer are buffered.

use crate::alert::AlertDescription;
use crate::error::TlsError;
use offload_api::TlsVersion;

/// Reassembles handshake messages and enforces the peer's limits.
#[derive(Debug)]
pub(crate) struct MessageReader {
    version: TlsVersion,
    /// This end's role, or `None` if the keys did not come from a handshake.
    role: Option<HandshakeRole>,
    fragment: Vec<u8>,
    warnings: u8,
    renegotiations: u8,
}

/// The role of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeRole {
    Client,
    Server,
}

/// A post-handshake handshake message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The body of a NewSessionTicket.
    Ticket(Vec<u8>),
    /// A key change: the peer's next records use its next key.
    KeyUpdate {
        /// The peer requests a KeyUpdate in return.
        requested: bool,
    },
    /// A request to renegotiate (TLS 1.2).
    Renegotiate,
}

/// The effect of an alert that does not end the connection with an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Alert {
    /// The peer will send no more data.
    Close,
    /// The alert has no effect.
    Ignored,
}

impl MessageReader {
    pub(crate) fn new(version: TlsVersion, role: Option<HandshakeRole>) -> MessageReader {
        MessageReader { version, role, fragment: Vec::new(), warnings: 0, renegotiations: 0 }
    }

    /// Accepts a record of application data. Empty records are allowed in any number as cover traffic (RFC 8446 section
    /// 5.1).
    pub(crate) fn data(&mut self) -> Result<(), TlsError> {
        self.nothing_pending()
    }

    /// Handles an alert record.
    pub(crate) fn alert(&mut self, content: &[u8]) -> Result<Alert, TlsError> {
        self.nothing_pending()?;
        // RFC 8446 section 5.1: an alert fills one record; fragmenting alerts or joining two in a record is forbidden.
        let [level, code] = content else {
            return Err(if content.is_empty() { TlsError::EmptyFragment } else { TlsError::MalformedAlert });
        };
        let is_warning = match self.version {
            // RFC 5246 section 7.2.
            TlsVersion::Tls12 => match level {
                1 => true,
                2 => false,
                _ => return Err(TlsError::MalformedAlert),
            },
            // RFC 8446 section 6: the level byte has no meaning. All alerts except close_notify and user_canceled are
            // fatal.
            _ => AlertDescription(*code) == AlertDescription::USER_CANCELED,
        };
        match AlertDescription(*code) {
            AlertDescription::CLOSE_NOTIFY => Ok(Alert::Close),
            _ if is_warning => {
                // Warnings cost the peer nothing, so their number is limited.
                self.warnings += 1;
                if self.warnings > WARNINGS_MAX { Err(TlsError::TooManyWarnings) } else { Ok(Alert::Ignored) }
            }
            other => Err(TlsError::AlertReceived(other)),
        }
    }

    /// Buffers a record of handshake messages or fragments. The caller then calls [`next_message`](Self::next_message)
    /// until the result is `None`.
    pub(crate) fn handshake(&mut self, content: &[u8]) -> Result<(), TlsError> {
        if content.is_empty() {
            return Err(TlsError::EmptyFragment);
        }
        // The buffer stays bounded, because `next_message` rejects a long message by its header.
        self.fragment.extend_from_slice(content);
        Ok(())
    }

    /// Returns the next complete message.
    pub(crate) fn next_message(&mut self) -> Result<Option<Message>, TlsError> {
        let Some((&[kind, high, middle, low], rest)) = self.fragment.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
        let expected = match (self.version, kind) {
            (TlsVersion::Tls13, NEW_SESSION_TICKET | KEY_UPDATE) => true,
            // RFC 5246 section 7.4.1: a server sends HelloRequest, a client sends ClientHello.
            (TlsVersion::Tls12, HELLO_REQUEST) => self.role != Some(HandshakeRole::Server),
            (TlsVersion::Tls12, CLIENT_HELLO) => self.role != Some(HandshakeRole::Client),
            _ => false,
        };
        if !expected {
            return Err(TlsError::UnexpectedHandshake(kind));
        }
        // The length is checked before the body arrives, so that a peer cannot make this end buffer more.
        if length > HANDSHAKE_MAX {
            return Err(TlsError::HandshakeTooLong { length });
        }
        // A KeyUpdate has one byte. A longer one is rejected before its body is buffered.
        if kind == KEY_UPDATE && length != 1 {
            return Err(TlsError::MalformedHandshake);
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let message = match kind {
            NEW_SESSION_TICKET => Message::Ticket(body.to_vec()),
            KEY_UPDATE => self.key_update(body)?,
            _ => Message::Renegotiate,
        };
        self.fragment.drain(..4 + length);
        if self.fragment.is_empty() {
            self.fragment = Vec::new(); // frees the buffer of an idle connection
        } else if matches!(message, Message::KeyUpdate { .. }) {
            // RFC 8446 section 5.1: handshake messages must not span a key change.
            return Err(TlsError::KeyUpdateInsideRecord);
        }
        if message == Message::Renegotiate {
            self.renegotiations += 1;
            if self.renegotiations > RENEGOTIATIONS_MAX {
                return Err(TlsError::TooManyRenegotiations);
            }
        }
        Ok(Some(message))
    }

    fn key_update(&self, body: &[u8]) -> Result<Message, TlsError> {
        match body {
            [0] => Ok(Message::KeyUpdate { requested: false }),
            [1] => Ok(Message::KeyUpdate { requested: true }),
            [other] => Err(TlsError::InvalidKeyUpdate(*other)),
            _ => Err(TlsError::MalformedHandshake),
        }
    }

    fn nothing_pending(&self) -> Result<(), TlsError> {
        // RFC 8446 section 5.1: no other record may come between the fragments of a handshake message.
        if self.fragment.is_empty() { Ok(()) } else { Err(TlsError::Interleaved) }
    }
}

/// Builds a KeyUpdate message; `request` asks the peer to update its key too.
pub(crate) fn key_update(request: bool) -> [u8; 5] {
    [KEY_UPDATE, 0, 0, 1, u8::from(request)]
}

/// Builds an alert. close_notify and no_renegotiation have the warning level, all others the fatal level.
pub(crate) fn alert(description: AlertDescription) -> [u8; 2] {
    let is_warning = [AlertDescription::CLOSE_NOTIFY, AlertDescription::NO_RENEGOTIATION].contains(&description);
    [if is_warning { 1 } else { 2 }, description.0]
}

/// Maximum length of a post-handshake message in bytes. A ticket has at most 2^16 - 1 bytes and a few fields around;
/// usual tickets have hundreds.
const HANDSHAKE_MAX: usize = 1 << 16;
const WARNINGS_MAX: u8 = 4;
/// Maximum number of renegotiation requests in a connection: a peer that was refused must not ask again.
const RENEGOTIATIONS_MAX: u8 = 4;
const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(length: usize) -> Vec<u8> {
        let mut message = vec![NEW_SESSION_TICKET, 0, (length >> 8) as u8, length as u8];
        message.resize(4 + length, 7);
        message
    }

    #[test]
    fn messages_come_together_from_any_fragments() {
        let mut stream = ticket(300);
        stream.extend(ticket(0));
        stream.extend(key_update(true));
        for size in 1..stream.len() {
            let mut messages = MessageReader::new(TlsVersion::Tls13, None);
            let mut seen = Vec::new();
            for fragment in stream.chunks(size) {
                messages.handshake(fragment).unwrap();
                while let Some(message) = messages.next_message().unwrap() {
                    seen.push(message);
                }
            }
            let expected =
                [Message::Ticket(vec![7; 300]), Message::Ticket(vec![]), Message::KeyUpdate { requested: true }];
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn every_misbehaviour_has_its_error() {
        let one = |bytes: &[u8]| {
            let mut messages = MessageReader::new(TlsVersion::Tls13, None);
            messages.handshake(bytes).and_then(|()| messages.next_message())
        };
        assert_eq!(one(&[]), Err(TlsError::EmptyFragment));
        assert_eq!(one(&[13, 0, 0, 0]), Err(TlsError::UnexpectedHandshake(13)));
        assert_eq!(one(&[4, 1, 0, 1]), Err(TlsError::HandshakeTooLong { length: 0x10001 }));
        assert_eq!(one(&[24, 0, 0, 2, 0, 0]), Err(TlsError::MalformedHandshake));
        assert_eq!(one(&[24, 0, 0, 1, 2]), Err(TlsError::InvalidKeyUpdate(2)));
        assert_eq!(one(&[24, 0, 0, 1, 0, 4]), Err(TlsError::KeyUpdateInsideRecord));
        assert_eq!(one(&[24, 0, 0]), Ok(None));

        let mut messages = MessageReader::new(TlsVersion::Tls13, None);
        messages.handshake(&[4, 0]).unwrap();
        assert_eq!(messages.data(), Err(TlsError::Interleaved));
        assert_eq!(messages.alert(&[1, 0]), Err(TlsError::Interleaved));

        let mut messages = MessageReader::new(TlsVersion::Tls13, None);
        assert_eq!(messages.alert(&[1, 0]), Ok(Alert::Close));
        assert_eq!(messages.alert(&[2, 20]), Err(TlsError::AlertReceived(AlertDescription::BAD_RECORD_MAC)));
        assert_eq!(messages.alert(&[2]), Err(TlsError::MalformedAlert));
        assert_eq!(messages.alert(&[]), Err(TlsError::EmptyFragment));
    }

    #[test]
    fn messages_without_cost_to_the_peer_are_bounded() {
        let mut messages = MessageReader::new(TlsVersion::Tls13, None);
        assert!((0..WARNINGS_MAX).all(|_| messages.alert(&[1, 90]) == Ok(Alert::Ignored)));
        assert_eq!(messages.alert(&[1, 90]), Err(TlsError::TooManyWarnings));
    }

    #[test]
    fn wishes_to_negotiate_anew_come_from_one_end_only() {
        for (role, kind, expected) in [
            (HandshakeRole::Client, HELLO_REQUEST, Ok(Some(Message::Renegotiate))),
            (HandshakeRole::Client, CLIENT_HELLO, Err(TlsError::UnexpectedHandshake(CLIENT_HELLO))),
            (HandshakeRole::Server, HELLO_REQUEST, Err(TlsError::UnexpectedHandshake(HELLO_REQUEST))),
            (HandshakeRole::Server, CLIENT_HELLO, Ok(Some(Message::Renegotiate))),
        ] {
            let mut messages = MessageReader::new(TlsVersion::Tls12, Some(role));
            messages.handshake(&[kind, 0, 0, 0]).unwrap();
            assert_eq!(messages.next_message(), expected, "{role:?}");
        }
    }

    #[test]
    fn tls12_has_other_messages_and_its_alerts_have_levels() {
        let mut messages = MessageReader::new(TlsVersion::Tls12, None);
        for kind in [4, 24, 20] {
            messages.handshake(&[kind, 0, 0, 0]).unwrap();
            assert_eq!(messages.next_message(), Err(TlsError::UnexpectedHandshake(kind)));
            messages.fragment.clear();
        }
        messages.handshake(&[0, 0, 0, 0, 1, 0, 0, 3, 7, 7]).unwrap();
        assert_eq!(messages.next_message(), Ok(Some(Message::Renegotiate)));
        assert_eq!(messages.next_message(), Ok(None));
        messages.handshake(&[7]).unwrap();
        assert_eq!(messages.next_message(), Ok(Some(Message::Renegotiate)));
        for _ in 2..RENEGOTIATIONS_MAX {
            messages.handshake(&[0; 4]).unwrap();
            assert_eq!(messages.next_message(), Ok(Some(Message::Renegotiate)));
        }
        messages.handshake(&[0; 4]).unwrap();
        assert_eq!(messages.next_message(), Err(TlsError::TooManyRenegotiations));

        let mut messages = MessageReader::new(TlsVersion::Tls12, None);
        assert_eq!(messages.alert(&[1, 100]), Ok(Alert::Ignored));
        assert_eq!(messages.alert(&[1, 41]), Ok(Alert::Ignored));
        assert_eq!(messages.alert(&[2, 100]), Err(TlsError::AlertReceived(AlertDescription(100))));
        assert_eq!(messages.alert(&[3, 100]), Err(TlsError::MalformedAlert));
        assert_eq!(messages.alert(&[1, 0]), Ok(Alert::Close));
    }
}
