//! Two hosts joined by two rate-limited links: what each link brings alone, then both together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anabranch_testbed::peers::anabranch::Anabranch;
use anabranch_testbed::peers::libtorrent::{self, Libtorrent};
use anabranch_testbed::web::{WebServer, WebTrick};
use anabranch_testbed::wire::{Bundle, Family, Shape};
use anabranch_testbed::{Error, Result, data, net};

use crate::report::Sample;
use crate::workspace::{PIECE_LENGTH, Workspace};

const LIMIT: Duration = Duration::from_secs(300);
const PORT: u16 = 7000;
/// How long a transfer takes that fills what it may use.
const SECONDS: u64 = 10;
const RTT: Duration = Duration::from_millis(10);
/// Time that a full queue takes to drain, as a sane provider has it: queues per second.
const QUEUES_PER_SECOND: u64 = 20;

/// Who shares, and at which of its addresses it is met.
#[derive(Clone, Copy)]
pub(super) enum From {
    /// Ours at one address; it tells the others.
    Ours(Family),
    /// libtorrent, at one address to which both links lead.
    LibtorrentOnce,
    /// libtorrent, at an address on each link.
    LibtorrentTwice,
    /// So many web servers, at one address to which both links lead.
    Web(u16),
}

/// Megabits a second over both links of these rates; beside it, percent of the sum of what each link brought alone.
pub(super) fn both(workspace: &mut Workspace, rates_mbit: [u64; 2], from: From) -> Result<Sample> {
    net::need_root()?;
    let mut alone = 0.0;
    for (link, rate) in rates_mbit.into_iter().enumerate() {
        let sample = fetch(workspace, rates_mbit, from, Some(link), rate)?;
        eprintln!("  link {link} alone, {rate} Mbit/s: {:.2}", sample.figure);
        alone += sample.figure;
    }
    let sample = fetch(workspace, rates_mbit, from, None, rates_mbit.iter().sum())?;
    eprintln!("  both: {:.2}, {:.3} of {alone:.2}", sample.figure, sample.figure / alone);
    Ok(Sample { extra: Some(100.0 * sample.figure / alone), ..sample })
}

/// One transfer over one link, or all: from the start of the process to the word that all is there.
fn fetch(
    workspace: &mut Workspace,
    rates_mbit: [u64; 2],
    from: From,
    only: Option<usize>,
    rate_mbit: u64,
) -> Result<Sample> {
    let shapes = rates_mbit.map(|rate| {
        let rate_bits = rate * 1_000_000;
        Shape { queue_bytes: rate_bits / 8 / QUEUES_PER_SECOND, ..Shape::new(rate_bits, RTT) }
    });
    let bundle = Bundle::new(&shapes)?;
    let (folder, torrent, len) = content(workspace, rate_mbit)?;
    let out = workspace.out()?;
    let mut servers = Vec::new();
    let _seeder = match from {
        From::Ours(family) => {
            let listen = [0, 1].map(|link| Bundle::left(link, family));
            let listen =
                listen.map(|ip| if family == Family::V6 { format!("[{ip}]:{PORT}") } else { format!("{ip}:{PORT}") });
            let further = ["--listen", &listen[1]];
            Some(Anabranch::share(&torrent, Some(&folder), &listen[0], Some(&bundle.left_end), &further)?.0.process)
        }
        From::LibtorrentOnce | From::LibtorrentTwice => {
            let listen = format!("0.0.0.0:{PORT}");
            let inside = if matches!(from, From::LibtorrentOnce) { &bundle.server } else { &bundle.left_end };
            Some(Libtorrent::seed_to_many_paths(&torrent, &folder, Some(inside), &listen)?.process)
        }
        From::Web(count) => {
            for number in 0..count {
                let address = format!("{}:{}", Bundle::SERVER, PORT + number);
                servers.push(bundle.server.enter(|| WebServer::start_at(&address, &folder, WebTrick::Honest))?);
            }
            None
        }
    };
    let peers = match from {
        From::Ours(family) => vec![Bundle::left(only.unwrap_or(0), family)],
        From::LibtorrentOnce => vec![Bundle::SERVER.to_owned()],
        From::Web(_) => Vec::new(),
        From::LibtorrentTwice => (0..2).map(|link| Bundle::left(link, Family::V4)).collect(),
    };
    let peers: Vec<SocketAddr> = peers.iter().filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, PORT))).collect();
    let mut extra = vec!["--paths", "4"];
    let urls: Vec<String> = servers.iter().map(WebServer::url).collect();
    urls.iter().for_each(|url| extra.extend(["--web-seed", url]));
    let device = only.map(Bundle::device);
    if let Some(device) = &device {
        extra.extend(["--interface", device]);
    }
    let source = torrent.display().to_string();
    let mut get = Anabranch::get(&source, &out, &peers, Some(&bundle.right_end), &extra)?;
    let started = get.process.started();
    let (_, finished) = get.process.wait_event("finished", LIMIT)?;
    let usage = get.process.wait_success(LIMIT)?;
    if !data::same_file(&folder.join("content.bin"), &out.join("content.bin"))? {
        return Err(Error::Nonsense { name: "the transfer".into(), what: format!("{} differs", out.display()) });
    }
    workspace.sweep()?;
    Ok(Sample {
        figure: len as f64 * 8.0 / 1e6 / (finished - started).as_secs_f64(),
        cpu_fetch: Some(usage.cpu().as_secs_f64()),
        rss_mib: Some(usage.rss_bytes_max as f64 / f64::from(1 << 20)),
        ..Sample::default()
    })
}

/// A content that takes [`SECONDS`] at this rate, and its torrent.
fn content(workspace: &Workspace, rate_mbit: u64) -> Result<(PathBuf, PathBuf, u64)> {
    let len = rate_mbit * 1_000_000 / 8 * SECONDS;
    let folder = workspace.keep(&format!("multihome-{rate_mbit}"))?;
    let (file, torrent) = (folder.join("content.bin"), folder.join("content.torrent"));
    if !torrent.exists() {
        data::make_file(&file, len, rate_mbit)?;
        libtorrent::create(&file, &torrent, "1", PIECE_LENGTH, &[])?;
    }
    Ok((folder, torrent, len))
}
