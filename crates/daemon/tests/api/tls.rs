//! The address with TLS: what is said over it is secret, and cookies are for it alone.

use std::net::TcpStream;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::fixture::{Fixture, converse};

#[test]
fn requests_come_by_tls_and_in_no_other_way() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let fixture = Fixture::over(dir);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
    let connect = || {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::clone(&config), name).unwrap();
        StreamOwned::new(connection, TcpStream::connect(fixture.address).unwrap())
    };
    let host = format!("Host: localhost:{}\r\n", fixture.address.port());
    let fields = format!("{host}{}", fixture.fields());
    assert_eq!(converse(connect(), "GET", "/api/v1/session", &fields, b"").status, 200);
    assert_eq!(converse(connect(), "GET", "/api/v1/session", &host, b"").status, 401);
    let form = format!("{host}Content-Type: application/x-www-form-urlencoded\r\n");
    let log_in = format!("username=x&password={}", fixture.token);
    let answer = converse(connect(), "POST", "/api/v2/auth/login", &form, log_in.as_bytes());
    assert!(answer.field("set-cookie").unwrap().contains("Secure"), "{answer:?}");
    // In the clear there is nothing: neither an answer nor a hint.
    let mut plain = TcpStream::connect(fixture.address).unwrap();
    std::io::Write::write_all(&mut plain, format!("GET /healthz HTTP/1.1\r\n{host}\r\n").as_bytes()).unwrap();
    let mut said = Vec::new();
    let _ = std::io::Read::read_to_end(&mut plain, &mut said);
    assert!(!said.starts_with(b"HTTP"), "{said:?}");
    // The socket needs none.
    assert_eq!(fixture.by_socket("GET", "/api/v1/session", "Host: x\r\n", b"").status, 200);
}
