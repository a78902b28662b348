//! Which cells the matrix has, and why others are none.

use super::clients::Client;
use super::{Cell, Found};

/// Bytes of the content of every cell: much more than is asked of a peer at first.
pub const LEN: u64 = 32 << 20;

/// Version, whether by a link, and how they meet.
const KINDS: [(&str, bool, Found); 8] = [
    ("1", false, Found::Tracker),
    ("1", true, Found::Tracker),
    ("hybrid", false, Found::Tracker),
    ("hybrid", true, Found::Tracker),
    ("2", false, Found::Tracker),
    ("2", true, Found::Tracker),
    ("1", true, Found::Dht),
    ("1", true, Found::Lsd),
];

/// Those of one kind: from the client to ours, from ours to it, and with itself, which is what the others are to be read against.
fn of_kind(client: Client, (version, by_magnet, found): (&'static str, bool, Found)) -> [Cell; 3] {
    let ends = [(client, Client::Ours), (Client::Ours, client), (client, client)];
    // Who shares is given the torrent: what a link is to it is another matter.
    ends.map(|(from, to)| Cell { from, to, found, version, by_magnet, len: LEN })
}

/// All of one client.
pub fn of(client: Client) -> Vec<Cell> {
    let all = KINDS.into_iter().flat_map(|kind| of_kind(client, kind));
    let mut cells: Vec<Cell> = all.filter(|cell| lacks(client, cell).is_none()).collect();
    // Of ours there is no other than with itself.
    cells.dedup();
    cells
}

/// What of it there is no cell for: how they would meet, what would be given, and why not.
pub fn left_out(client: Client) -> Vec<(Found, String, &'static str)> {
    let left = |kind: (&'static str, bool, Found)| {
        let (version, by_magnet, found) = kind;
        let why = of_kind(client, kind).iter().find_map(|cell| lacks(client, cell))?;
        let given = if by_magnet { "link" } else { "torrent" };
        Some((found, format!("{}, {version}, {given}", found.name()), why))
    };
    KINDS.into_iter().filter_map(left).collect()
}

/// Those that are for the tests that everybody runs: of each client that Debian has, one way each.
pub fn quick() -> Vec<Cell> {
    let with = |from, to, found| Cell { from, to, found, version: "1", by_magnet: true, len: LEN };
    vec![
        with(Client::QBittorrent, Client::Ours, Found::Dht),
        Cell { by_magnet: false, ..with(Client::Ours, Client::QBittorrent, Found::Tracker) },
        with(Client::Libtorrent, Client::Ours, Found::Lsd),
        with(Client::Ours, Client::Libtorrent, Found::Dht),
        with(Client::Ours, Client::Aria2, Found::Tracker),
        with(Client::Ours, Client::Ours, Found::Dht),
        with(Client::Ours, Client::Ours, Found::Lsd),
    ]
}

/// What `client` cannot do that a cell is about.
pub fn lacks(client: Client, cell: &Cell) -> Option<&'static str> {
    let old =
        matches!(client, Client::Rtorrent | Client::Aria2 | Client::WebTorrent | Client::Rqbit | Client::Transmission);
    match (client, cell.version, cell.found) {
        (_, "2", _) if old => Some("reads no v2"),
        (Client::Aria2 | Client::Transmission, "hybrid", _) => Some("reads no hybrid"),
        (Client::Rtorrent, "hybrid", _) if cell.by_magnet => Some("takes no link with two hashes"),
        // deluge-console 2.0 looks for a file of that name.
        (Client::Deluge, "2", _) if cell.by_magnet && cell.to == client => {
            Some("to it: its console takes no link with the v2 hash alone")
        }
        // bittorrent-lsd 1.1, and onPeer() of WebTorrent 1.9.
        (Client::WebTorrent, _, Found::Lsd) if cell.from == client => {
            Some("from it: with all of it, it calls out every five minutes, and dials nobody who does")
        }
        // `min_distance_to_announce` of librqbit-dht 9.1: among some nodes of a test, nobody is that close.
        (Client::Rqbit, _, Found::Dht) if cell.from == client => Some(
            "from it, and with itself: it announces contents only to nodes whose id shares 16 bits with theirs, and there are none among so few",
        ),
        (Client::Rtorrent, _, Found::Lsd) => Some("has no local discovery"),
        // AddressList::parse_address_bencode() of its library before 0.16: it calls 54.58 and the first half of the address.
        (Client::Rtorrent, _, Found::Dht) if cell.to == client => Some(
            "to it, and with itself: 0.9.8 takes the `6:` before each address of the table for a part of it, and calls nobody who is there",
        ),
        _ => None,
    }
}
