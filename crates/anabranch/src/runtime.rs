//! The runtime that commands run on, and the signals that end them.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use crate::exit::{Code, Failure};
use crate::system;

/// Signals that come so soon after the first ask for the same: a terminal that is closed sends SIGHUP to all that ran in it, and its
/// shell does so too; `timeout` and other programs pass on what has reached everybody already.
const SAME_REQUEST: Duration = Duration::from_millis(300);
/// Threads for what blocks: opening files, checking, looking up names. Each costs memory, and disks gain nothing from more.
const BLOCKING_THREADS_MAX: usize = 8;

/// Runs `work` on a runtime of one thread. What still blocks when it is done is not waited for.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()
        .map_err(Failure::runtime)?;
    let done = LocalSet::new().block_on(&runtime, work);
    runtime.shutdown_background();
    done
}

/// Runs `work` beside the runtime. Where the user or the system asks to end, `cancel` is set, and the work's own end is waited for: it
/// ends what it started, which takes a moment.
pub(crate) fn cancellable(
    cancel: &AtomicBool,
    work: impl FnOnce() -> Result<Code, Failure> + Send + 'static,
) -> Result<Code, Failure> {
    block_on(async {
        let interrupted = interrupts()?;
        let mut work = tokio::task::spawn_blocking(work);
        let done = tokio::select! {
            done = &mut work => done,
            () = interrupted.notified() => {
                cancel.store(true, Ordering::Relaxed);
                work.await
            }
        };
        done.map_err(|error| Failure::new(Code::Failed, error))?
    })
}

/// What `work` comes to; `None` where the user or the system asks to end before that.
pub(crate) async fn unless_interrupted<T>(
    interrupted: &Notify,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<Option<T>, Failure> {
    tokio::select! {
        done = work => done.map(Some),
        () = interrupted.notified() => Ok(None),
    }
}

/// Says when the user or the system asks to end. A second time ends the program at once. A signal that whoever started the
/// program had it ignore (`nohup`; a shell's `&` for Ctrl-C) stays ignored.
pub(crate) fn interrupts() -> Result<Rc<Notify>, Failure> {
    interrupts_of(&[SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()])
}

/// The same where a hang-up is no request to end.
pub(crate) fn interrupts_but_hangups() -> Result<Rc<Notify>, Failure> {
    interrupts_of(&[SignalKind::interrupt(), SignalKind::terminate()])
}

fn interrupts_of(kinds: &[SignalKind]) -> Result<Rc<Notify>, Failure> {
    let heeded = kinds.iter().copied().filter(|kind| !system::is_ignored(kind.as_raw_value()));
    let mut signals = heeded.map(|kind| signal(kind).map_err(Failure::runtime)).collect::<Result<Vec<_>, _>>()?;
    let asked = Rc::new(Notify::new());
    let told = Rc::clone(&asked);
    tokio::task::spawn_local(async move {
        next_signal(&mut signals).await;
        told.notify_one();
        tokio::time::sleep(SAME_REQUEST).await;
        drop_signals(&mut signals).await;
        next_signal(&mut signals).await;
        std::process::exit(Code::Interrupted as i32);
    });
    Ok(asked)
}

async fn next_signal(signals: &mut [tokio::signal::unix::Signal]) {
    std::future::poll_fn(|context| {
        let any = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if any { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Forgets those that came meanwhile.
async fn drop_signals(signals: &mut [tokio::signal::unix::Signal]) {
    std::future::poll_fn(|context| {
        for signal in &mut *signals {
            while signal.poll_recv(context).is_ready() {}
        }
        std::task::Poll::Ready(())
    })
    .await;
}
