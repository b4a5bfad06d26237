//! Responses of servers.

use super::session::Session;
use super::{Remote, RemoteError};
use crate::blocks::BlockSum;
use crate::body::{self, Body};
use crate::name::Name;
use crate::pipelined_connection;
use crate::protocol::MODE;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{HeaderMap, Response, StatusCode};
use offload_base::text::with_causes;

/// A response with its connection.
pub(super) struct ServerResponse {
    pub(super) answer: Response<Body>,
    pub(super) session: Session,
}

impl ServerResponse {
    pub(super) fn status(&self) -> StatusCode {
        self.answer.status()
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        self.answer.headers()
    }
}

/// A response over either kind of connection.
pub(super) enum AnyResponse {
    Session(ServerResponse),
    Pipelined(pipelined_connection::PipelinedResponse),
}

impl AnyResponse {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            AnyResponse::Session(answer) => answer.status(),
            AnyResponse::Pipelined(answer) => answer.status,
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            AnyResponse::Session(answer) => answer.headers(),
            AnyResponse::Pipelined(answer) => &answer.fields,
        }
    }
}

/// The body of a range being read.
pub(crate) struct RangeReader {
    pub(super) answer: AnyResponse,
    pub(super) left: u64,
    pub(super) trailers: Option<HeaderMap>,
    pub(super) name: Name,
    pub(super) host: String,
}

impl RangeReader {
    /// Returns the nine permission bits of the file. `None` if the server does not tell them.
    pub(crate) fn mode(&self) -> Option<u32> {
        let told = self.answer.headers().get(MODE)?.to_str().ok()?;
        u32::from_str_radix(told, 8).ok()
    }

    /// Returns the next bytes, or `None` at the end of the range.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, RemoteError> {
        while let Some(data) = self.piece().await? {
            if data.len() as u64 > self.left {
                // The further bytes would overwrite the next block.
                return Err(self.wrong("has more bytes than the range"));
            }
            if !data.is_empty() {
                self.left -= data.len() as u64;
                return Ok(Some(data));
            }
        }
        // HTTP without a length ends with the connection, which looks complete.
        if self.left > 0 { Err(self.wrong("was cut off")) } else { Ok(None) }
    }

    /// Returns the next bytes of a response of unknown length, or `None` at its end.
    pub(crate) async fn some(&mut self) -> Result<Option<Bytes>, RemoteError> {
        self.piece().await
    }

    /// Returns the next data of the body, or `None` at its end. Trailers are stored.
    async fn piece(&mut self) -> Result<Option<Bytes>, RemoteError> {
        let host = &self.host;
        let broke = |error: &(dyn core::error::Error + 'static)| RemoteError::Connection {
            host: host.clone(),
            error: with_causes(error),
        };
        match &mut self.answer {
            AnyResponse::Pipelined(answer) => {
                let piece = answer.next().await.map_err(|error| broke(&error))?;
                if piece.is_none() {
                    self.trailers = answer.trailers.take().or(self.trailers.take());
                }
                Ok(piece)
            }
            AnyResponse::Session(answer) => {
                while let Some(frame) = answer.answer.body_mut().frame().await {
                    match frame.map_err(|error| broke(&error))?.into_data() {
                        Ok(data) => return Ok(Some(data)),
                        Err(frame) => self.trailers = frame.into_trailers().ok(),
                    }
                }
                Ok(None)
            }
        }
    }

    fn wrong(&self, what: &'static str) -> RemoteError {
        RemoteError::Answer { name: self.name.clone(), what }
    }

    /// Ends reading after all bytes. Returns the checksums in the trailers, if present.
    pub(crate) fn end(self, remote: &Remote) -> Option<BlockSum> {
        if let AnyResponse::Session(answer) = self.answer {
            // A connection can be reused only after its response was read to the end.
            remote.keep(answer.session);
        }
        self.trailers.as_ref().and_then(body::sum_in)
    }
}
