//! How the tasks of one content share it, and end.

use std::cell::{Ref, RefCell, RefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::{Rc, Weak};
use std::task::Poll;

use super::Content;
use crate::ppspp::hub::Recipient;
use crate::store::readers::Readable;

/// A content that its tasks share. All tasks run on one thread, and none holds a borrow across an await.
#[derive(Clone)]
pub(crate) struct Handle(Rc<RefCell<Content>>);

impl Handle {
    /// Wraps the state.
    pub(crate) fn new(mut state: Content) -> Self {
        Self(Rc::new_cyclic(|me| {
            state.me = me.clone();
            RefCell::new(state)
        }))
    }

    /// For those who read it.
    pub(crate) fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Rc::clone(&self.0) as _
    }

    /// For the sockets, which do not keep it.
    pub(crate) fn recipient(&self) -> Weak<RefCell<dyn Recipient>> {
        Rc::downgrade(&self.0) as _
    }

    /// Looks in.
    pub(crate) fn borrow(&self) -> Ref<'_, Content> {
        self.0.borrow()
    }

    /// Changes it.
    pub(crate) fn borrow_mut(&self) -> RefMut<'_, Content> {
        self.0.borrow_mut()
    }
}

impl Content {
    /// This content, for a task of it.
    pub(crate) fn this(&self) -> Option<Handle> {
        self.me.upgrade().map(Handle)
    }
}

/// Runs a task of a content to its end. Where it panics the content fails and says so: nobody waits for it in vain.
pub(crate) async fn guarded(content: Handle, task: impl Future<Output = ()>) {
    let mut task = std::pin::pin!(task);
    // What the task held goes with it: nothing half done is seen again.
    let caught = std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    if caught.await.is_err() {
        content.borrow_mut().panicked();
    }
}
