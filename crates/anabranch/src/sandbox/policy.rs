//! Which files each command needs. docs/security.md has the same as a table.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::{PRIVATE, Plan, SHARED};
use crate::bulk::receipts;
use crate::bulk::target::Allowed;
use crate::cli::{
    BulkFlags, DaemonFlags, FindFlags, GetFlags, IoChoice, LiveFlags, PathFlags, PlayFlags, ReceiveFlags, SendFlags,
    SessionFlags, ShareFlags, ShowFlags, TrackerFlags,
};
use crate::commands::create::save;
use crate::settings;
use crate::source;

/// What every program reads: libraries of the resolver, certificates, time zones, what the system says of itself.
const SYSTEM: [&str; 14] = [
    "/usr",
    "/lib",
    "/lib64",
    "/opt/etc/ssl",
    "/nix/store",
    "/gnu/store",
    "/proc/self",
    "/proc/sys",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/dev/urandom",
    "/dev/random",
    "/dev/null",
    "/dev/zero",
];
/// What the administrator may read in `/etc`. Other users may read all of it that is for everybody: a file there that is replaced, as
/// `resolv.conf` is where a machine changes networks, stays within reach so.
const ETC: [&str; 21] = [
    "anabranch",
    "ca-certificates",
    "gai.conf",
    "host.conf",
    "hosts",
    "ld.so.cache",
    "localtime",
    "networks",
    "nsswitch.conf",
    "openssl",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "scion",
    "services",
    "ssl/ca-bundle.pem",
    "ssl/cert.pem",
    "ssl/certs",
    "static",
];
const RESOLV_CONF: &str = "/etc/resolv.conf";

pub(super) fn system() -> Vec<PathBuf> {
    let etc = Path::new("/etc");
    let mut paths: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    if crate::system::is_administrator() {
        paths.extend(ETC.iter().map(|name| etc.join(name)));
    } else {
        paths.push(etc.to_owned());
    }
    // Where it is kept by a service, it is replaced there.
    let real = Path::new(RESOLV_CONF).canonicalize().ok().filter(|real| !real.starts_with(etc));
    paths.extend(real.as_deref().and_then(Path::parent).filter(|folder| folder.parent().is_some()).map(PathBuf::from));
    let named = |variable: &str, between: char| {
        let value = std::env::var(variable).unwrap_or_default();
        value.split(between).filter(|path| !path.is_empty()).map(PathBuf::from).collect::<Vec<_>>()
    };
    // Names in what a panic prints.
    paths.extend(std::env::current_exe());
    // Certificates, as OpenSSL's variables name them; hosts of SCION.
    paths.extend(
        [("SSL_CERT_FILE", '\0'), ("SSL_CERT_DIR", ':'), ("SCION_HOSTS_FILES", ';')]
            .map(|(name, between)| named(name, between))
            .concat(),
    );
    paths
}

/// The folder that a file is in.
fn above(file: &Path) -> PathBuf {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

impl Plan {
    fn read(&mut self, paths: impl IntoIterator<Item = impl Into<PathBuf>>) {
        self.bounds.read.extend(paths.into_iter().map(Into::into));
    }

    fn folder(&mut self, folder: Option<PathBuf>, mode: u32) {
        self.folders.extend(folder.map(|folder| (folder, mode)));
    }

    /// Keys that are admitted.
    fn allow(&mut self, allowed: &[Allowed]) {
        let file = |allowed: &Allowed| match allowed {
            Allowed::File(path) => Some(path.clone()),
            Allowed::Key(_) => None,
        };
        self.read(allowed.iter().filter_map(file));
    }

    /// What all that move contents keep: keys that were met, their own ones, nodes of the DHT.
    fn state(&mut self, known_keys: Option<&PathBuf>, key: Option<&PathBuf>, path_log: Option<&PathBuf>) {
        self.folder(settings::state_folder(), PRIVATE);
        // It is replaced by another that is made beside it.
        self.bounds.write.extend(known_keys.map(|file| above(file)));
        self.keys.extend(key.cloned());
        self.files.extend(path_log.cloned());
    }

    fn paths(&mut self, flags: &PathFlags) {
        self.read(flags.policy.clone());
    }

    fn session(flags: &SessionFlags) -> Self {
        let mut plan = Self::new(flags.sandbox.wish);
        let guard = &flags.guard;
        plan.state(guard.known_keys.as_ref(), flags.scion.key.as_ref(), flags.multipath.path_log.as_ref());
        plan.folder(settings::cache_folder(), PRIVATE);
        plan.files.extend(guard.bans.clone());
        plan.read(guard.ip_filter.iter());
        plan.allow(&guard.allow);
        plan.paths(&flags.scion.paths);
        plan
    }

    fn find(&mut self, flags: &FindFlags) {
        self.folder(flags.state_dir.clone(), SHARED);
        self.saved.extend(flags.save_torrent.clone().map(|path| (path, save as super::Save)));
    }

    /// What users name contents by, where it is a file.
    fn source(&mut self, text: &OsStr) {
        let is_link = text.to_str().is_some_and(|text| text.contains(':')) && !Path::new(text).exists();
        if !is_link {
            self.read([text]);
        }
    }

    /// `show`
    pub(crate) fn show(flags: &ShowFlags) -> Self {
        let mut plan = Self::session(&flags.session);
        plan.source(&flags.source);
        plan.find(&flags.find);
        plan
    }

    /// `get`
    pub(crate) fn get(flags: &GetFlags) -> Self {
        let mut plan = Self::session(&flags.session);
        flags.sources.iter().for_each(|text| plan.source(text));
        plan.find(&flags.find);
        let is_live = |text: &OsString| source::link(text).ok().flatten().is_some_and(|link| source::is_live(&link));
        let is_folder = flags.dir.is_dir() || flags.dir.as_os_str().as_encoded_bytes().ends_with(b"/");
        if flags.list || flags.dir == Path::new("-") {
            // Nothing is written.
        } else if flags.sources.iter().any(is_live) && !is_folder {
            // A file to record to.
            plan.folder(Some(above(&flags.dir)), SHARED);
        } else {
            plan.folder(Some(flags.dir.clone()), SHARED);
        }
        plan
    }

    /// `play`, into this folder, which may be there for this run alone.
    pub(crate) fn play(flags: &PlayFlags, written: Option<(&Path, bool)>) -> Self {
        let mut plan = Self::session(&flags.session);
        plan.source(&flags.source);
        plan.find(&flags.find);
        match written {
            Some((folder, true)) => plan.made(folder),
            Some((folder, false)) => plan.folder(Some(folder.to_owned()), SHARED),
            // A live stream goes to players alone.
            None => {}
        }
        plan
    }

    /// `share`
    pub(crate) fn share(flags: &ShareFlags) -> Self {
        let mut plan = Self::session(&flags.session);
        plan.read(&flags.paths);
        if flags.paths.iter().any(|path| path.extension().is_some_and(|end| end.eq_ignore_ascii_case("torrent"))) {
            // Which of these has the content is known when the torrent was read.
            match &flags.data {
                Some(data) => plan.read([data]),
                None => plan.read(flags.paths.iter().map(|path| above(path)).chain([PathBuf::from(".")])),
            }
        }
        plan.saved.extend(flags.torrent_out.clone().map(|path| (path, save as super::Save)));
        plan
    }

    /// `live`, whose input and key are open already.
    pub(crate) fn live(flags: &LiveFlags) -> Self {
        Self::session(&flags.session)
    }

    fn bulk(flags: &BulkFlags) -> Self {
        let mut plan = Self::new(flags.sandbox.wish);
        plan.state(flags.known_keys.as_ref(), flags.key.as_ref(), flags.paths.path_log.as_ref());
        plan.paths(&flags.paths.scion);
        plan.bounds.calls.kernel_bypass = flags.paths.io != IoChoice::Udp;
        plan
    }

    /// `send`
    pub(crate) fn send(flags: &SendFlags) -> Self {
        let mut plan = Self::bulk(&flags.bulk);
        plan.read(flags.paths.iter().filter(|path| *path != Path::new("-")));
        plan.saved.extend(flags.receipt.clone().map(|path| (path, receipts::write as super::Save)));
        plan
    }

    /// `receive`
    pub(crate) fn receive(flags: &ReceiveFlags) -> Self {
        let mut plan = Self::bulk(&flags.bulk);
        plan.allow(&flags.allow);
        plan.folder(Some(flags.dir.clone()).filter(|dir| dir != Path::new("-")), SHARED);
        plan
    }

    /// `tracker`, which keeps nothing.
    pub(crate) fn tracker(flags: &TrackerFlags) -> Self {
        let mut plan = Self::new(flags.sandbox.wish);
        flags.allow_content.iter().for_each(|text| plan.source(text));
        plan
    }

    /// `daemon`
    pub(crate) fn daemon(flags: &DaemonFlags, config: Option<&Path>, state_dir: &Path, socket: &Path) -> Self {
        let mut plan = Self::session(&flags.session);
        plan.folder(Some(flags.dir.clone()), SHARED);
        plan.bounds.write.extend(flags.allow_dir.iter().cloned());
        plan.folder(Some(state_dir.to_owned()), PRIVATE);
        plan.folder(Some(above(socket)), PRIVATE);
        // These are read again, when others may be in their places.
        for file in flags.tls_cert.iter().chain(&flags.tls_key).map(PathBuf::as_path).chain(config) {
            plan.read([above(file)]);
            plan.read(file.canonicalize().map(|real| above(&real)).ok());
        }
        plan.bounds.calls.unix_sockets = true;
        plan
    }
}
