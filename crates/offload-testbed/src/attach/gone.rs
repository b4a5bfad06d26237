//! Tells a program that the outside of a wire has gone for good.

use core::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether what a wire leads to is gone for good. Cloned, it tells of the same one.
///
/// ```
/// use offload_testbed::attach::Gone;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let gone = Gone::default();
/// gone.tell();
/// gone.wait().await;
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Gone(Arc<watch::Sender<bool>>);

impl Gone {
    /// It is.
    pub fn tell(&self) {
        self.0.send_replace(true);
    }

    /// Ready when it is.
    pub async fn wait(&self) {
        let mut told = self.0.subscribe();
        // The sender is here: it cannot have been dropped.
        let _never_fails = told.wait_for(|gone| *gone).await;
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gone").field(&*self.0.borrow()).finish()
    }
}
