//! Status of completed commands.
//!
//! NVM Express Base Specification 2.0, 3.3.3.2.1: a status has a code type, a code and a do-not-retry bit.

use core::fmt;

/// Status of a completed command.
///
/// ```
/// use nvme_tcp::wire::Status;
///
/// let status = Status::LBA_OUT_OF_RANGE;
/// assert_eq!((status.code_type(), status.code()), (0, 0x80));
/// assert!(status.do_not_retry() && !status.is_success());
/// assert_eq!(status.to_string(), "LBA out of range");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Status(u16);

macro_rules! statuses {
    ($($(#[$meta:meta])* $name:ident = $code_type:literal, $code:literal, $retry:ident, $text:literal;)*) => {
        impl Status {
            $($(#[$meta])* pub const $name: Status = Status::new($code_type, $code, statuses!(@$retry));)*

            /// Returns the name; `None` for a status without a name here.
            pub fn name(self) -> Option<&'static str> {
                match (self.code_type(), self.code()) {
                    $(($code_type, $code) => Some($text),)*
                    _ => None,
                }
            }
        }
    };
    (@final) => { true };
    (@retry) => { false };
}

statuses! {
    /// The command succeeded.
    SUCCESS = 0, 0x00, retry, "success";
    /// The controller does not know the opcode.
    INVALID_OPCODE = 0, 0x01, final, "invalid opcode";
    /// A field of the command has an invalid value.
    INVALID_FIELD = 0, 0x02, final, "invalid field in command";
    /// The command identifier is in use.
    COMMAND_ID_CONFLICT = 0, 0x03, final, "command identifier in use";
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, retry, "data transfer error";
    /// The controller had an internal error.
    INTERNAL_ERROR = 0, 0x06, retry, "internal error";
    /// An Abort command aborted the command.
    ABORTED_BY_REQUEST = 0, 0x07, retry, "aborted by request";
    /// The command's queue was deleted.
    ABORTED_QUEUE_DELETED = 0, 0x08, retry, "aborted, its queue was deleted";
    /// The namespace does not exist, or not in this format.
    INVALID_NAMESPACE = 0, 0x0b, final, "invalid namespace or format";
    /// The command is not allowed in this state.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, final, "command sequence error";
    /// The type of the SGL descriptor is not supported for this command.
    INVALID_SGL_TYPE = 0, 0x11, final, "SGL descriptor type invalid";
    /// The SGL's length does not fit the command.
    INVALID_SGL_LENGTH = 0, 0x0f, final, "data SGL length invalid";
    /// The offset of the SGL is wrong.
    INVALID_SGL_OFFSET = 0, 0x16, final, "SGL offset invalid";
    /// The namespace is not ready.
    NOT_READY = 0, 0x82, retry, "namespace not ready";
    /// The controller had no room and interrupted the command before the command changed anything.
    COMMAND_INTERRUPTED = 0, 0x21, retry, "command interrupted";
    /// The transport damaged the command's data.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, retry, "transient transport error";
    /// The namespace is write-protected.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, final, "namespace is write-protected";
    /// Blocks lie beyond the end of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, final, "LBA out of range";
    /// The namespace is full.
    CAPACITY_EXCEEDED = 0, 0x81, final, "capacity exceeded";

    /// The log page does not exist.
    INVALID_LOG_PAGE = 1, 0x09, final, "invalid log page";
    /// Too many Asynchronous Event Requests are outstanding.
    ASYNC_LIMIT_EXCEEDED = 1, 0x05, final, "asynchronous event request limit exceeded";
    /// The feature's value cannot be saved.
    FEATURE_NOT_SAVEABLE = 1, 0x0d, final, "feature identifier not saveable";
    /// The feature's value cannot be changed.
    FEATURE_NOT_CHANGEABLE = 1, 0x0e, final, "feature not changeable";

    /// Connect: the record format is unknown.
    CONNECT_FORMAT = 1, 0x80, final, "incompatible connect format";
    /// Connect: the controller is in use already.
    CONNECT_BUSY = 1, 0x81, retry, "controller busy";
    /// Connect: a parameter is wrong; the result holds its offset.
    CONNECT_INVALID_PARAMETERS = 1, 0x82, final, "connect: invalid parameters";
    /// Connect: the host must restart discovery.
    CONNECT_RESTART_DISCOVERY = 1, 0x83, final, "connect: restart discovery";
    /// Connect: the host is not allowed to connect.
    CONNECT_INVALID_HOST = 1, 0x84, final, "connect: host not allowed";
    /// Disconnect: the queue is of the wrong type.
    INVALID_QUEUE_TYPE = 1, 0x85, final, "invalid queue type";

    /// The medium failed during a write.
    WRITE_FAULT = 2, 0x80, retry, "write fault";
    /// The medium could not be read.
    UNRECOVERED_READ_ERROR = 2, 0x81, final, "unrecovered read error";
    /// Compare found a difference.
    COMPARE_FAILURE = 2, 0x85, final, "compare failure";

    /// Internal error on the path to the namespace.
    INTERNAL_PATH_ERROR = 3, 0x00, retry, "internal path error";
    /// Asymmetric namespace access (ANA): the namespace is permanently inaccessible through this controller.
    ANA_PERSISTENT_LOSS = 3, 0x01, retry, "asymmetric access persistent loss";
    /// Asymmetric namespace access: the namespace is inaccessible through this controller at the moment.
    ANA_INACCESSIBLE = 3, 0x02, retry, "asymmetric access inaccessible";
    /// Asymmetric namespace access: the access state is changing.
    ANA_TRANSITION = 3, 0x03, retry, "asymmetric access transition";
    /// The controller detected an error on the path to the namespace.
    CONTROLLER_PATHING_ERROR = 3, 0x60, retry, "controller pathing error";
    /// The host detected an error on the path to the controller.
    HOST_PATHING_ERROR = 3, 0x70, retry, "host pathing error";
    /// Set by the host itself: the command was aborted before it completed.
    ABORTED_BY_HOST = 3, 0x71, retry, "aborted by host";
}

impl Status {
    /// Creates a status of `code_type` (SCT) and `code` (SC).
    pub const fn new(code_type: u8, code: u8, do_not_retry: bool) -> Status {
        Status((code as u16) | ((code_type as u16 & 7) << 8) | ((do_not_retry as u16) << 14))
    }

    /// Creates a status from the upper 15 bits of the last 16-bit word of a completion, without the phase tag.
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// Returns the 15 bits above the phase tag.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Returns the code type: 0 generic, 1 command specific, 2 media and data integrity, 3 path.
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Returns the code within its type.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// Returns whether the same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Returns whether the command was not executed and may soon succeed: the path to the namespace is changing, the
    /// namespace is not ready, or the controller had no room for the command.
    pub(crate) const fn is_passing(self) -> bool {
        // A persistent ANA loss has a path status but does not pass by itself.
        let of_path = self.code_type() == PATH && !self.is_same_as(Status::ANA_PERSISTENT_LOSS);
        let of_controller = self.is_same_as(Status::NOT_READY) || self.is_same_as(Status::COMMAND_INTERRUPTED);
        !self.do_not_retry() && (of_path || of_controller)
    }

    /// Compares code type and code only.
    pub(crate) const fn is_same_as(self, other: Status) -> bool {
        self.0 & TYPE_AND_CODE == other.0 & TYPE_AND_CODE
    }

    /// Returns whether the error log has more information.
    pub const fn more(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// Returns whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.0 & TYPE_AND_CODE == 0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status type {:#x}, code {:#04x}", self.code_type(), self.code()),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({self})")
    }
}

impl std::error::Error for Status {}

/// SCT and SC.
const TYPE_AND_CODE: u16 = 0x7ff;
/// SCT of path errors.
const PATH: u8 = 3;
