//! Buckets of S3 and compatible servers: accounts, and signed requests (`rusty-s3`).
//!
//! The signature is part of a request's URL. A bucket is therefore a server with other request targets; the HTTP code
//! is shared. Source: Amazon S3 API Reference, 2006-03-01.

use crate::name::Name;
use crate::remote::BUCKET_MTIME;
use core::fmt;
use core::time::Duration;
use rusty_s3::actions::{
    CompleteMultipartUpload, CompleteMultipartUploadResponse, CreateMultipartUpload, GetObject, HeadObject,
    ListObjectsV2, ListParts, PutObject, S3Action, UploadPart,
};
use rusty_s3::{Credentials, UrlStyle};
use std::sync::Arc;
use std::time::SystemTime;

/// Credentials and endpoint of an account.
///
/// ```
/// use offload_reservoir::s3::BucketAccount;
///
/// let account = BucketAccount::new("https://store.test:7070", "us-east-1", "AKIDEXAMPLE", "a secret", None)?;
/// assert!(!format!("{account:?}").contains("a secret"));
/// assert!(BucketAccount::new("http://store.test", "us-east-1", "AKIDEXAMPLE", "a secret", None).is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone)]
pub struct BucketAccount(Arc<AccountState>);

struct AccountState {
    endpoint: url::Url,
    region: String,
    credentials: Credentials,
}

impl BucketAccount {
    /// Creates an account at `endpoint`, an `https://` URL, with a key, its secret and, for temporary credentials, a
    /// session token.
    ///
    /// # Errors
    /// A text for the user, if the endpoint is invalid.
    pub fn new(
        endpoint: &str,
        region: &str,
        key: &str,
        secret: &str,
        session: Option<&str>,
    ) -> Result<BucketAccount, String> {
        let endpoint: url::Url =
            endpoint.parse().map_err(|error| format!("the buckets' endpoint is no URL: {error}"))?;
        // The message shows the host only, because the URL may contain a password.
        let wrong = |what: &str| format!("{}: {what}", endpoint.host_str().unwrap_or("the buckets' endpoint"));
        if endpoint.scheme() != "https" {
            return Err(wrong("only https:// is encrypted"));
        }
        if !endpoint.username().is_empty() || endpoint.password().is_some() {
            return Err(wrong("no passwords in URLs: the key is in AWS_ACCESS_KEY_ID"));
        }
        let credentials = match session {
            Some(session) => Credentials::new_with_token(key, secret, session),
            None => Credentials::new(key, secret),
        };
        Ok(BucketAccount(Arc::new(AccountState { endpoint, region: region.into(), credentials })))
    }

    /// Returns a bucket of the account.
    pub(crate) fn bucket(&self, name: &str) -> Result<Bucket, String> {
        // AWS's general naming rules, as far as URL paths require them.
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !(1..=255).contains(&name.len()) || !name.bytes().all(fits) || name.starts_with('.') {
            return Err(format!("s3://{name}: this is no name of a bucket"));
        }
        let inner = &self.0;
        let bucket =
            rusty_s3::Bucket::new(inner.endpoint.clone(), UrlStyle::Path, name.to_owned(), inner.region.clone());
        let bucket = bucket.map_err(|error| format!("s3://{name}: {error}"))?;
        Ok(Bucket { account: self.clone(), bucket })
    }
}

impl fmt::Debug for BucketAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AccountState { endpoint, region, .. } = &*self.0;
        f.debug_struct("BucketAccount")
            .field("endpoint", &endpoint.as_str())
            .field("region", region)
            .finish_non_exhaustive()
    }
}

/// A bucket with the account for its requests.
pub(crate) struct Bucket {
    account: BucketAccount,
    bucket: rusty_s3::Bucket,
}

/// A request about an object.
#[derive(Clone, Copy)]
pub(crate) enum S3Request<'a> {
    Head,
    Get,
    /// Upload of the whole object. The field with the source's modification time is signed.
    Put(Option<&'a str>),
    /// Start of a multipart upload, signed like `Put`.
    Create(Option<&'a str>),
    /// The pending multipart uploads of this object.
    Uploads,
    /// The present parts of an upload, after a part number.
    Parts(&'a str, u16),
    Part(&'a str, u16),
    Complete(&'a str),
}

impl Bucket {
    /// Returns the server's host and port.
    pub(crate) fn server(&self) -> (String, u16) {
        let endpoint = &self.account.0.endpoint;
        // A URL has an IPv6 address in brackets; a host name has none.
        let host = endpoint.host_str().unwrap_or_default().trim_matches(['[', ']']);
        (host.to_owned(), endpoint.port_or_known_default().unwrap_or(443))
    }

    /// Returns the signed target of a request.
    ///
    /// # Errors
    /// If the name is not UTF-8, as keys must be.
    pub(crate) fn target(&self, ask: S3Request<'_>, name: &Name) -> Result<String, BadKey> {
        let key = key(name)?;
        let (bucket, credentials) = (&self.bucket, Some(&self.account.0.credentials));
        let url = match ask {
            S3Request::Head => HeadObject::new(bucket, credentials, &key).sign(VALID),
            S3Request::Get => GetObject::new(bucket, credentials, &key).sign(VALID),
            S3Request::Put(modified) => {
                let mut action = PutObject::new(bucket, credentials, &key);
                modified
                    .into_iter()
                    .for_each(|modified| action.headers_mut().insert(BUCKET_MTIME, modified.to_owned()));
                action.sign(VALID)
            }
            S3Request::Create(modified) => {
                let mut action = CreateMultipartUpload::new(bucket, credentials, &key);
                modified
                    .into_iter()
                    .for_each(|modified| action.headers_mut().insert(BUCKET_MTIME, modified.to_owned()));
                action.sign(VALID)
            }
            S3Request::Uploads => {
                // This request is about the bucket, so the object name is empty.
                let mut action = GetObject::new(bucket, credentials, "");
                action.query_mut().insert("uploads", "");
                action.query_mut().insert("prefix", key.clone());
                action.sign(VALID)
            }
            S3Request::Parts(upload, after) => {
                let mut action = ListParts::new(bucket, credentials, &key, upload);
                action.set_part_number_marker(after);
                action.sign(VALID)
            }
            S3Request::Part(upload, number) => UploadPart::new(bucket, credentials, &key, number, upload).sign(VALID),
            S3Request::Complete(upload) => {
                CompleteMultipartUpload::new(bucket, credentials, &key, upload, core::iter::empty()).sign(VALID)
            }
        };
        Ok(target(&url))
    }

    /// Returns the signed target that lists a folder, with at most `most` entries, continuing at the token `from`.
    ///
    /// # Errors
    /// The errors of [`target`](Self::target).
    pub(crate) fn listing(&self, folder: &Name, from: Option<&str>, most: usize) -> Result<String, BadKey> {
        let mut action = ListObjectsV2::new(&self.bucket, Some(&self.account.0.credentials));
        action.with_delimiter("/");
        action.with_max_keys(most);
        if folder != &Name::root() {
            action.with_prefix(key(folder)? + "/");
        }
        from.into_iter().for_each(|from| action.with_continuation_token(from.to_owned()));
        Ok(target(&action.sign(VALID)))
    }
}

/// Returns the body that completes a multipart upload with these part tags.
pub(crate) fn complete(tags: &[&str]) -> String {
    let nowhere = "https://nowhere.invalid".parse().expect("a URL");
    let bucket = rusty_s3::Bucket::new(nowhere, UrlStyle::Path, "-", "-").expect("the URL has a host");
    CompleteMultipartUpload::new(&bucket, None, "", "", tags.iter().copied()).body()
}

/// Returns whether a response to the completion reports success. The status is not sufficient.
pub(crate) fn is_complete(text: &str) -> bool {
    CompleteMultipartUploadResponse::parse(text).is_ok()
}

/// Returns the upload's identifier in the response to [`S3Request::Create`].
pub(crate) fn created(text: &str) -> Option<String> {
    Some(CreateMultipartUpload::parse_response(text).ok()?.upload_id().to_owned())
}

/// Returns the last upload of `name` in the response to [`S3Request::Uploads`], with its start time.
pub(crate) fn last_upload(text: &str, name: &Name) -> Option<(String, Option<SystemTime>)> {
    let key = key(name).ok()?;
    let uploads = text.split("<Upload>").skip(1);
    // The prefix also matches longer keys.
    let mine = uploads.filter(|upload| element(upload, "Key").is_some_and(|its| its == key)).last()?;
    Some((element(mine, "UploadId")?, time(mine, "Initiated")))
}

fn time(text: &str, name: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339_weak(&element(text, name)?).ok()
}

/// Returns code and message of an S3 error response. The rest may quote the request with its session token.
pub(crate) fn refusal(text: &str) -> Option<String> {
    text.contains("<Error>").then_some(())?;
    let code = element(text, "Code")?;
    Some(element(text, "Message").map_or_else(|| code.clone(), |message| format!("{code}: {message}")))
}

/// Returns the parts in the response to [`S3Request::Parts`], and the part number after which more follow. `None` if
/// the text is not such a response. Parsed by hand, because some servers omit elements that Amazon sends.
pub(crate) fn parts(text: &str) -> Option<(Vec<BucketPart>, Option<u16>)> {
    // The status alone does not show that this is a list of parts.
    text.contains("<ListParts").then_some(())?;
    let part = |text: &str| {
        let number = element(text, "PartNumber")?.parse().ok()?;
        let came = time(text, "LastModified");
        Some(BucketPart { number, size: element(text, "Size")?.parse().ok()?, tag: element(text, "ETag")?, came })
    };
    let parts = text.split("<Part>").skip(1).map(part).collect::<Option<Vec<BucketPart>>>()?;
    let is_truncated = element(text, "IsTruncated").is_some_and(|is| is == "true");
    let next = element(text, "NextPartNumberMarker").filter(|_| is_truncated).map(|next| next.parse());
    Some((parts, next.transpose().ok()?))
}

/// A part on the server.
#[derive(Debug, PartialEq)]
pub(crate) struct BucketPart {
    pub(crate) number: u16,
    pub(crate) size: u64,
    pub(crate) tag: String,
    /// Time of arrival.
    pub(crate) came: Option<SystemTime>,
}

/// Returns the text of an element that has no child elements.
fn element(text: &str, name: &str) -> Option<String> {
    let text = text.split_once(&format!("<{name}>"))?.1.split_once(&format!("</{name}>"))?.0;
    let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    // The ampersand is last, because it must not create new escapes.
    Some(plain.replace("&#34;", "\"").replace("&#39;", "'").replace("&amp;", "&"))
}

/// A name that is not a valid key.
pub(crate) struct BadKey;

fn key(name: &Name) -> Result<String, BadKey> {
    name.path().to_str().map(str::to_owned).ok_or(BadKey)
}

/// Returns path and query of a URL.
fn target(url: &url::Url) -> String {
    match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    }
}

/// Validity of a signature. Each attempt is signed anew, but may wait for a connection, and clocks differ.
const VALID: Duration = Duration::from_secs(600);
/// Maximum number of parts of an upload.
pub(crate) const MAX_PARTS: u64 = 10_000;
/// Minimum length of a part in bytes, except for the last one.
pub(crate) const MIN_PART: u64 = 5 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket() -> Bucket {
        let account =
            BucketAccount::new("https://[::1]:7070", "us-east-1", "AKIDEXAMPLE", "a secret", Some("session")).unwrap();
        account.bucket("bucket").unwrap()
    }

    #[test]
    fn targets_are_signed_and_any_name_of_utf8_is_a_key() {
        let name = Name::from_url("/a%20b/%E4%BD%A0%25%3F").unwrap();
        for ask in [
            S3Request::Head,
            S3Request::Get,
            S3Request::Put(Some("1.5")),
            S3Request::Create(None),
            S3Request::Part("id", 3),
            S3Request::Complete("id"),
        ] {
            let target = bucket().target(ask, &name).ok().unwrap();
            assert!(
                target.starts_with("/bucket/a%20b/%E4%BD%A0%25%3F?") && target.contains("&X-Amz-Signature="),
                "{target}"
            );
            assert!(!target.contains("secret") && target.contains("X-Amz-Security-Token=session"), "{target}");
            assert_eq!(
                target.contains("X-Amz-SignedHeaders=host%3Bx-amz-meta-mtime"),
                matches!(ask, S3Request::Put(_)),
                "{target}"
            );
        }
        assert_eq!(bucket().server(), ("::1".to_owned(), 7070));
        assert!(bucket().target(S3Request::Get, &Name::from_url("/%FF").unwrap()).is_err());
        let listing = bucket().listing(&Name::from_url("/a").unwrap(), Some("from/here"), 7).ok().unwrap();
        assert!(listing.contains("prefix=a%2F") && listing.contains("continuation-token=from%2Fhere"), "{listing}");
    }

    #[test]
    fn refusals_tell_why_and_quote_no_request() {
        let text = "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.</Message>\
            <CanonicalRequest>X-Amz-Security-Token=session</CanonicalRequest></Error>";
        assert_eq!(refusal(text).as_deref(), Some("SignatureDoesNotMatch: Check your key."));
        assert_eq!((refusal("<Error></Error>"), refusal("no")), (None, None));
        let error = BucketAccount::new("https://me:hidden@store.test", "us-east-1", "key", "secret", None).unwrap_err();
        assert_eq!(error, "store.test: no passwords in URLs: the key is in AWS_ACCESS_KEY_ID");
    }

    #[test]
    fn names_of_buckets_lead_nowhere_else() {
        let account = BucketAccount::new("https://store.test", "us-east-1", "key", "secret", None).unwrap();
        for bad in ["", ".", "..", "a/b", "a?b", "a b", "%2e"] {
            assert!(account.bucket(bad).is_err(), "{bad}");
        }
        for bad in ["http://store.test", "store.test", "https://me@store.test"] {
            assert!(BucketAccount::new(bad, "us-east-1", "key", "secret", None).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_upload_of_a_key_is_found_among_others() {
        let upload = |key: &str, id: &str| {
            format!(
                "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>"
            )
        };
        let begun = humantime::parse_rfc3339("2026-01-02T03:04:05Z").unwrap();
        let text = upload("a&amp;b", "1") + &upload("a&amp;b", "2") + &upload("a&amp;b2", "3");
        let name = |url: &str| Name::from_url(url).unwrap();
        assert_eq!(last_upload(&text, &name("/a%26b")), Some(("2".into(), Some(begun))));
        assert_eq!(last_upload(&text, &name("/a")), None);
        assert_eq!(last_upload("<Upload><Key>a", &name("/a")), None);
        let part = "<Part><PartNumber>3</PartNumber><ETag>&quot;aa&quot;</ETag><Size>5</Size><LastModified>2026-01-02T03:04:05.000Z</LastModified></Part>";
        let list = |more: &str| format!("<ListPartsResult xmlns='x'>{part}{more}</ListPartsResult>");
        let more = "<IsTruncated>true</IsTruncated><NextPartNumberMarker>3</NextPartNumberMarker>";
        let came = BucketPart { number: 3, size: 5, tag: "\"aa\"".into(), came: Some(begun) };
        assert_eq!(parts(&list(more)), Some((vec![came], Some(3))));
        assert_eq!(parts(&list("")).unwrap().1, None);
        assert_eq!((parts("<Error/>"), parts(&list("<Part></Part>"))), (None, None));
        assert!(complete(&["\"one\"", "\"two\""]).contains("<PartNumber>2</PartNumber>"));
        assert!(!is_complete("<Error><Code>InternalError</Code></Error>"));
    }
}
