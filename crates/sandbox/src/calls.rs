//! Which system calls there are: a seccomp filter.
//!
//! It names what a program that moves files has no use for, and lets everything else pass, so that no C library and no kernel brings
//! it to a fall by asking for something that nobody thought of. What is refused is answered with an error, as if the user might not do
//! that; calls that are newer than this list, those of other architectures and x32's are answered as by a kernel without them, which
//! C libraries are made for.
//!
//! It is in here, and not a list of what may be called, that Landlock's gaps are filled: modes, owners and attributes of files that are
//! named by their paths, and sockets of other programs, which would do what is asked of them outside.

#![allow(unsafe_code)]

use std::io;
use std::mem::offset_of;

use libc::{c_long, seccomp_data, sock_filter, sock_fprog};

use crate::SandboxError;

/// Calls that few processes need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Sockets of the Unix domain, and to give them their mode.
    pub unix_sockets: bool,
    /// What AF_XDP takes: programs in the kernel, and frames.
    pub kernel_bypass: bool,
}

/// The architecture whose calls are known (`linux/audit.h`); `None`: those of this one are not.
const ARCHITECTURE: Option<u32> = if cfg!(all(target_arch = "x86_64", target_pointer_width = "64")) {
    Some(0xc000_003e)
} else if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
    Some(0xc000_00b7)
} else if cfg!(target_arch = "riscv64") {
    Some(0xc000_00f3)
} else {
    None
};

/// The newest call that was looked at, `listns` of Linux 6.19; from 424 on all architectures number them alike. x32's, which begin
/// at 512, are above.
const NEWEST: c_long = 470;

/// Refused to everybody.
const REFUSED: &[c_long] = &[
    // Other programs: started, looked into, steered.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // Parts of the kernel that faults were found in, and that take nobody's file further.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_personality,
    // The system itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    KEXEC_FILE_LOAD,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    QUOTACTL_FD,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_vhangup,
    // Another view of files and networks.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    // What Landlock leaves open of files that are named by their paths, and what nobody here does by descriptor.
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

/// Those that x86 alone has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[c_long] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: &[c_long] = &[];

/// Modes of files that are named by their paths.
const MODES: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
];

// Numbers that the libc crate does not have for all architectures.
#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: c_long = 294;
const QUOTACTL_FD: c_long = 443;
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const OPEN_TREE_ATTR: c_long = 467;
const FILE_SETATTR: c_long = 469;

/// Families of sockets that are for everybody.
const FAMILIES: [libc::c_int; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Whoever asks for one of these makes no thread but something with a view of its own.
const NAMESPACES: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Whether the filter holds.
pub(crate) fn close(calls: Calls) -> Result<bool, SandboxError> {
    let Some(architecture) = ARCHITECTURE else { return Ok(false) };
    let mut program = program(architecture, calls);
    let program = sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    let failed = || SandboxError::Failed(io::Error::last_os_error().to_string());
    // SAFETY: the call takes numbers alone.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(failed());
    }
    // SAFETY: the program outlives the calls, which copy it.
    let set = |flags: libc::c_ulong| unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    // Older kernels slow down whoever has a filter, as a measure for those who run others' code in their process.
    if set(libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) == 0 || set(0) == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error().raw_os_error() {
        // There are none, or whoever started us does not let us have one.
        Some(libc::ENOSYS | libc::EINVAL | libc::EPERM | libc::EACCES) => Ok(false),
        _ => Err(failed()),
    }
}

/// Where a comparison leads.
#[derive(Clone, Copy)]
enum To {
    Next,
    Allow,
    Refuse,
    Unknown,
    Threads,
    Sockets,
}

/// Instructions whose jumps have no distance yet.
#[derive(Default)]
struct Assembly {
    code: Vec<(u32, u32, To, To)>,
    /// Where the parts begin.
    parts: Vec<(To, usize)>,
}

impl Assembly {
    fn load(&mut self, offset: usize) {
        self.code.push((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32, To::Next, To::Next));
    }

    fn answer(&mut self, answer: u32) {
        self.code.push((libc::BPF_RET | libc::BPF_K, answer, To::Next, To::Next));
    }

    fn compare(&mut self, how: u32, with: u32, then: To, otherwise: To) {
        self.code.push((libc::BPF_JMP | how | libc::BPF_K, with, then, otherwise));
    }

    fn part(&mut self, name: To) {
        self.parts.push((name, self.code.len()));
    }

    fn finish(self) -> Vec<sock_filter> {
        let distance = |from: usize, to: To| {
            let part = self.parts.iter().find(|(name, _)| *name as u8 == to as u8).map_or(from + 1, |(_, at)| *at);
            u8::try_from(part - from - 1).expect("the program is shorter than a jump is wide")
        };
        let instruction = |(at, (code, k, then, otherwise)): (usize, &(u32, u32, To, To))| sock_filter {
            code: *code as u16,
            jt: distance(at, *then),
            jf: distance(at, *otherwise),
            k: *k,
        };
        self.code.iter().enumerate().map(instruction).collect()
    }
}

fn program(architecture: u32, calls: Calls) -> Vec<sock_filter> {
    let error = |code: libc::c_int| libc::SECCOMP_RET_ERRNO | code as u32;
    // The lower half of the first argument: all architectures above are little-endian.
    let argument = offset_of!(seccomp_data, args);
    let mut code = Assembly::default();
    code.load(offset_of!(seccomp_data, arch));
    code.compare(libc::BPF_JEQ, architecture, To::Next, To::Unknown);
    code.load(offset_of!(seccomp_data, nr));
    code.compare(libc::BPF_JGT, NEWEST as u32, To::Unknown, To::Next);
    // Its flags are where no filter sees them; libraries fall back to the older one.
    code.compare(libc::BPF_JEQ, libc::SYS_clone3 as u32, To::Unknown, To::Next);
    code.compare(libc::BPF_JEQ, libc::SYS_clone as u32, To::Threads, To::Next);
    code.compare(libc::BPF_JEQ, libc::SYS_socket as u32, To::Sockets, To::Next);
    let bypass = [libc::SYS_bpf].into_iter().filter(|_| !calls.kernel_bypass);
    let modes = MODES.iter().copied().filter(|_| !calls.unix_sockets);
    for call in REFUSED.iter().chain(REFUSED_HERE).copied().chain(bypass).chain(modes) {
        code.compare(libc::BPF_JEQ, call as u32, To::Refuse, To::Next);
    }
    code.answer(libc::SECCOMP_RET_ALLOW);
    code.part(To::Threads);
    code.load(argument);
    code.compare(libc::BPF_JSET, libc::CLONE_THREAD as u32, To::Next, To::Refuse);
    code.compare(libc::BPF_JSET, NAMESPACES as u32, To::Refuse, To::Allow);
    code.part(To::Sockets);
    code.load(argument);
    // musl asks for the numbers of interfaces by one; glibc takes another where there is none.
    let unix = [libc::AF_UNIX].into_iter().filter(|_| calls.unix_sockets || cfg!(target_env = "musl"));
    let bypass = [libc::AF_XDP, libc::AF_PACKET].into_iter().filter(|_| calls.kernel_bypass);
    for family in FAMILIES.into_iter().chain(unix).chain(bypass) {
        code.compare(libc::BPF_JEQ, family as u32, To::Allow, To::Next);
    }
    code.answer(error(libc::EAFNOSUPPORT));
    code.part(To::Allow);
    code.answer(libc::SECCOMP_RET_ALLOW);
    code.part(To::Refuse);
    code.answer(error(libc::EPERM));
    code.part(To::Unknown);
    code.answer(error(libc::ENOSYS));
    code.finish()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, UdpSocket};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::Command;

    use super::*;

    /// What holds for a thread ends with it.
    fn with(calls: Calls, work: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(move || {
            if close(calls).unwrap() {
                work();
            } else {
                println!("this kernel has no seccomp filters");
            }
        });
        thread.join().unwrap();
    }

    fn errno(call: c_long, arguments: [c_long; 3]) -> Option<i32> {
        let [a, b, c] = arguments;
        // SAFETY: every call that is made so is refused, or fails by its arguments, before it touches memory.
        let done = unsafe { libc::syscall(call, a, b, c) };
        (done < 0).then(|| io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    #[test]
    fn what_files_and_sockets_need_passes() {
        with(Calls::default(), || {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
            file.as_file().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
            TcpListener::bind("127.0.0.1:0").unwrap();
            UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).unwrap();
            UnixStream::pair().unwrap();
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
        });
    }

    #[test]
    fn what_is_not_for_it_is_answered_with_an_error() {
        with(Calls::default(), || {
            let refused = Command::new("true").status().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            assert_eq!(UnixDatagram::unbound().unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
            let file = tempfile::NamedTempFile::new().unwrap();
            let moded = fs::set_permissions(file.path(), fs::Permissions::from_mode(0o777));
            assert_eq!(moded.unwrap_err().raw_os_error(), Some(libc::EPERM));
            for call in REFUSED.iter().chain(REFUSED_HERE).chain(MODES).chain(&[libc::SYS_bpf]) {
                assert_eq!(errno(*call, [-1, 0, 0]), Some(libc::EPERM), "{call}");
            }
            for flags in [libc::SIGCHLD, libc::CLONE_NEWUSER, libc::CLONE_THREAD | libc::CLONE_NEWNET] {
                assert_eq!(errno(libc::SYS_clone, [flags.into(), 0, 0]), Some(libc::EPERM), "{flags:x}");
            }
            for call in [libc::SYS_clone3, NEWEST + 1, 520, 0x4000_0000, 0x4000_0000 + libc::SYS_getpid] {
                assert_eq!(errno(call, [0, 0, 0]), Some(libc::ENOSYS), "{call}");
            }
            for family in [libc::AF_PACKET, libc::AF_XDP, libc::AF_ALG, libc::AF_VSOCK, 1 << 16 | libc::AF_UNIX] {
                let socket = errno(libc::SYS_socket, [family.into(), libc::SOCK_RAW.into(), 0]);
                assert_eq!(socket, Some(libc::EAFNOSUPPORT), "{family}");
            }
            // The upper half of an argument that is an int is nothing to the kernel.
            let hidden = errno(libc::SYS_socket, [1 << 32 | c_long::from(libc::AF_UNIX), libc::SOCK_STREAM.into(), 0]);
            assert_eq!(hidden, Some(libc::EAFNOSUPPORT));
        });
    }

    #[test]
    fn who_needs_more_has_that_alone() {
        with(Calls { unix_sockets: true, kernel_bypass: false }, || {
            UnixDatagram::unbound().unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(errno(libc::SYS_bpf, [-1, 0, 0]), Some(libc::EPERM));
        });
        with(Calls { unix_sockets: false, kernel_bypass: true }, || {
            assert_ne!(errno(libc::SYS_bpf, [-1, 0, 0]), Some(libc::EPERM));
            UnixDatagram::unbound().unwrap_err();
        });
    }

    #[test]
    fn the_program_is_one_for_every_set_of_calls() {
        for (unix_sockets, kernel_bypass) in [(false, false), (false, true), (true, false), (true, true)] {
            let program = program(1, Calls { unix_sockets, kernel_bypass });
            let longest = program.iter().map(|code| code.jt.max(code.jf)).max().unwrap();
            assert!(program.len() < 200 && longest < 200, "{} {longest}", program.len());
        }
    }
}
