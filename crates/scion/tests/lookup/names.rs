//! Host names, from a file and from a DNS server on loopback.

use std::net::SocketAddr;
use std::path::Path;

use anabranch_scion::lookup::names::{NameError, Names, ScionHost};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinHandle;

/// Knows `host.example` (an alias, one address and other people's records), `long.example` (too long for UDP) and
/// `broken.example` (a server error); everything else does not exist.
struct Dns {
    address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Dns {
    async fn start() -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let over_udp = tokio::spawn(async move {
            let mut buffer = [0; 512];
            loop {
                let (len, from) = udp.recv_from(&mut buffer).await.unwrap();
                let query = &buffer[..len];
                // A stranger's datagrams first: another id, another question, garbage.
                let mut forged = reply(query, false);
                forged[0] ^= 1;
                let mut other = reply(query, false);
                other[13] ^= 1;
                for datagram in [forged, other, vec![7; 5], reply(query, false)] {
                    udp.send_to(&datagram, from).await.unwrap();
                }
            }
        });
        let over_tcp = tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let mut query = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut query).await.unwrap();
                let answer = reply(&query, true);
                stream.write_u16(answer.len() as u16).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        Self { address, tasks: [over_udp, over_tcp] }
    }
}

fn reply(query: &[u8], is_tcp: bool) -> Vec<u8> {
    let name = String::from_utf8_lossy(&query[12..]).into_owned();
    let record = |owner: &[u8], kind: u16, data: &[u8]| {
        let head = [owner, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 60], &(data.len() as u16).to_be_bytes()].concat();
        [head, data.to_vec()].concat()
    };
    let txt = |text: &str| {
        // In two strings, as long ones must be.
        let (first, second) = text.split_at(text.len() / 2);
        let strings = [&[first.len() as u8], first.as_bytes(), &[second.len() as u8], second.as_bytes()].concat();
        // The owner is a pointer to the question.
        record(&[0xc0, 12], 16, &strings)
    };
    let (flags, records): (u16, Vec<Vec<u8>>) = if name.contains("host") {
        let alias = record(b"\x04HOST\x07example\0", 5, &[0xc0, 12]);
        (0x8180, vec![alias, txt("v=spf1 -all"), txt("scion=1-ff00:0:110,[10.0.0.1]"), txt("scion=1-0,10.0.0.2")])
    } else if name.contains("long") {
        let all = (1..=40).map(|n| txt(&format!("scion=64-559,fd00::{n}"))).collect();
        if is_tcp { (0x8180, all) } else { (0x8380, Vec::new()) }
    } else if name.contains("broken") {
        (0x8182, Vec::new())
    } else {
        (0x8183, Vec::new())
    };
    let mut message = query[..2].to_vec();
    message.extend([flags, 1, records.len() as u16, 0, 0].iter().flat_map(|field| field.to_be_bytes()));
    message.extend(&query[12..]);
    message.extend(records.concat());
    message
}

fn names(hosts: &Path, dns: &Dns) -> Names {
    Names { hosts: vec![hosts.to_owned()], dns: vec![dns.address] }
}

fn host(text: &str) -> ScionHost {
    text.parse().unwrap()
}

#[tokio::test]
async fn txt_records_name_hosts() {
    let dns = Dns::start().await;
    let names = names(Path::new("/nowhere/hosts"), &dns);
    assert_eq!(names.resolve("host.example").await.unwrap(), [host("1-ff00:0:110,10.0.0.1")]);
    assert_eq!(names.resolve("host.example.").await.unwrap().len(), 1);
    let many = names.resolve("long.example").await.unwrap();
    assert_eq!((many.len(), many[39]), (40, host("64-559,fd00::40")));
    let error = names.resolve("unknown.example").await.unwrap_err();
    assert_eq!(
        error.to_string().split(':').next().unwrap(),
        "`unknown.example` is in neither /nowhere/hosts nor the DNS (no TXT record `scion=ISD-AS,IP`)"
    );
    let error = names.resolve("broken.example").await.unwrap_err();
    assert!(matches!(&error, NameError::Dns { .. }) && error.to_string().contains("answers with error 2"), "{error}");
}

#[tokio::test]
async fn the_hosts_file_comes_first() {
    let dns = Dns::start().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        "# ours\n1-ff00:0:111,[10.9.9.9] Host.Example alias # and more\n\n2-1,fd00::1\talias\n1-1,10.0.0.1 other alias\nx wrong\n",
    )
    .unwrap();
    let names = names(file.path(), &dns);
    assert_eq!(names.resolve("host.example").await.unwrap(), [host("1-ff00:0:111,10.9.9.9")]);
    assert_eq!(names.resolve("ALIAS").await.unwrap().len(), 3);
    let error = names.resolve("wrong").await.unwrap_err().to_string();
    assert!(error.contains("line 6: `x` is no SCION host"), "{error}");
    // Several files go in turn.
    let both = Names { hosts: vec!["/nowhere/hosts".into(), file.path().to_owned()], ..names.clone() };
    assert_eq!(both.resolve("host.example").await.unwrap(), [host("1-ff00:0:111,10.9.9.9")]);
    // What the file does not know, the DNS may.
    assert_eq!(names.resolve("host.example2").await.unwrap(), [host("1-ff00:0:110,10.0.0.1")]);
}

#[tokio::test]
async fn names_go_where_addresses_go() {
    let dns = Dns::start().await;
    let names = names(Path::new("/nowhere/hosts"), &dns);
    let endpoints = async |text: &str| names.endpoints(text).await.map(|all| all[0].to_string());
    assert_eq!(endpoints("host.example:6881").await.unwrap(), "[1-ff00:0:110,10.0.0.1]:6881");
    assert_eq!(endpoints("1-2,10.0.0.7:80").await.unwrap(), "[1-2,10.0.0.7]:80");
    assert_eq!(endpoints("192.0.2.7:80").await.unwrap(), "192.0.2.7:80");
    assert!(matches!(endpoints("host.example").await, Err(NameError::Endpoint(_))));
    assert!(matches!(endpoints("a b:80").await, Err(NameError::Endpoint(_))));
    assert!(matches!(names.resolve("a..b").await, Err(NameError::NotAName(_))));
    assert!(matches!(names.resolve("10.0.0.1").await, Err(NameError::NotAName(_))));
}

#[tokio::test]
async fn without_a_server_the_file_is_named() {
    let unused = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let names = Names { hosts: vec!["/nowhere/hosts".into()], dns: vec![unused] };
    let error = names.resolve("host.example").await.unwrap_err().to_string();
    assert!(error.contains("/nowhere/hosts") && error.contains(&unused.to_string()), "{error}");
}
