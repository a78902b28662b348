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
//! | `run` | begins the driver, follows it, begins it again |
//! | `transfer` | what a session asks of it |

mod run;
mod state;
mod task;
mod transfer;

use std::cell::RefCell;
use std::rc::Rc;

pub(crate) use self::state::Kept;
use self::state::State;
pub use self::task::{Job, Partner, Task};
use crate::config::AddOptions;
use crate::events::ContentId;
use crate::resources::Resources;

/// Begins with one.
pub(crate) fn begin(id: ContentId, task: Task, options: AddOptions, resources: &Rc<Resources>) -> Kept {
    let kept = Kept(Rc::new(RefCell::new(State::new(id, task, options, Rc::clone(resources)))));
    kept.0.borrow_mut().tasks.spawn_local(run::run(kept.clone()));
    kept
}
