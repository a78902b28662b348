//! A content's clock: whom to dial, what limits let through, what is due.

use std::rc::Rc;
use std::time::{Duration, Instant};

use super::Handle;

/// How soon a full socket is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Keeps the core's time, dials, and has limits obeyed, until the content ends.
pub(crate) async fn keep_time(content: Handle) {
    let wake = Rc::clone(&content.borrow().wake);
    loop {
        let deadline = {
            let mut state = content.borrow_mut();
            if state.stopping {
                return;
            }
            let now = Instant::now();
            state.is_socket_full = false;
            state.dial(now);
            state.allow(now);
            state.look_whom_to_serve(now);
            let sign = state.sign_in_time(now);
            state.core.poll(now);
            state.pump(now);
            let full = state.is_socket_full.then(|| now + FULL_PAUSE);
            let due = state.core.deadline();
            state.sleeps_until = [Some(due), full, sign].into_iter().flatten().min().unwrap_or(due);
            state.sleeps_until
        };
        if deadline <= Instant::now() {
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline.into()) => {}
            () = wake.notified() => {}
        }
    }
}
