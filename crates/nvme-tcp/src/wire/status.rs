//! How a command ended.
//!
//! NVM Express Base Specification 2.0, 3.3.3.2.1: a status is a code type and a code, and whether to try again.

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

            /// In words; `None` for a status without a name here.
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
    /// It did what it was asked to.
    SUCCESS = 0, 0x00, retry, "success";
    /// The controller does not know the opcode.
    INVALID_OPCODE = 0, 0x01, final, "invalid opcode";
    /// A field of the command has a value that cannot be.
    INVALID_FIELD = 0, 0x02, final, "invalid field in command";
    /// The command identifier is in use.
    COMMAND_ID_CONFLICT = 0, 0x03, final, "command identifier in use";
    /// Data could not be transferred.
    DATA_TRANSFER_ERROR = 0, 0x04, retry, "data transfer error";
    /// Something went wrong inside the controller.
    INTERNAL_ERROR = 0, 0x06, retry, "internal error";
    /// An Abort command ended it.
    ABORTED_BY_REQUEST = 0, 0x07, retry, "aborted by request";
    /// Its queue was deleted.
    ABORTED_QUEUE_DELETED = 0, 0x08, retry, "aborted, its queue was deleted";
    /// There is no such namespace, or it has no such format.
    INVALID_NAMESPACE = 0, 0x0b, final, "invalid namespace or format";
    /// A command came before it may come.
    COMMAND_SEQUENCE_ERROR = 0, 0x0c, final, "command sequence error";
    /// The SGL descriptor is of a type that cannot be used here.
    INVALID_SGL_TYPE = 0, 0x11, final, "SGL descriptor type invalid";
    /// The SGL's length does not fit the command.
    INVALID_SGL_LENGTH = 0, 0x0f, final, "data SGL length invalid";
    /// The offset of the SGL is wrong.
    INVALID_SGL_OFFSET = 0, 0x16, final, "SGL offset invalid";
    /// Not enough resources at the moment.
    NOT_READY = 0, 0x82, retry, "namespace not ready";
    /// It was interrupted before it changed anything: the controller had no room for it.
    COMMAND_INTERRUPTED = 0, 0x21, retry, "command interrupted";
    /// The transport damaged the command's data.
    TRANSIENT_TRANSPORT_ERROR = 0, 0x22, retry, "transient transport error";
    /// Write-protected.
    NAMESPACE_WRITE_PROTECTED = 0, 0x20, final, "namespace is write-protected";
    /// Blocks beyond the end of the namespace.
    LBA_OUT_OF_RANGE = 0, 0x80, final, "LBA out of range";
    /// The namespace is full.
    CAPACITY_EXCEEDED = 0, 0x81, final, "capacity exceeded";

    /// No such log page.
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
    /// Connect: a parameter is wrong; the result says which.
    CONNECT_INVALID_PARAMETERS = 1, 0x82, final, "connect: invalid parameters";
    /// Connect: discovery has to begin again.
    CONNECT_RESTART_DISCOVERY = 1, 0x83, final, "connect: restart discovery";
    /// Connect: this host may not.
    CONNECT_INVALID_HOST = 1, 0x84, final, "connect: host not allowed";
    /// Disconnect: the queue is of the wrong type.
    INVALID_QUEUE_TYPE = 1, 0x85, final, "invalid queue type";

    /// The medium failed while it was written.
    WRITE_FAULT = 2, 0x80, retry, "write fault";
    /// The medium could not be read.
    UNRECOVERED_READ_ERROR = 2, 0x81, final, "unrecovered read error";
    /// Compare found a difference.
    COMPARE_FAILURE = 2, 0x85, final, "compare failure";

    /// Something is wrong between the controller and the namespace.
    INTERNAL_PATH_ERROR = 3, 0x00, retry, "internal path error";
    /// Asymmetric namespace access (ANA): by this controller the namespace will not be accessible again.
    ANA_PERSISTENT_LOSS = 3, 0x01, retry, "asymmetric access persistent loss";
    /// Asymmetric namespace access: by this controller the namespace is not accessible now.
    ANA_INACCESSIBLE = 3, 0x02, retry, "asymmetric access inaccessible";
    /// Asymmetric namespace access: how the namespace is accessible is changing.
    ANA_TRANSITION = 3, 0x03, retry, "asymmetric access transition";
    /// The controller found something wrong with the path to it.
    CONTROLLER_PATHING_ERROR = 3, 0x60, retry, "controller pathing error";
    /// The host found something wrong with the path to the controller.
    HOST_PATHING_ERROR = 3, 0x70, retry, "host pathing error";
    /// The host's own: the command was aborted before it came to an end.
    ABORTED_BY_HOST = 3, 0x71, retry, "aborted by host";
}

impl Status {
    /// A status of `code_type` (SCT) and `code` (SC).
    pub const fn new(code_type: u8, code: u8, do_not_retry: bool) -> Status {
        Status((code as u16) | ((code_type as u16 & 7) << 8) | ((do_not_retry as u16) << 14))
    }

    /// From the upper 15 bits of a completion's last 16, the phase tag gone.
    pub const fn from_bits(bits: u16) -> Status {
        Status(bits & 0x7fff)
    }

    /// 15 bits, as they stand above the phase tag.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Generic 0, command specific 1, media and data integrity 2, path 3.
    pub const fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// The code within its type.
    pub const fn code(self) -> u8 {
        self.0 as u8
    }

    /// The same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// The command was not carried out, and may be before long: the path to the namespace is changing, the namespace is not
    /// ready, or the controller had no room for the command.
    pub(crate) const fn is_passing(self) -> bool {
        let of_path = self.code_type() == PATH && !self.is_same_as(Status::ANA_PERSISTENT_LOSS);
        let of_controller = self.is_same_as(Status::NOT_READY) || self.is_same_as(Status::COMMAND_INTERRUPTED);
        !self.do_not_retry() && (of_path || of_controller)
    }

    /// Whether it says the same, whatever it says of another try.
    pub(crate) const fn is_same_as(self, other: Status) -> bool {
        self.0 & TYPE_AND_CODE == other.0 & TYPE_AND_CODE
    }

    /// There is more about it in the error log.
    pub const fn more(self) -> bool {
        self.0 & 1 << 13 != 0
    }

    /// Whether the command did what it was asked to.
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
/// SCT of what is wrong with the path.
const PATH: u8 = 3;
