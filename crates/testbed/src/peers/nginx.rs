//! nginx, as a web seed over HTTPS: of HTTP/2 or of HTTP/1.1 alone.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::free_address;
use crate::process::Process;
use crate::{Error, Result};

/// Debian has it in nobody's PATH.
const PROGRAM: &str = "/usr/sbin/nginx";
const LIMIT: Duration = Duration::from_secs(20);

/// A running server.
pub struct Nginx {
    /// The process.
    pub process: Process,
    /// What it signs with: trusted by whom `SSL_CERT_FILE` names it to.
    pub certificate: PathBuf,
    address: SocketAddrV4,
    log: PathBuf,
}

impl Nginx {
    /// Serves what is in `root`, over HTTP/2 where `is_2`; what it needs itself is in `folder`.
    ///
    /// # Errors
    /// When it is missing or does not start.
    pub fn start(root: &Path, folder: &Path, is_2: bool) -> Result<Self> {
        if !Path::new(PROGRAM).is_file() {
            return Err(Error::Missing { what: "nginx".into(), remedy: "`make deps` installs it".into() });
        }
        let address = free_address()?;
        let wrong = |what: String| Error::Nonsense { name: "the certificate of nginx".into(), what };
        let made = rcgen::generate_simple_self_signed([address.ip().to_string()]);
        let made = made.map_err(|error| wrong(error.to_string()))?;
        let [certificate, key, log] = ["certificate.pem", "key.pem", "access.log"].map(|name| folder.join(name));
        let config = folder.join("nginx.conf");
        let text = config_text(&address, root, folder, if is_2 { "ssl http2" } else { "ssl" });
        for (path, text) in [(&certificate, made.cert.pem()), (&key, made.signing_key.serialize_pem()), (&config, text)]
        {
            std::fs::write(path, text).map_err(Error::file(path))?;
        }
        let mut command = Command::new(PROGRAM);
        command.arg("-p").arg(folder).arg("-c").arg(&config).args(["-e", "stderr"]);
        let mut nginx = Self { process: Process::spawn("nginx", &mut command)?, certificate, address, log };
        nginx.wait_open()?;
        Ok(nginx)
    }

    fn wait_open(&mut self) -> Result<()> {
        let began = std::time::Instant::now();
        while std::net::TcpStream::connect(self.address).is_err() {
            if self.process.has_ended() || began.elapsed() > LIMIT {
                return Err(Error::Nonsense { name: "nginx".into(), what: self.process.log() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// What is below it.
    pub fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    /// Of each request so far: the protocol, and the number of its connection.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn requests(&self) -> Result<Vec<(String, u64)>> {
        let text = std::fs::read_to_string(&self.log).map_err(Error::file(&self.log))?;
        let request = |line: &str| {
            let (protocol, connection) = line.split_once(' ')?;
            Some((protocol.to_owned(), connection.parse().ok()?))
        };
        Ok(text.lines().filter_map(request).collect())
    }
}

fn config_text(address: &SocketAddrV4, root: &Path, folder: &Path, how: &str) -> String {
    let (root, folder) = (root.display(), folder.display());
    format!(
        "daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
    log_format requests '$server_protocol $connection';
    access_log {folder}/access.log requests;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen {address} {how};
        ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem;
        root \"{root}\";
    }}
}}
"
    )
}
