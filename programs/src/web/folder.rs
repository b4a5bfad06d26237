//! What the programs that serve a folder from an emulated host have in common.

use super::comparison::tokio_pool;
use super::limits::LimitOptions;
use super::site::Site;
use crate::outside::{OutsideHost, OutsideOptions, RunFiles, Stop, unusable};
use clap::Args;
use offload_cli::options::WireOptions;
use offload_cli::trace_options::TraceOptions;
use std::path::Path;

/// The host and its wire, what clients may take of it, and what is written about it.
#[derive(Args, Clone, Debug)]
pub struct FolderOptions {
    /// The host, and where its wire ends
    #[command(flatten)]
    pub outside: OutsideOptions,
    /// What clients may take
    #[command(flatten)]
    pub limits: LimitOptions,
    /// A timeline
    #[command(flatten)]
    pub trace: TraceOptions,
    /// The wire
    #[command(flatten)]
    pub wire: WireOptions,
}

impl FolderOptions {
    /// The folder as a site, and the host that is to serve it, called `host`. `name` is the program's.
    ///
    /// # Errors
    /// If the folder cannot be served; as [`OutsideHost::open`].
    pub fn open(&self, name: &'static str, host: &str, folder: &Path) -> Result<(Site, OutsideHost), Stop> {
        self.outside.check(&self.wire).map_err(unusable)?;
        let site =
            Site::new(folder, tokio_pool()).map_err(|error| unusable(format!("{}: {error}", folder.display())))?;
        let files = RunFiles { served: Some(folder), ..RunFiles::new(&self.trace) };
        let outside = OutsideHost::open(name, host, &self.outside, &self.wire, &files)?;
        Ok((site, outside))
    }

    /// What to do at the other end, up to the first request.
    pub fn instructions(&self, folder: &Path) -> String {
        format!(
            "{} serve {}. At the other end, as root:\n{}then\n  ping {}\n",
            self.outside.host(),
            folder.display(),
            self.outside.set_up(self.wire.mtu),
            self.outside.address
        )
    }
}
