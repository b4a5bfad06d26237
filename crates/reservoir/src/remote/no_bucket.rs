//! Replacement for buckets without the feature `s3`.

use super::{FolderEntry, Remote, RemoteError};
use crate::name::Name;
use hyper::Method;

/// An uninhabited type: no server is a bucket.
pub(crate) enum Bucket {}

impl Remote {
    pub(super) async fn is_folder_of(&self, bucket: &Bucket, _name: &Name) -> Result<bool, RemoteError> {
        match *bucket {}
    }

    pub(super) async fn list_bucket(&self, bucket: &Bucket, _name: &Name) -> Result<Vec<FolderEntry>, RemoteError> {
        match *bucket {}
    }

    pub(super) fn target_of(&self, bucket: &Bucket, _method: &Method, _name: &Name) -> Option<String> {
        match *bucket {}
    }

    pub(super) fn put_target(&self, bucket: &Bucket, _modified: Option<&str>, _name: &Name) -> Option<String> {
        match *bucket {}
    }
}

/// Returns the reason in a bucket's refusal.
pub(super) fn refusal(_text: &str) -> Option<String> {
    None
}
