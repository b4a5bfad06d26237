//! COPY from the client's view: a server fetches a file from another server or sends one there, and reports its
//! progress (HTTP-TPC of WLCG).

use super::answer::AnyResponse;
use super::{RangeReader, Remote, RemoteError, STALL};
use crate::body;
use crate::name::Name;
use crate::protocol::TRANSFER_AUTHORIZATION;
use hyper::Method;
use hyper::header::HeaderValue;

/// The server that performs a third-party copy.
///
/// ```
/// use offload_reservoir::remote::ThirdParty;
///
/// assert_eq!("pull".parse(), Ok(ThirdParty::Pull));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThirdParty {
    /// The destination's server fetches.
    Pull,
    /// The source's server sends.
    Push,
}

impl core::str::FromStr for ThirdParty {
    type Err = String;

    fn from_str(text: &str) -> Result<ThirdParty, String> {
        match text {
            "pull" => Ok(ThirdParty::Pull),
            "push" => Ok(ThirdParty::Push),
            _ => Err("pull or push".into()),
        }
    }
}

impl Remote {
    /// Asks this server to copy the file to or from another server over `streams` connections. The request uses this
    /// machine's stream `stream`. Progress reports are passed to `told`.
    pub(crate) async fn have_copied(
        &self,
        name: &Name,
        way: ThirdParty,
        (other, other_name): (&Remote, &Name),
        (streams, stream): (usize, usize),
        mut told: impl FnMut(u64),
    ) -> Result<(), RemoteError> {
        let method = Method::from_bytes(b"COPY").expect("a token");
        let field = if way == ThirdParty::Pull { "source" } else { "destination" };
        let url = format!("https://{}{}", other.authority(), other.path_of(other_name));
        let mut request = self.request(method, name).header(field, url).header("overwrite", "T");
        request = request.header("x-number-of-streams", streams.min(MAX_STREAMS)).header("credential", "none");
        if let Some(token) = &other.token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).unwrap_or(HeaderValue::from_static(""));
            value.set_sensitive(true);
            request = request.header(TRANSFER_AUTHORIZATION, value);
        }
        let answer = match self.by_http3 {
            true => AnyResponse::Session(self.ask(request, body::empty(), name, Some(STALL)).await?),
            // The pipelined connection spells field names as XRootD requires.
            false => AnyResponse::Pipelined(self.ask_on_line(request, body::empty(), name, stream).await?),
        };
        let mut reading = RangeReader { answer, left: 0, trailers: None, name: name.clone(), host: self.host.clone() };
        let (mut text, mut last) = (Vec::new(), String::new());
        while let Some(piece) = reading.some().await? {
            text.extend_from_slice(&piece);
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&text[..end]).trim().to_owned();
                text.drain(..=end);
                if let Some(bytes) = line.strip_prefix("Stripe Bytes Transferred:") {
                    told(bytes.trim().parse().unwrap_or(0));
                }
                if !line.is_empty() {
                    last = line;
                }
            }
            if text.len() > MAX_LINE_BYTES {
                return Err(RemoteError::Answer { name: name.clone(), what: "has a line that is too long" });
            }
        }
        if !text.is_empty() {
            last = String::from_utf8_lossy(&text).trim().to_owned();
        }
        let _ = reading.end(self);
        let is = |word: &str| last.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
        if is("success") {
            return Ok(());
        }
        let why = if is("failure:") { last["failure:".len()..].trim() } else { "nothing about the outcome" };
        Err(RemoteError::ThirdParty {
            name: name.clone(),
            host: self.host.clone(),
            why: why.escape_debug().to_string(),
        })
    }
}

const MAX_LINE_BYTES: usize = 64 << 10;
/// Servers refuse more streams.
const MAX_STREAMS: usize = 64;
