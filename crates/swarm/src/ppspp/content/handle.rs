//! How the tasks of one content share it.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::{Rc, Weak};

use super::Content;
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

    /// The content, where it is still there.
    pub(crate) fn upgrade(weak: &Weak<RefCell<Content>>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    /// For those who read it.
    pub(crate) fn readable(&self) -> Rc<RefCell<dyn Readable>> {
        Rc::clone(&self.0) as _
    }

    /// For whoever does not keep it.
    pub(crate) fn downgrade(&self) -> Weak<RefCell<Content>> {
        Rc::downgrade(&self.0)
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
