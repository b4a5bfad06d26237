//! A signal that the outside of a wire is gone for good.

use core::fmt;
use std::sync::Arc;
use tokio::sync::watch;

/// Whether the outside of a wire is gone for good. A clone refers to the same flag.
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
    /// Sets the flag.
    pub fn tell(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the flag is set.
    pub async fn wait(&self) {
        let mut told = self.0.subscribe();
        // `wait_for` fails only if the sender was dropped, and `self` holds the sender.
        let _never_fails = told.wait_for(|gone| *gone).await;
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gone").field(&*self.0.borrow()).finish()
    }
}
