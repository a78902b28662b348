//! A bulk transfer as one of a session's contents: it is kept until it is done, begins again where something cut it short, waits and
//! goes on as its owner says, and is told of as the others are.
//!
//! The transfer itself is a driver of its own, with its own sockets and threads ([`super::send`], [`super::receive`]); here is one task
//! on the session's thread, which begins it, reads its events, and ends it.
//!
//! | module | what it does |
//! | --- | --- |
//! | `task` | what it is to do |
//! | `state` | what is known of it, and what its events change. Pure |
//! | `supervisor` | begins the driver, follows it, begins it again |
//! | `transfer` | what a session asks of it |

mod state;
mod supervisor;
mod task;
mod transfer;

use std::cell::RefCell;
use std::rc::Rc;

pub(crate) use self::state::ManagedTransfer;
use self::state::State;
pub use self::task::{Job, Partner, Task};
use crate::config::AddOptions;
use crate::events::ContentId;
use crate::resources::Resources;

/// Begins with one.
pub(crate) fn begin(id: ContentId, task: Task, options: AddOptions, resources: &Rc<Resources>) -> ManagedTransfer {
    let transfer = ManagedTransfer(Rc::new(RefCell::new(State::new(id, task, options, Rc::clone(resources)))));
    transfer.0.borrow_mut().tasks.spawn_local(supervisor::run(transfer.clone()));
    transfer
}
