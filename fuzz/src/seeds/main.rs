//! Writes valid samples for every target to `CORPUS/TARGET/seed-N`: fuzzing starts from them instead of from nothing.

#![forbid(unsafe_code)]

mod bittorrent;
mod bulk;
mod content;
mod files;
mod ppspp;
mod scion;

use std::path::{Path, PathBuf};
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpus = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "corpus".into()));
    write(&corpus, "bencode", &content::bencode())?;
    write(&corpus, "metainfo", &content::metainfo())?;
    write(&corpus, "edit", &content::metainfo())?;
    write(&corpus, "magnet", &content::magnet())?;
    write(&corpus, "daemon", &files::daemon())?;
    write(&corpus, "ip_filter", &files::ip_filter())?;
    write(&corpus, "known_keys", &files::known_keys())?;
    write(&corpus, "socks", &bittorrent::socks())?;
    write(&corpus, "tracker", &bittorrent::tracker())?;
    write(&corpus, "dht", &bittorrent::dht())?;
    write(&corpus, "resume", &content::resume())?;
    write(&corpus, "policy", &files::policy())?;
    write(&corpus, "wire", &bittorrent::wire())?;
    write(&corpus, "utp", &bittorrent::utp())?;
    write(&corpus, "portmap", &bittorrent::portmap())?;
    write(&corpus, "mse", &bittorrent::mse())?;
    write(&corpus, "web_seed", &bittorrent::web_seed())?;
    write(&corpus, "ppspp_wire", &ppspp::wire())?;
    write(&corpus, "ppspp_link", &ppspp::links())?;
    write(&corpus, "ppspp_manifest", &ppspp::manifest())?;
    write(&corpus, "pace", &ppspp::transport_streams())?;
    write(&corpus, "ppspp_bins", &[(0..255).collect(), [0, 0, 9, 255].repeat(9)])?;
    write(&corpus, "extension", &bittorrent::extension())?;
    write(&corpus, "scion_packet", &scion::scion_packet())?;
    // The first byte says where a packet comes in: from inside, and at an interface.
    let at = |from: u8| scion::scion_packet().into_iter().map(move |packet| [&[from], &packet[..]].concat());
    write(&corpus, "router", &at(0).chain(at(2)).collect::<Vec<_>>())?;
    write(&corpus, "scmp", &scion::scmp())?;
    write(&corpus, "segments", &scion::segments())?;
    write(&corpus, "lookup", &scion::lookup())?;
    write(&corpus, "scion_socket", &scion::scion_socket())?;
    write(&corpus, "datagram", &scion::scion_socket())?;
    write(&corpus, "frames", &scion::frames())?;
    write(&corpus, "topology", &files::topology())?;
    write(&corpus, "plan", &files::plans())?;
    write(&corpus, "control", &files::control())?;
    write(&corpus, "bulk", &bulk::messages())?;
    write(&corpus, "bulk_ends", &bulk::ends())
}

fn write(corpus: &Path, target: &str, samples: &[Vec<u8>]) -> io::Result<()> {
    let folder = corpus.join(target);
    fs::create_dir_all(&folder)?;
    for (number, sample) in samples.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:02}")), sample)?;
    }
    Ok(())
}
