//! What else moves bytes and files between two hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anabranch_testbed::net::Namespace;
use anabranch_testbed::peers::{checkout, installed};
use anabranch_testbed::process::{Line, Process, Usage};
use anabranch_testbed::wire::Wire;
use anabranch_testbed::{Error, Result};
use serde_json::Value;

use super::hosts::{self, FILES_A_FOLDER, Hosts, LIMIT, gibibytes, mebibytes, megabits};
use crate::report::Sample;
use crate::workspace::Workspace;

/// How long UDP alone is measured.
const UDP_TIME_S: f64 = 4.0;
/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// UDP in bursts, from process to process, with nothing done to the bytes.
pub(super) fn udp(workspace: &Workspace, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let floor = workspace.floor();
    let mut receiver = Process::spawn("UDP receiver", hosts.to.command(&floor).args(["udp-recv", "7000"]))?;
    receiver.wait_event("listening", START_LIMIT)?;
    let mut sender = hosts.from.command(&floor);
    sender.args(["udp-send", &format!("{}:7000", Hosts::TO), &mtu.to_string(), &UDP_TIME_S.to_string()]);
    let (lines, share) = Process::run("UDP sender", &mut sender, LIMIT)?;
    let fetch = receiver.stop()?;
    let event = lines.iter().map(Line::json).find(|event| event["event"] == "finished").unwrap_or_default();
    let (bytes, seconds) = (event["arrived"].as_u64().unwrap_or(0), event["seconds"].as_f64().unwrap_or(f64::NAN));
    let cpu = (fetch.cpu() + share.cpu()).as_secs_f64();
    Ok(Sample { figure: megabits(bytes, seconds), extra: Some(cpu / gibibytes(bytes)), ..Sample::default() })
}

/// The work that any verified and encrypted transfer has, and nothing else: the file read, hashed and sealed, sent by UDP, opened, hashed and written.
pub(super) fn udp_file(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let out = workspace.out()?.join("content.bin");
    let floor = workspace.floor();
    let mut command = hosts.to.command(&floor);
    command.arg("udp-recv-file").arg(&out).args([&workspace.len.to_string(), "7000"]);
    let mut receiver = Process::spawn("UDP receiver of a file", &mut command)?;
    receiver.wait_event("listening", START_LIMIT)?;
    let mut sender = hosts.from.command(&floor);
    sender.arg("udp-send-file").arg(&workspace.content).args([&format!("{}:7000", Hosts::TO), &mtu.to_string()]);
    let (_, share) = Process::run("UDP sender of a file", &mut sender, LIMIT)?;
    let fetch = receiver.wait_success(LIMIT)?;
    workspace.check(&out)?;
    let sample = moved(workspace, &fetch, share.cpu());
    Ok(Sample { figure: megabits(workspace.len, share.wall.as_secs_f64()), ..sample })
}

/// What `iperf3 -s` and a client were told and said.
pub(super) struct Iperf {
    server: Process,
    client: Process,
}

impl Iperf {
    /// One flow of TCP with this congestion control.
    pub(super) fn start([from, to]: [&Namespace; 2], address: &str, congestion: &str, how: &[&str]) -> Result<Self> {
        let program = installed("iperf3")?;
        let server = Process::spawn("iperf3 -s", to.command(&program).args(["-s", "-1"]))?;
        // What it prints is held back while it is no terminal.
        std::thread::sleep(Duration::from_millis(500));
        let mut client = from.command(&program);
        client.args(["-c", address, "-C", congestion, "-J"]).args(how);
        Ok(Self { server, client: Process::spawn("iperf3 -c", &mut client)? })
    }

    /// Bits a second that arrived, and the sample's other fields, for `len` bytes where it is known how many there are.
    pub(super) fn finish(mut self, len: Option<u64>) -> Result<Sample> {
        let share = self.client.wait_success(LIMIT)?;
        let fetch = self.server.wait_success(LIMIT)?;
        let text: String = self.client.rest().into_iter().map(|line| line.text).collect();
        let report: Value = serde_json::from_str(&text).unwrap_or_default();
        let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
        let bits = bits.ok_or_else(|| Error::Nonsense { name: "iperf3".into(), what: text })?;
        let cpu = [fetch, share].map(|usage| usage.cpu().as_secs_f64());
        Ok(Sample {
            figure: bits / 1e6,
            cpu_fetch: Some(cpu[0]),
            cpu_share: Some(cpu[1]),
            extra: len.map(|len| (cpu[0] + cpu[1]) / gibibytes(len)),
            ..Sample::default()
        })
    }
}

/// Bytes of no file, unencrypted, over TCP.
pub(super) fn iperf3(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let len = workspace.len;
    let ends = [&hosts.from, &hosts.to];
    Iperf::start(ends, Hosts::TO, "cubic", &["-n", &len.to_string()])?.finish(Some(len))
}

/// A program that may be where only root looks for programs.
fn installed_server(name: &str) -> Result<PathBuf> {
    installed(name).or_else(|missing| {
        let usual = Path::new("/usr/sbin").join(name);
        if usual.is_file() { Ok(usual) } else { Err(missing) }
    })
}

/// An sshd in a namespace, and what its clients need.
struct Ssh {
    server: Process,
    /// `ssh` and its options, for programs that start it.
    client: Vec<String>,
}

impl Ssh {
    fn start(workspace: &Workspace, host: &Namespace) -> Result<Self> {
        let sshd = installed_server("sshd")?;
        let keys = workspace.keep("ssh")?;
        for name in ["host", "user"] {
            if !keys.join(name).exists() {
                let mut command = Command::new(installed("ssh-keygen")?);
                Process::run(
                    "ssh-keygen",
                    command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(keys.join(name)),
                    LIMIT,
                )?;
            }
        }
        // Where sshd leaves its privileges; a service's start makes it elsewhere.
        fs::create_dir_all("/run/sshd").map_err(Error::file("/run/sshd"))?;
        let mut command = host.command(sshd);
        command.args(["-D", "-e", "-f", "/dev/null", "-p", "22", "-h"]).arg(keys.join("host"));
        let authorized = format!("AuthorizedKeysFile={}", keys.join("user.pub").display());
        for option in [
            authorized.as_str(),
            "StrictModes=no",
            "UsePAM=no",
            "PermitRootLogin=yes",
            "PidFile=none",
            "Subsystem=sftp internal-sftp",
        ] {
            command.args(["-o", option]);
        }
        let server = Process::spawn("sshd", &mut command)?;
        std::thread::sleep(Duration::from_millis(500));
        let key = keys.join("user").display().to_string();
        let options =
            ["-F", "none", "-i", &key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"];
        Ok(Self { server, client: options.map(str::to_owned).to_vec() })
    }
}

/// Which program copies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Copier {
    Rsync,
    Scp,
    /// `tar` to `tar`, over a bare connection.
    Tar,
}

fn copy(ssh: &mut Ssh, copier: Copier, host: &Namespace, address: &str, from: &Path, to: &Path) -> Result<Sample> {
    let remote = format!("root@{address}:{}", from.display());
    let mut command = match copier {
        Copier::Rsync => {
            let mut command = host.command(installed("rsync")?);
            command.args(["-a", "-e", &format!("ssh {}", ssh.client.join(" "))]);
            command
        }
        _ => {
            let mut command = host.command(installed("scp")?);
            command.arg("-rpq").args(&ssh.client);
            command
        }
    };
    let (_, fetch) = Process::run("the copy", command.arg(remote).arg(to), LIMIT)?;
    // Waits for what serves the connection, and so has its CPU time.
    std::thread::sleep(Duration::from_millis(200));
    let share = ssh.server.stop()?;
    Ok(Sample {
        figure: fetch.wall.as_secs_f64(),
        cpu_fetch: Some(fetch.cpu().as_secs_f64()),
        cpu_share: Some(share.cpu().as_secs_f64()),
        rss_mib: Some(mebibytes(fetch.rss_bytes_max)),
        ..Sample::default()
    })
}

fn copy_file(workspace: &mut Workspace, copier: Copier, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let mut ssh = Ssh::start(workspace, &hosts.from)?;
    let out = workspace.out()?;
    let sample = copy(&mut ssh, copier, &hosts.to, Hosts::FROM, &workspace.content, &out)?;
    workspace.check(&out.join("content.bin"))?;
    let cpu = sample.cpu_fetch.unwrap_or(f64::NAN) + sample.cpu_share.unwrap_or(f64::NAN);
    let figure = megabits(workspace.len, sample.figure);
    Ok(Sample { figure, extra: Some(cpu / gibibytes(workspace.len)), ..sample })
}

/// `rsync` over `ssh`, of one file.
pub(super) fn rsync(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    copy_file(workspace, Copier::Rsync, mtu)
}

/// `scp` of one file.
pub(super) fn scp(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    copy_file(workspace, Copier::Scp, mtu)
}

/// A file by GridFTP over four connections, in the clear: what the paper compares itself with.
pub(super) fn gridftp(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let mut server = hosts.from.command(installed_server("globus-gridftp-server")?);
    // Told an interface, it asks for that one's name, and does not start where nobody knows it.
    server.args(["-aa", "-anonymous-user", "root", "-allow-root", "-disable-usage-stats", "-p", "2811"]);
    let out = workspace.out()?.join("content.bin");
    let mut client = hosts.to.command(installed("globus-url-copy")?);
    client.args(["-fast", "-p", "4", &format!("ftp://{}:2811{}", Hosts::FROM, workspace.content.display())]);
    client.arg(format!("file://{}", out.display()));
    serve_and_fetch(workspace, ("globus-gridftp-server", &mut server), ("globus-url-copy", &mut client), &out)
}

/// A file by croc, encrypted, from the relay that it has in the sending process.
pub(super) fn croc(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let program = checkout().join(".deps/croc/croc");
    if !program.is_file() {
        let remedy = "`crates/testbed/peers/install.sh bench` builds it where Go is installed".into();
        return Err(Error::Missing { what: "croc".into(), remedy });
    }
    let hosts = Hosts::new(mtu)?;
    // What it keeps is no concern of the next run's.
    let (home, out) = (workspace.out()?, workspace.out()?);
    let code = "4321-bench-code-phrase";
    let mut server = hosts.from.command(&program);
    server.args(["--local", "send", "--code", code]).arg(&workspace.content);
    let mut client = hosts.to.command(&program);
    client.args(["--yes", "--local", "--ip", &format!("{}:9009", Hosts::FROM), "--out"]).arg(&out);
    for command in [&mut server, &mut client] {
        command.env("HOME", &home).env("CROC_SECRET", code);
    }
    let file = out.join("content.bin");
    serve_and_fetch(workspace, ("croc send", &mut server), ("croc", &mut client), &file)
}

/// A file by sendme (iroh's blobs over QUIC), encrypted and verified, without a relay.
pub(super) fn sendme(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let program = checkout().join(".deps/sendme/bin/sendme");
    if !program.is_file() {
        return Err(Error::Missing { what: "sendme".into(), remedy: "`make sendme` builds it".into() });
    }
    let hosts = Hosts::new(mtu)?;
    let (store, out) = (workspace.out()?, workspace.out()?);
    let mut command = hosts.from.command(&program);
    command.args(["send", "--relay", "disabled", "--no-progress", "--magic-ipv4-addr"]);
    command.arg(format!("{}:7000", Hosts::FROM)).arg(&workspace.content).current_dir(&store);
    let mut server = Process::spawn("sendme send", &mut command)?;
    // It hashes before it says so.
    let told = server.wait_line("a ticket", LIMIT, |line| line.text.starts_with("sendme receive "))?;
    let ticket = told.text.trim_start_matches("sendme receive ").trim().to_owned();
    let before = server.cpu_so_far().unwrap_or_default();
    let mut client = hosts.to.command(&program);
    client.args(["receive", "--relay", "disabled", "--no-progress", &ticket]).current_dir(&out);
    let (_, fetch) = Process::run("sendme receive", &mut client, LIMIT)?;
    let share = server.stop()?.cpu().saturating_sub(before);
    workspace.check(&out.join("content.bin"))?;
    Ok(moved(workspace, &fetch, share))
}

/// A file over HTTPS: `openssl s_server` to `curl`.
pub(super) fn tls(workspace: &mut Workspace, mtu: u16) -> Result<Sample> {
    let hosts = Hosts::new(mtu)?;
    let keys = workspace.keep("tls")?;
    let openssl = installed("openssl")?;
    let (key, certificate) = (keys.join("key.pem"), keys.join("certificate.pem"));
    if !key.exists() {
        let mut command = Command::new(&openssl);
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]);
        command.args(["-subj", "/CN=bench", "-keyout"]).arg(&key).arg("-out").arg(&certificate);
        Process::run("openssl req", &mut command, LIMIT)?;
    }
    let mut server = hosts.from.command(&openssl);
    server.args(["s_server", "-accept", "4433", "-WWW", "-quiet", "-key"]).arg(&key).arg("-cert").arg(&certificate);
    server.current_dir(&workspace.data);
    let out = workspace.out()?.join("content.bin");
    let mut client = hosts.to.command(installed("curl")?);
    client.args(["-sk", &format!("https://{}:4433/content.bin", Hosts::FROM), "-o"]).arg(&out);
    serve_and_fetch(workspace, ("openssl s_server", &mut server), ("curl", &mut client), &out)
}

/// What a client takes that fetches the content from a server to `out`, both by name; and both ends' CPU time.
fn serve_and_fetch(
    workspace: &Workspace,
    (server_name, server): (&str, &mut Command),
    (client_name, client): (&str, &mut Command),
    out: &Path,
) -> Result<Sample> {
    let mut server = Process::spawn(server_name, server)?;
    std::thread::sleep(Duration::from_millis(500));
    let (_, fetch) = Process::run(client_name, client, LIMIT)?;
    // Waits for what serves the connection, and so has its CPU time.
    std::thread::sleep(Duration::from_millis(200));
    let share = server.stop()?;
    workspace.check(out)?;
    Ok(moved(workspace, &fetch, share.cpu()))
}

/// The content moved in the time that who fetched it took.
fn moved(workspace: &Workspace, fetch: &Usage, cpu_share: Duration) -> Sample {
    let cpu = [fetch.cpu(), cpu_share].map(|cpu| cpu.as_secs_f64());
    Sample {
        figure: megabits(workspace.len, fetch.wall.as_secs_f64()),
        cpu_fetch: Some(cpu[0]),
        cpu_share: Some(cpu[1]),
        rss_mib: Some(mebibytes(fetch.rss_bytes_max)),
        extra: Some((cpu[0] + cpu[1]) / gibibytes(workspace.len)),
        ..Sample::default()
    }
}

/// Very many small files. `scp` takes several round trips for each: it copies one folder of them, and its time counts as often as
/// there are folders.
pub(super) fn small(workspace: &mut Workspace, copier: Copier) -> Result<Sample> {
    let (folder, count) = hosts::small_files(workspace)?;
    let wire = hosts::small_wire()?;
    let out = workspace.out()?;
    if copier == Copier::Tar {
        return tar(&wire, &folder, &out);
    }
    let mut ssh = Ssh::start(workspace, &wire.left)?;
    let from = if copier == Copier::Scp { folder.join("0") } else { folder.clone() };
    let sample = copy(&mut ssh, copier, &wire.right, Wire::LEFT, &from, &out)?;
    if copier == Copier::Rsync {
        hosts::check_small(&folder, &out.join("many"))?;
        return Ok(sample);
    }
    hosts::check_small(&from, &out.join("0"))?;
    let times = (count / FILES_A_FOLDER) as f64;
    let scale = |cpu: Option<f64>| cpu.map(|cpu| cpu * times);
    let (cpu_fetch, cpu_share) = (scale(sample.cpu_fetch), scale(sample.cpu_share));
    Ok(Sample { figure: sample.figure * times, cpu_fetch, cpu_share, ..sample })
}

/// One stream of all files, not encrypted: what a copy without a question takes.
fn tar(wire: &Wire, folder: &Path, out: &Path) -> Result<Sample> {
    let above = folder.parent().unwrap_or(folder);
    let python = installed("python3")?;
    let serve = "import socket,subprocess,sys\nl=socket.create_server(('', 7000))\nprint('ready',flush=True)\nc=l.accept()[0]\n\
         sys.exit(subprocess.call(['tar','cf','-','-C',sys.argv[1],'many'],stdout=c.fileno()))";
    let fetch = "import socket,subprocess,sys\nc=socket.create_connection((sys.argv[1],7000))\n\
         sys.exit(subprocess.call(['tar','xf','-','-C',sys.argv[2]],stdin=c.fileno()))";
    let mut server = wire.left.command(&python);
    let mut server = Process::spawn("tar", server.args(["-c", serve]).arg(above))?;
    server.wait_line("ready", START_LIMIT, |line| line.text == "ready")?;
    let mut client = wire.right.command(&python);
    client.args(["-c", fetch, Wire::LEFT]).arg(out);
    let (_, fetch) = Process::run("tar", &mut client, LIMIT)?;
    let share = server.wait_success(LIMIT)?;
    hosts::check_small(folder, &out.join("many"))?;
    let (cpu_fetch, cpu_share) = (Some(fetch.cpu().as_secs_f64()), Some(share.cpu().as_secs_f64()));
    Ok(Sample { figure: fetch.wall.as_secs_f64(), cpu_fetch, cpu_share, ..Sample::default() })
}
