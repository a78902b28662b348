//! A process outside of the sandbox that does what it was told before that was closed, and nothing else.
//!
//! It begins as a copy of this one, so what it does is code of its caller's: a [`Task`] takes bytes and answers with bytes, an
//! [`Errand`] makes of bytes a program to be started. Who asks may have been taken over by then: a task has to judge what it is given as if it came
//! from a stranger. Nothing else can be asked for.
//!
//! It ends when this process does, however that comes about, and removes on its way the folders that it was told of, where they are
//! empty.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Does something with bytes, and answers with bytes.
pub type Task = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send>;
/// Makes of bytes a program to be started, in a process group of its own; or says why not.
pub type Errand = Box<dyn FnMut(&[u8]) -> io::Result<Command> + Send>;

/// Longest bytes of one request: more than any file that is saved whole has.
const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Programs at once; who asks for more is refused.
const RUNNING_MAX: usize = 8;

/// What is to be done outside.
#[derive(Default)]
pub struct Duties {
    /// By number.
    pub tasks: Vec<Task>,
    /// The one program that may be started.
    pub errand: Option<Errand>,
    /// Folders and files that go in the end if they are empty, the last one first.
    pub made: Vec<PathBuf>,
}

impl Duties {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.errand.is_none() && self.made.is_empty()
    }
}

/// The process beside this one.
pub struct Beside {
    pid: libc::pid_t,
    tasks: Mutex<UnixStream>,
    asked: Mutex<UnixStream>,
    told: Mutex<UnixStream>,
    next: AtomicU32,
}

/// What is asked of the errand: its number goes in front, then one of these.
const START: u8 = 0;
const END: u8 = 1;
/// What is told of it: it was started, or the error; it ended, and how.
const STARTED: u8 = 2;
const ENDED: u8 = 3;

impl Beside {
    /// Begins it. To be called before there are other threads: it has none of them.
    pub fn start(duties: Duties) -> io::Result<Self> {
        let (tasks, far_tasks) = UnixStream::pair()?;
        let (errands, far_errands) = UnixStream::pair()?;
        let told = errands.try_clone()?;
        // SAFETY: there is one thread, as the caller says, so that the copy may do all that this process may.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop((tasks, errands, told));
                // Nothing of this process's own is to be done on the way out.
                let served =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| serve(far_tasks, far_errands, duties)));
                // SAFETY: the call ends the process.
                unsafe { libc::_exit(i32::from(served.is_err())) }
            }
            pid => Ok(Self {
                pid,
                tasks: Mutex::new(tasks),
                asked: Mutex::new(errands),
                told: Mutex::new(told),
                next: AtomicU32::new(0),
            }),
        }
    }

    /// Has a task done, and waits for its answer.
    pub fn ask(&self, task: u32, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut tasks = lock(&self.tasks);
        send(&mut tasks, &[&task.to_le_bytes(), bytes])?;
        receive(&mut tasks)?.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// A run of the errand that is still to be begun.
    pub fn run(self: &Arc<Self>) -> Running {
        Running { beside: Arc::clone(self), number: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        for stream in [&self.tasks, &self.asked] {
            // One whose other end is gone is shut.
            let _ = lock(stream).shutdown(std::net::Shutdown::Both);
        }
        // SAFETY: the call takes no memory. Nobody else waits for the process, so that its number is still its own.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// A run of the errand.
#[derive(Clone)]
pub struct Running {
    beside: Arc<Beside>,
    number: u32,
}

impl Running {
    /// Starts the program. Blocks until that is done; while another run is [waited](Self::wait) for, until that one's end.
    pub fn start(&self, bytes: &[u8]) -> io::Result<()> {
        self.send(START, bytes)?;
        let mut told = lock(&self.beside.told);
        match self.receive_reply(&mut told, STARTED)? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// How it ended, once it did. Blocks.
    pub fn wait(&self) -> io::Result<ExitStatus> {
        self.receive_reply(&mut lock(&self.beside.told), ENDED).map(ExitStatus::from_raw)
    }

    /// Asks it, and all that it started in its group, to end.
    pub fn end(&self) {
        // Where nobody hears that, there is nobody to end it.
        let _ = self.send(END, &[]);
    }

    fn send(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        send(&mut lock(&self.beside.asked), &[&self.number.to_le_bytes(), &[kind], bytes])
    }

    /// The reply about this run; replies about earlier runs that nobody waited for are passed over.
    fn receive_reply(&self, told: &mut UnixStream, kind: u8) -> io::Result<i32> {
        loop {
            let frame = receive(told)?.ok_or(ErrorKind::UnexpectedEof)?;
            if let Ok([a, b, c, d, found, rest @ ..]) = <[u8; 9]>::try_from(frame)
                && (u32::from_le_bytes([a, b, c, d]), found) == (self.number, kind)
            {
                return Ok(i32::from_le_bytes(rest));
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A frame: its length, and its parts.
fn send(stream: &mut UnixStream, parts: &[&[u8]]) -> io::Result<()> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    stream.write_all(&(len as u64).to_le_bytes())?;
    parts.iter().try_for_each(|part| stream.write_all(part))
}

/// The next frame; `None` where there will be none.
fn receive(stream: &mut UnixStream) -> io::Result<Option<Vec<u8>>> {
    let mut len = [0; 8];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let len = u64::from_le_bytes(len);
    if len > REQUEST_BYTES_MAX {
        return Err(ErrorKind::InvalidData.into());
    }
    // What is not sent takes no memory.
    let mut frame = Vec::new();
    stream.take(len).read_to_end(&mut frame)?;
    Ok((frame.len() as u64 == len).then_some(frame))
}

/// Serves until the other end is gone.
fn serve(tasks: UnixStream, errands: UnixStream, duties: Duties) {
    // A Ctrl-C is meant for the process that shows what happens; it ends this one by ending. SAFETY: the call takes numbers alone.
    unsafe { libc::setpgid(0, 0) };
    let Duties { tasks: duty, errand, made } = duties;
    let runner = thread::spawn(move || errand.map(|errand| run_errands(errands, errand)));
    serve_tasks(tasks, duty);
    // Ends that were asked for go before the end.
    let _ = runner.join();
    for path in made.iter().rev() {
        // It stays where something is in it.
        let _ = match path.symlink_metadata() {
            Ok(found) if found.is_file() && found.len() == 0 => std::fs::remove_file(path),
            _ => std::fs::remove_dir(path),
        };
    }
}

fn serve_tasks(mut asked: UnixStream, mut tasks: Vec<Task>) {
    while let Ok(Some(request)) = receive(&mut asked) {
        let Some((number, bytes)) = request.split_first_chunk() else { break };
        let Some(task) = tasks.get_mut(u32::from_le_bytes(*number) as usize) else { break };
        let answer = task(bytes);
        if send(&mut asked, &[&answer]).is_err() {
            break;
        }
    }
}

/// The groups of programs that run, by the number of their run.
type Groups = Arc<Mutex<BTreeMap<u32, libc::pid_t>>>;

fn run_errands(mut asked: UnixStream, mut errand: Errand) {
    let groups = Groups::default();
    let Ok(told) = asked.try_clone().map(|told| Arc::new(Mutex::new(told))) else { return };
    while let Ok(Some(frame)) = receive(&mut asked) {
        let Some(([a, b, c, d, kind], bytes)) = frame.split_first_chunk() else { break };
        let number = u32::from_le_bytes([*a, *b, *c, *d]);
        match *kind {
            START => {
                let is_full = lock(&groups).len() >= RUNNING_MAX;
                let started = match is_full {
                    true => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                    false => errand(bytes).and_then(|mut command| spawn(&mut command)),
                };
                let errno = started.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
                tell(&told, number, STARTED, errno);
                if let Ok(child) = started {
                    lock(&groups).insert(number, child.id() as libc::pid_t);
                    let (told, groups) = (Arc::clone(&told), Arc::clone(&groups));
                    thread::spawn(move || await_end(number, child, &told, &groups));
                }
            }
            END => {
                if let Some(group) = lock(&groups).get(&number) {
                    // SAFETY: the call takes numbers alone. Its process was not waited for, so that the number is still its own.
                    unsafe { libc::kill(-group, libc::SIGTERM) };
                }
            }
            _ => break,
        }
    }
}

fn spawn(command: &mut Command) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    command.process_group(0).spawn()
}

/// Tells of a program's end. Its number becomes anybody's only after it was forgotten here.
fn await_end(number: u32, mut child: Child, told: &Mutex<UnixStream>, groups: &Mutex<BTreeMap<u32, libc::pid_t>>) {
    let mut found = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
    loop {
        // SAFETY: the call only fills the struct, and leaves the process to be waited for.
        let done = unsafe { libc::waitid(libc::P_PID, child.id(), found.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT) };
        if done == 0 || io::Error::last_os_error().kind() != ErrorKind::Interrupted {
            break;
        }
    }
    lock(groups).remove(&number);
    let status = child.wait().map_or(1 << 8, ExitStatusExt::into_raw);
    tell(told, number, ENDED, status);
}

fn tell(told: &Mutex<UnixStream>, number: u32, kind: u8, value: i32) {
    // Nobody may be there any more.
    let _ = send(&mut lock(told), &[&number.to_le_bytes(), &[kind], &value.to_le_bytes()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests have many threads, so this one asks of its own thread what else is asked of a process.
    fn serving(duties: Duties) -> (thread::JoinHandle<()>, UnixStream, UnixStream) {
        let (tasks, far_tasks) = UnixStream::pair().unwrap();
        let (errands, far_errands) = UnixStream::pair().unwrap();
        let serving = move || {
            let Duties { errand, tasks, .. } = duties;
            let runner = thread::spawn(move || run_errands(far_errands, errand.unwrap()));
            serve_tasks(far_tasks, tasks);
            runner.join().unwrap();
        };
        (thread::spawn(serving), tasks, errands)
    }

    fn duties() -> Duties {
        let twice: Task = Box::new(|bytes| [bytes, bytes].concat());
        let errand: Errand = Box::new(|bytes| match bytes {
            b"sleep" => {
                let mut command = Command::new("sleep");
                command.arg("1000");
                Ok(command)
            }
            b"true" => Ok(Command::new("true")),
            b"nowhere" => Ok(Command::new("/nowhere")),
            _ => Err(ErrorKind::InvalidInput.into()),
        });
        Duties { tasks: vec![twice], errand: Some(errand), made: Vec::new() }
    }

    fn reply(errands: &mut UnixStream) -> (u8, u8, i32) {
        let frame = receive(errands).unwrap().unwrap();
        (frame[0], frame[4], i32::from_le_bytes(frame[5..].try_into().unwrap()))
    }

    #[test]
    fn what_it_was_told_is_done_and_nothing_else() {
        let (serving, mut tasks, mut errands) = serving(duties());
        send(&mut tasks, &[&0u32.to_le_bytes(), b"ab"]).unwrap();
        assert_eq!(receive(&mut tasks).unwrap().unwrap(), b"abab");
        let mut ask = |number: u8, kind: u8, bytes: &[u8]| {
            send(&mut errands, &[&[number, 0, 0, 0, kind], bytes]).unwrap();
            reply(&mut errands)
        };
        assert_eq!(ask(1, START, b"rm -rf /"), (1, STARTED, libc::EIO));
        assert_eq!(ask(2, START, b"nowhere"), (2, STARTED, libc::ENOENT));
        assert_eq!(ask(3, START, b"sleep"), (3, STARTED, 0));
        assert_eq!(ask(3, END, b""), (3, ENDED, libc::SIGTERM));
        // What ended has no number that could be another's by now.
        send(&mut errands, &[&[3, 0, 0, 0, END]]).unwrap();
        send(&mut errands, &[&[4, 0, 0, 0, START], b"true"]).unwrap();
        assert_eq!([reply(&mut errands), reply(&mut errands)], [(4, STARTED, 0), (4, ENDED, 0)]);
        // An unknown task ends it, as do frames that are none.
        send(&mut tasks, &[&1u32.to_le_bytes(), b"ab"]).unwrap();
        assert_eq!(receive(&mut tasks).unwrap(), None);
        send(&mut errands, &[&[0; 3]]).unwrap();
        serving.join().unwrap();
    }

    #[test]
    fn programs_and_frames_are_bounded() {
        let (serving, tasks, mut errands) = serving(duties());
        for number in 0..=RUNNING_MAX as u8 {
            send(&mut errands, &[&[number, 0, 0, 0, START], b"sleep"]).unwrap();
            let errno = if usize::from(number) < RUNNING_MAX { 0 } else { libc::EAGAIN };
            assert_eq!(reply(&mut errands), (number, STARTED, errno));
        }
        for number in 0..RUNNING_MAX as u8 {
            send(&mut errands, &[&[number, 0, 0, 0, END]]).unwrap();
            assert_eq!(reply(&mut errands), (number, ENDED, libc::SIGTERM));
        }
        errands.write_all(&(REQUEST_BYTES_MAX + 1).to_le_bytes()).unwrap();
        drop(tasks);
        serving.join().unwrap();
    }
}
