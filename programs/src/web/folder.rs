//! Common options of the programs that serve a folder from an emulated host.

use super::comparison::tokio_pool;
use super::limits::LimitOptions;
use super::site::Site;
use crate::outside::{OutsideHost, OutsideOptions, RunFiles, Stop, unusable};
use clap::Args;
use offload_cli::options::WireOptions;
use offload_cli::trace_options::TraceOptions;
use std::path::Path;

/// Options of the host and its wire, of clients' limits, and of the timeline.
#[derive(Args, Clone, Debug)]
pub struct FolderOptions {
    /// The host and the end of its wire
    #[command(flatten)]
    pub outside: OutsideOptions,
    /// Limits of clients
    #[command(flatten)]
    pub limits: LimitOptions,
    /// The timeline
    #[command(flatten)]
    pub trace: TraceOptions,
    /// The wire
    #[command(flatten)]
    pub wire: WireOptions,
}

impl FolderOptions {
    /// Opens the folder as a site, and the host that is to serve it, called `host`. `name` is the program's name.
    ///
    /// # Errors If the folder cannot be served; as [`OutsideHost::open`].
    pub fn open(&self, name: &'static str, host: &str, folder: &Path) -> Result<(Site, OutsideHost), Stop> {
        self.outside.check(&self.wire).map_err(unusable)?;
        let site =
            Site::new(folder, tokio_pool()).map_err(|error| unusable(format!("{}: {error}", folder.display())))?;
        let files = RunFiles { served: Some(folder), ..RunFiles::new(&self.trace) };
        let outside = OutsideHost::open(name, host, &self.outside, &self.wire, &files)?;
        Ok((site, outside))
    }

    /// Returns the commands for the other end, up to the first request.
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
