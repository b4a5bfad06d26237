//! Versions of files as told by their server. All ranges of one copy must belong to one version.

use super::field;
use core::time::Duration;
use hyper::header::{DATE, ETAG, HeaderMap, IF_MATCH, IF_UNMODIFIED_SINCE, LAST_MODIFIED};
use hyper::http::request::Builder;

/// The validators of a file (RFC 9110 section 8.8).
#[derive(Clone, Debug, Default)]
pub(crate) struct RemoteFileVersion {
    tag: Option<String>,
    /// Last-Modified as written by the server.
    date: Option<String>,
    /// Whether equal versions guarantee equal bytes.
    is_strong: bool,
}

impl RemoteFileVersion {
    /// Creates the version of an entity tag in a listing.
    pub(crate) fn from_tag(tag: Option<&str>) -> RemoteFileVersion {
        RemoteFileVersion { tag: tag.map(str::to_owned), date: None, is_strong: tag.is_some_and(is_strong) }
    }

    /// Reads the version from the fields of a response.
    pub(super) fn from_answer(fields: &HeaderMap) -> RemoteFileVersion {
        let date = |name| field(fields, name).and_then(http_rules::date::parse);
        // RFC 9110 section 8.8.2.2: a file written in the second of the response may be written again in that second.
        let is_old = |modified| date(DATE).is_some_and(|now| now >= modified + Duration::from_secs(1));
        let by_date = date(LAST_MODIFIED).is_some_and(is_old);
        let tag = RemoteFileVersion::from_tag(field(fields, ETAG));
        RemoteFileVersion {
            is_strong: tag.is_strong || by_date,
            date: field(fields, LAST_MODIFIED).map(str::to_owned),
            ..tag
        }
    }

    /// Tests whether ranges of several responses may be combined.
    pub(crate) fn is_strong(&self) -> bool {
        self.is_strong
    }

    /// Adds the condition that the file still has this version.
    pub(super) fn put_in(&self, request: Builder) -> Builder {
        match self {
            // A weak tag never matches If-Match (RFC 9110 section 13.1.1).
            RemoteFileVersion { tag: Some(tag), .. } if is_strong(tag) => request.header(IF_MATCH, tag),
            RemoteFileVersion { date: Some(date), .. } => request.header(IF_UNMODIFIED_SINCE, date),
            _ => request,
        }
    }

    /// Tests whether a response has this version, because a server may ignore the condition.
    pub(super) fn fits(&self, fields: &HeaderMap) -> bool {
        let is_same = |mine: &Option<String>, name, is_needed: bool| match (mine, field(fields, name)) {
            (Some(mine), Some(now)) => mine == now,
            (Some(_), None) => !is_needed,
            (None, _) => true,
        };
        let has_strong_tag = self.tag.as_deref().is_some_and(is_strong);
        is_same(&self.tag, ETAG, has_strong_tag)
            && (has_strong_tag || is_same(&self.date, LAST_MODIFIED, self.is_strong))
    }
}

/// Tests whether a tag is strong (RFC 9110 section 8.8.3).
fn is_strong(tag: &str) -> bool {
    !tag.starts_with("W/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::{HeaderName, HeaderValue};

    fn fields(pairs: &[(HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn dates_are_strong_a_second_later_and_tags_unless_weak() {
        let (one, two) = ("Sat, 28 Nov 2026 09:00:01 GMT", "Sat, 28 Nov 2026 09:00:02 GMT");
        for (pairs, strong) in [
            (&[(ETAG, "\"a\"")][..], true),
            (&[(ETAG, "W/\"a\"")], false),
            (&[(LAST_MODIFIED, one), (DATE, two)], true),
            (&[(ETAG, "W/\"a\""), (LAST_MODIFIED, one), (DATE, two)], true),
            (&[(LAST_MODIFIED, one), (DATE, one)], false),
            (&[(LAST_MODIFIED, two), (DATE, one)], false),
            (&[(LAST_MODIFIED, one)], false),
            (&[(LAST_MODIFIED, "yesterday"), (DATE, two)], false),
            (&[], false),
        ] {
            assert_eq!(RemoteFileVersion::from_answer(&fields(pairs)).is_strong(), strong, "{pairs:?}");
        }
    }

    #[test]
    fn answers_of_other_versions_do_not_fit() {
        let (one, two) = ("Sat, 28 Nov 2026 09:00:01 GMT", "Sat, 28 Nov 2026 09:00:02 GMT");
        let tagged = RemoteFileVersion::from_answer(&fields(&[(ETAG, "\"a\""), (LAST_MODIFIED, one)]));
        let dated = RemoteFileVersion::from_answer(&fields(&[(LAST_MODIFIED, one), (DATE, two)]));
        let weak = RemoteFileVersion::from_answer(&fields(&[(ETAG, "W/\"a\""), (LAST_MODIFIED, one)]));
        for (version, now, fits) in [
            (&tagged, &[(ETAG, "\"a\""), (LAST_MODIFIED, two)][..], true),
            (&tagged, &[(ETAG, "\"b\""), (LAST_MODIFIED, one)], false),
            (&tagged, &[(LAST_MODIFIED, one)], false),
            (&dated, &[(LAST_MODIFIED, one)], true),
            (&dated, &[(LAST_MODIFIED, two)], false),
            (&dated, &[], false),
            (&weak, &[], true),
            (&weak, &[(ETAG, "W/\"b\"")], false),
            (&weak, &[(LAST_MODIFIED, two)], false),
        ] {
            assert_eq!(version.fits(&fields(now)), fits, "{version:?} {now:?}");
        }
    }
}
