//! Protocol errors and the text that the client receives: memcached's own, and ours for the native
//! verbs.
//!
//! Here: the error and its text. Not here: the number of bytes that a refusal consumes
//! (`line::DecodeError`), and outcomes of well-formed commands (`reply`).

/// The reason for refusing a line. `Display` is the reply line without its line end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No such verb.
    #[error("ERROR")]
    UnknownCommand,
    /// A missing argument, a bad number, a key over 250 bytes, a bad length.
    #[error("CLIENT_ERROR bad command line format")]
    BadFormat,
    /// `stats cachedump` without its arguments.
    #[error("CLIENT_ERROR bad command line")]
    BadLine,
    /// A data block that does not end in CRLF where its length says.
    #[error("CLIENT_ERROR bad data chunk")]
    BadDataChunk,
    /// The delta of `incr` or `decr` is not an unsigned 64-bit decimal.
    #[error("CLIENT_ERROR invalid numeric delta argument")]
    BadDelta,
    /// The exptime of `touch`, `gat` or `flush_all` is not a number of 32 bits.
    #[error("CLIENT_ERROR invalid exptime argument")]
    BadExptime,
    /// A meta flag that does not exist.
    #[error("CLIENT_ERROR invalid flag")]
    BadFlag,
    /// A meta flag given twice.
    #[error("CLIENT_ERROR duplicate flag")]
    DuplicateFlag,
    /// Any fault in the flags of `ma`: memcached does not distinguish them.
    #[error("CLIENT_ERROR invalid or duplicate flag")]
    BadArithmeticFlag,
    /// The number of a meta flag does not parse.
    #[error("CLIENT_ERROR bad token in command line format")]
    BadToken,
    /// The delta (`D`) of a meta command other than `ma`.
    #[error("CLIENT_ERROR invalid numeric delta value")]
    BadDeltaToken,
    /// The initial value (`J`) of a meta command other than `ma`.
    #[error("CLIENT_ERROR invalid numeric initial value")]
    BadInitialToken,
    /// An opaque over 31 characters.
    #[error("CLIENT_ERROR opaque token too long")]
    OpaqueTooLong,
    /// Flag `b` on a key that is not base64 of 1 to 250 bytes.
    #[error("CLIENT_ERROR error decoding key")]
    BadBase64,
    /// A mode that `ms` does not have.
    #[error("CLIENT_ERROR invalid mode for ms M token")]
    BadSetMode,
    /// A mode that `ma` does not have.
    #[error("CLIENT_ERROR invalid mode for ma M token")]
    BadArithmeticMode,
    /// `shutdown` with another word than `graceful`.
    #[error("CLIENT_ERROR invalid shutdown mode")]
    BadShutdownMode,
    /// `stats detail` with another word than `on`, `off` or `dump`.
    #[error("CLIENT_ERROR usage: stats detail on|off|dump")]
    BadDetail,
    /// A fault in the line of a native verb.
    #[error("CLIENT_ERROR {verb}: {why}")]
    Native {
        /// The verb.
        verb: &'static str,
        /// The fault, and the correct form.
        why: &'static str,
    },
    /// `slabs reassign`: this server has no slabs.
    #[error("CLIENT_ERROR slab reassignment disabled")]
    NoSlabs,
    /// `lru_crawler sleep` with more than a second.
    #[error("CLIENT_ERROR sleep must be one second or less")]
    LongSleep,
    /// `lru_crawler crawl` with an invalid slab class.
    #[error("BADCLASS invalid class id")]
    BadClass,
    /// `lru tune` with hot and warm shares above 80 percent together.
    #[error("ERROR hot and warm pcts must not exceed 80")]
    BadPercents,
    /// `lru tune` with a factor of 0 or less.
    #[error("ERROR hot/warm age factors must be greater than 0")]
    BadFactors,
    /// An endless line or an HTTP request: memcached closes the connection without a reply.
    #[error("")]
    Close,
}
