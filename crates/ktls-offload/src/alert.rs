//! Alert codes (RFC 8446 section 6, RFC 5246 section 7.2).

use core::fmt;

/// An alert code as on the wire; unknown codes are preserved.
///
/// ```
/// use ktls_offload::AlertDescription;
///
/// assert_eq!(AlertDescription(20), AlertDescription::BAD_RECORD_MAC);
/// assert_eq!(format!("{:?}", AlertDescription(20)), "bad_record_mac(20)");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AlertDescription(pub u8);

macro_rules! descriptions {
    ($($constant:ident = $code:literal, $name:literal, $doc:literal;)*) => {
        impl AlertDescription {
            $(#[doc = $doc] pub const $constant: AlertDescription = AlertDescription($code);)*

            /// Returns the alert's name in RFC 8446.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($code => $name,)*
                    _ => "unknown",
                }
            }
        }
    };
}

descriptions! {
    CLOSE_NOTIFY = 0, "close_notify", "The sender will send no more.";
    UNEXPECTED_MESSAGE = 10, "unexpected_message", "A message that is not allowed now.";
    BAD_RECORD_MAC = 20, "bad_record_mac", "A record that fails authentication.";
    RECORD_OVERFLOW = 22, "record_overflow", "A record longer than allowed.";
    HANDSHAKE_FAILURE = 40, "handshake_failure", "No acceptable set of parameters.";
    BAD_CERTIFICATE = 42, "bad_certificate", "A certificate that cannot be parsed or verified.";
    CERTIFICATE_EXPIRED = 45, "certificate_expired", "A certificate that is no longer valid.";
    CERTIFICATE_UNKNOWN = 46, "certificate_unknown", "A certificate that is rejected for another reason.";
    ILLEGAL_PARAMETER = 47, "illegal_parameter", "A field with an illegal value.";
    UNKNOWN_CA = 48, "unknown_ca", "A certificate from an unknown issuer.";
    DECODE_ERROR = 50, "decode_error", "A message that cannot be parsed.";
    DECRYPT_ERROR = 51, "decrypt_error", "A handshake signature or Finished that is wrong.";
    PROTOCOL_VERSION = 70, "protocol_version", "A version that is not supported.";
    INTERNAL_ERROR = 80, "internal_error", "An internal error of the sender.";
    USER_CANCELED = 90, "user_canceled", "The handshake was cancelled; a close_notify follows.";
    NO_RENEGOTIATION = 100, "no_renegotiation", "The sender refuses to renegotiate (TLS 1.2).";
    CERTIFICATE_REQUIRED = 116, "certificate_required", "A client certificate is required.";
}

impl fmt::Debug for AlertDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for AlertDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
