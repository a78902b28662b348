//! Valid samples of what each target reads.

mod bittorrent;
mod bulk;
mod content;
mod files;
mod ppspp;
mod scion;

/// Each target's name, and its samples.
pub(crate) fn all() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    // The first byte says where a packet comes in: from inside, and at an interface.
    let entering = |from: u8| scion::scion_packet().into_iter().map(move |packet| [&[from], &packet[..]].concat());
    vec![
        ("bencode", content::bencode()),
        ("metainfo", content::metainfo()),
        ("edit", content::metainfo()),
        ("magnet", content::magnet()),
        ("daemon", files::daemon()),
        ("ip_filter", files::ip_filter()),
        ("known_keys", files::known_keys()),
        ("socks", bittorrent::socks()),
        ("tracker", bittorrent::tracker()),
        ("dht", bittorrent::dht()),
        ("resume", content::resume()),
        ("policy", files::policy()),
        ("wire", bittorrent::wire()),
        ("utp", bittorrent::utp()),
        ("portmap", bittorrent::portmap()),
        ("mse", bittorrent::mse()),
        ("web_seed", bittorrent::web_seed()),
        ("ppspp_wire", ppspp::wire()),
        ("ppspp_link", ppspp::links()),
        ("ppspp_manifest", ppspp::manifest()),
        ("pace", ppspp::transport_streams()),
        ("ppspp_bins", vec![(0..255).collect(), [0, 0, 9, 255].repeat(9)]),
        ("extension", bittorrent::extension()),
        ("scion_packet", scion::scion_packet()),
        ("router", entering(0).chain(entering(2)).collect()),
        ("scmp", scion::scmp()),
        ("segments", scion::segments()),
        ("lookup", scion::lookup()),
        ("scion_socket", scion::scion_socket()),
        ("datagram", scion::scion_socket()),
        ("frames", scion::frames()),
        ("topology", files::topology()),
        ("plan", files::plans()),
        ("control", files::control()),
        ("bulk", bulk::messages()),
        ("bulk_ends", bulk::ends()),
    ]
}
