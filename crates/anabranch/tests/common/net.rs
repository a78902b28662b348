//! Networks that `net up` runs, and commands on their hosts.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;

use super::{Running, anabranch, finish, run};

/// An example of a topology, with addresses that no other test uses.
pub(crate) fn example(dir: &Path, name: &str) -> String {
    static NETWORKS: AtomicU8 = AtomicU8::new(0);
    let (first, second) = (64 + std::process::id() % 64, 16 * NETWORKS.fetch_add(1, Ordering::Relaxed));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../topologies").join(name);
    let text = fs::read_to_string(source).unwrap();
    fs::write(dir.join(name), format!("network = \"127.{first}.{second}.0\"\n{text}")).unwrap();
    name.to_owned()
}

/// A network that runs, and a folder for its files.
pub(crate) struct Net {
    pub dir: tempfile::TempDir,
    pub running: Running,
    pub shown: Value,
}

/// A link of it, by AS and interface.
pub(crate) struct Link {
    pub kind: String,
    pub ends: [(String, String); 2],
}

impl Net {
    pub(crate) fn up(name: &str) -> Self {
        Self::up_with(name, &[])
    }

    /// With more arguments.
    pub(crate) fn up_with(name: &str, arguments: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = example(dir.path(), name);
        let mut command = anabranch(dir.path());
        command.args(["net", "up", &file, "--control", "127.0.0.1:0", "--json"]).args(arguments);
        let mut running = Running::start(&mut command);
        let shown = running.event("network");
        Self { dir, running, shown }
    }

    pub(crate) fn ases(&self) -> &[Value] {
        self.shown["ases"].as_array().unwrap()
    }

    pub(crate) fn get(&self, isd_as: &str) -> &Value {
        self.ases().iter().find(|each| each["isd_as"] == isd_as).unwrap()
    }

    pub(crate) fn daemon(&self, isd_as: &str) -> &str {
        self.get(isd_as)["daemon"].as_str().unwrap()
    }

    /// The first host, as `ping` takes it.
    pub(crate) fn host(&self, isd_as: &str) -> String {
        format!("{isd_as},{}", self.get(isd_as)["hosts"][0]["address"].as_str().unwrap())
    }

    pub(crate) fn links(&self) -> Vec<Link> {
        let end = |text: &Value| {
            let (isd_as, id) = text.as_str().unwrap().split_once('#').unwrap();
            (isd_as.to_owned(), id.to_owned())
        };
        let links = self.shown["links"].as_array().unwrap().iter();
        links
            .map(|link| Link {
                kind: link["kind"].as_str().unwrap().to_owned(),
                ends: [end(&link["a"]), end(&link["b"])],
            })
            .collect()
    }

    /// Runs a command as on a host of `isd_as`.
    pub(crate) fn run_in(&self, isd_as: &str, arguments: &[&str]) -> (i32, String, String) {
        finish(anabranch(self.dir.path()).env("SCION_DAEMON_ADDRESS", self.daemon(isd_as)).args(arguments))
    }

    pub(crate) fn link(&self, arguments: &[&str]) -> (i32, String, String) {
        let control = self.shown["control"].as_str().unwrap();
        run(self.dir.path(), &[&["net", "link"], arguments, &["--control", control]].concat())
    }

    /// The paths as `paths --json` lists them.
    pub(crate) fn paths(&self, from: &str, to: &str) -> Vec<Value> {
        let (code, json, stderr) = self.run_in(from, &["paths", to, "--json"]);
        assert_eq!(code, 0, "{from} {to}: {stderr}");
        let list: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((list["source"].as_str(), list["destination"].as_str()), (Some(from), Some(to)));
        list["paths"].as_array().unwrap().clone()
    }
}
