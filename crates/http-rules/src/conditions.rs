//! Preconditions of requests (RFC 9110 section 13).

use crate::date;
use crate::tag::{TagComparison, TagField};
use crate::version::FileVersion;
use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_UNMODIFIED_SINCE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use std::time::SystemTime;

/// The preconditions of one request, which can be evaluated repeatedly.
///
/// ```
/// use http_rules::http::{HeaderMap, Method};
/// use http_rules::{CurrentState, Preconditions, UnmetPrecondition};
///
/// let mut fields = HeaderMap::new();
/// fields.insert("if-none-match", "*".parse()?);
/// let preconditions = Preconditions::from_fields(&Method::PUT, &fields);
/// assert_eq!(preconditions.evaluate(CurrentState::Absent), Ok(()));
/// assert_eq!(preconditions.evaluate(CurrentState::Unversioned), Err(UnmetPrecondition::Failed));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Preconditions {
    /// The fields of preconditions only.
    fields: HeaderMap,
    /// Whether the method is GET or HEAD.
    is_read: bool,
}

/// The present state of a request's target.
#[derive(Clone, Copy, Debug)]
pub enum CurrentState<'a> {
    /// No file has the name.
    Absent,
    /// The name belongs to something without tag and date, such as a folder.
    Unversioned,
    /// The name belongs to a file of this version.
    Version(&'a FileVersion),
}

/// The reason that preconditions are not met, and thereby the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmetPrecondition {
    /// The client's copy of the file is fresh: 304.
    #[error("the client's copy of the file is up to date")]
    NotModified,
    /// The method must not be carried out: 412.
    #[error("a precondition of the request is not met: the file has another version now, or its presence differs")]
    Failed,
    /// A write depends on an `If-None-Match` that cannot be read: 400.
    #[error("If-None-Match is neither `*` nor a list of entity tags in quotes")]
    Malformed,
}

impl UnmetPrecondition {
    /// Returns the status of the answer.
    pub fn status(self) -> StatusCode {
        match self {
            UnmetPrecondition::NotModified => StatusCode::NOT_MODIFIED,
            UnmetPrecondition::Failed => StatusCode::PRECONDITION_FAILED,
            UnmetPrecondition::Malformed => StatusCode::BAD_REQUEST,
        }
    }
}

impl Preconditions {
    /// Takes the preconditions out of a request's fields.
    pub fn from_fields(method: &Method, fields: &HeaderMap) -> Preconditions {
        let mut own = HeaderMap::new();
        for name in [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE] {
            for value in fields.get_all(&name) {
                own.append(&name, value.clone());
            }
        }
        Preconditions { fields: own, is_read: matches!(*method, Method::GET | Method::HEAD) }
    }

    /// Tests whether the request has no preconditions.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Adds the precondition that nothing has the name: `If-None-Match: *`.
    #[must_use]
    pub fn for_new_file(mut self) -> Preconditions {
        self.fields.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        self
    }

    /// Tests whether the preconditions allow nothing but a new file, so that a file system can make sure of it.
    pub fn is_for_new_file(&self) -> bool {
        self.tags(&IF_NONE_MATCH, None, TagComparison::Weak) == Some(TagField::Any)
    }

    /// Evaluates the preconditions in the order of RFC 9110 section 13.2.2.
    ///
    /// # Errors
    /// If one of them is not met.
    pub fn evaluate(&self, current: CurrentState<'_>) -> Result<(), UnmetPrecondition> {
        if self.is_empty() {
            return Ok(());
        }
        // Something without a version has neither tag nor date, so only `*` can match it.
        let version = if let CurrentState::Version(version) = current { Some(version) } else { None };
        let tag = version.map(FileVersion::entity_tag);
        let is_present = !matches!(current, CurrentState::Absent);
        let modified = version.map(|version| date::seconds(version.modified));
        match self.tags(&IF_MATCH, tag.as_ref(), TagComparison::Strong) {
            Some(TagField::Any) if is_present => {}
            Some(TagField::List { has: true }) => {}
            // 13.1.1: a field that cannot be read matches nothing.
            Some(_) => return Err(UnmetPrecondition::Failed),
            None => {
                // 13.1.4: ignored without a date of modification.
                if let (Some(date), Some(modified)) = (self.date(&IF_UNMODIFIED_SINCE), modified)
                    && modified > date::seconds(date)
                {
                    return Err(UnmetPrecondition::Failed);
                }
            }
        }
        let unmet = if self.is_read { UnmetPrecondition::NotModified } else { UnmetPrecondition::Failed };
        match self.tags(&IF_NONE_MATCH, tag.as_ref(), TagComparison::Weak) {
            Some(TagField::Any) if is_present => Err(unmet),
            Some(TagField::List { has: true }) => Err(unmet),
            // Ignoring the field is harmless for a read, but a write could overwrite a version that the client wants to
            // keep.
            Some(TagField::Malformed) if !self.is_read => Err(UnmetPrecondition::Malformed),
            Some(_) => Ok(()),
            None => match (self.date(&IF_MODIFIED_SINCE), modified) {
                // 13.1.3: for GET and HEAD only.
                (Some(date), Some(modified)) if self.is_read && modified <= date::seconds(date) => {
                    Err(UnmetPrecondition::NotModified)
                }
                _ => Ok(()),
            },
        }
    }

    /// Reads a field of tags. Returns `None` if the request does not have the field.
    fn tags(
        &self,
        name: &HeaderName,
        present: Option<&crate::EntityTag>,
        comparison: TagComparison,
    ) -> Option<TagField> {
        let mut lines = self.fields.get_all(name).iter().peekable();
        lines.peek()?;
        Some(TagField::read(lines, present, comparison))
    }

    /// Reads a field with a date. Returns `None` if the field is missing, repeated or malformed. The precondition is
    /// then ignored.
    fn date(&self, name: &HeaderName) -> Option<SystemTime> {
        single(&self.fields, name).and_then(date::parse)
    }
}

/// Returns the value of a field, if it is a single line of ASCII.
pub(crate) fn single<'a>(fields: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    // A repeated field is ambiguous, so it counts as missing.
    let mut lines = fields.get_all(name).iter();
    let line = lines.next()?.to_str().ok()?;
    lines.next().is_none().then_some(line.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a version that was modified on 6 November 1994 at 08:49:37 and half a second.
    fn version() -> FileVersion {
        let modified = date::from_nanoseconds(784_111_777_500_000_000).unwrap();
        FileVersion { inode: 1, size: 10, modified, changed: modified }
    }

    /// Evaluates for each kind of method and each state of the target. Returns 0 if all preconditions are met, or else
    /// the status.
    fn statuses(lines: &[(&str, &str)], state: CurrentState<'_>) -> Vec<u16> {
        let mut fields = HeaderMap::new();
        let tag = version().entity_tag().to_string();
        for (name, value) in lines {
            fields.append(name.parse::<HeaderName>().unwrap(), value.replace("TAG", &tag).parse().unwrap());
        }
        let methods = ["GET", "HEAD", "PUT", "POST", "DELETE", "COPY", "PATCH"];
        let evaluated = methods.map(|method| {
            let preconditions = Preconditions::from_fields(&method.parse().unwrap(), &fields);
            preconditions.evaluate(state).map_or_else(|unmet| unmet.status().as_u16(), |()| 0)
        });
        assert!(evaluated[0] == evaluated[1] && evaluated[2..].iter().all(|status| *status == evaluated[2]));
        vec![evaluated[0], evaluated[2]]
    }

    /// Each row: the fields; then the statuses of GET and PUT for a file, a folder, and a missing name.
    #[test]
    fn every_precondition_is_evaluated_in_every_form() {
        const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
        const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
        let met = [0, 0];
        let failed = [412, 412];
        let fresh = [304, 412];
        type PreconditionRow<'a> = (&'a [(&'a str, &'a str)], [u16; 2], [u16; 2], [u16; 2]);
        let (if_match, if_none) = ("if-match", "if-none-match");
        let (since, unmodified) = ("if-modified-since", "if-unmodified-since");
        let table: &[PreconditionRow<'_>] = &[
            (&[], met, met, met),
            (&[("x-other", "TAG")], met, met, met),
            // 13.1.1.
            (&[(if_match, "TAG")], met, failed, failed),
            (&[(if_match, "\"x\", TAG")], met, failed, failed),
            (&[(if_match, "\"x\""), (if_match, "TAG")], met, failed, failed),
            (&[(if_match, "W/TAG")], failed, failed, failed),
            (&[(if_match, "\"x\"")], failed, failed, failed),
            (&[(if_match, "*")], met, met, failed),
            (&[(if_match, "x")], failed, failed, failed),
            (&[(if_match, "*, TAG")], failed, failed, failed),
            (&[(if_match, "")], failed, failed, failed),
            // 13.1.2.
            (&[(if_none, "TAG")], fresh, met, met),
            (&[(if_none, "\"x\",TAG")], fresh, met, met),
            (&[(if_none, "\"x\""), (if_none, "TAG")], fresh, met, met),
            (&[(if_none, "W/TAG")], fresh, met, met),
            (&[(if_none, "\"x\"")], met, met, met),
            (&[(if_none, "*")], fresh, fresh, met),
            (&[(if_none, "x")], [0, 400], [0, 400], [0, 400]),
            (&[(if_none, "*"), (if_none, "TAG")], [0, 400], [0, 400], [0, 400]),
            // 13.1.3.
            (&[(since, BEFORE)], met, met, met),
            (&[(since, SAME)], [304, 0], met, met),
            (&[(since, AFTER)], [304, 0], met, met),
            (&[(since, "Sunday, 06-Nov-94 08:49:37 GMT")], [304, 0], met, met),
            (&[(since, "Sun Nov  6 08:49:37 1994")], [304, 0], met, met),
            (&[(since, "Fri, 01 Jan 1960 00:00:00 GMT")], met, met, met),
            (&[(since, "tomorrow")], met, met, met),
            (&[(since, SAME), (since, SAME)], met, met, met),
            // 13.1.4.
            (&[(unmodified, BEFORE)], failed, met, met),
            (&[(unmodified, SAME)], met, met, met),
            (&[(unmodified, AFTER)], met, met, met),
            (&[(unmodified, "Sunday, 06-Nov-94 08:49:36 GMT")], failed, met, met),
            (&[(unmodified, "Sun Nov  6 08:49:36 1994")], failed, met, met),
            (&[(unmodified, "Fri, 01 Jan 1960 00:00:00 GMT")], failed, met, met),
            (&[(unmodified, "Sun, 06 Nov 1994 08:49:36")], met, met, met),
            (&[(unmodified, BEFORE), (unmodified, BEFORE)], met, met, met),
            // RFC 9110 13.2.2: tags are evaluated before dates, and If-Match before If-None-Match.
            (&[(if_match, "TAG"), (unmodified, BEFORE)], met, failed, failed),
            (&[(if_match, "\"x\""), (unmodified, AFTER)], failed, failed, failed),
            (&[(if_match, "\"x\""), (if_none, "TAG")], failed, failed, failed),
            (&[(if_match, "TAG"), (if_none, "TAG")], fresh, failed, failed),
            (&[(if_none, "\"x\""), (since, AFTER)], met, met, met),
            (&[(if_none, "TAG"), (since, BEFORE)], fresh, met, met),
            (&[(if_match, "TAG"), (since, SAME)], [304, 0], failed, failed),
            (&[(unmodified, AFTER), (since, SAME)], [304, 0], met, met),
            (&[(unmodified, BEFORE), (if_none, "TAG")], failed, met, met),
        ];
        let version = version();
        for (fields, file, folder, nothing) in table {
            for (state, expected) in [
                (CurrentState::Version(&version), file),
                (CurrentState::Unversioned, folder),
                (CurrentState::Absent, nothing),
            ] {
                assert_eq!(statuses(fields, state), expected, "{fields:?}, {state:?}");
            }
        }
    }

    #[test]
    fn if_none_match_star_requires_a_new_file() {
        for (value, expected) in [("*", true), (" * ", true), ("\"x\"", false), ("*, \"x\"", false)] {
            let mut fields = HeaderMap::new();
            fields.insert(IF_NONE_MATCH, value.parse().unwrap());
            assert_eq!(Preconditions::from_fields(&Method::PUT, &fields).is_for_new_file(), expected, "{value}");
        }
        assert!(!Preconditions::default().is_for_new_file());
        assert!(Preconditions::default().for_new_file().is_for_new_file());
    }

    /// Times before and after 1970, and far away.
    #[test]
    fn times_before_1970_and_far_ahead_are_compared() {
        for modified in [-315_619_200_i64, 300_000_000_000] {
            let modified = FileVersion::change_time(modified, 0);
            let version = FileVersion { modified, ..version() };
            let evaluate = |name: HeaderName| {
                let mut fields = HeaderMap::new();
                fields.insert(name, "Fri, 01 Jan 1960 00:00:00 GMT".parse().unwrap());
                Preconditions::from_fields(&Method::GET, &fields).evaluate(CurrentState::Version(&version))
            };
            let is_old = modified < SystemTime::UNIX_EPOCH;
            assert_eq!(evaluate(IF_MODIFIED_SINCE), if is_old { Err(UnmetPrecondition::NotModified) } else { Ok(()) });
            assert_eq!(evaluate(IF_UNMODIFIED_SINCE), if is_old { Ok(()) } else { Err(UnmetPrecondition::Failed) });
        }
    }
}
