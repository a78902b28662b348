//! Several torrents joined by virtual links in virtual time ([`sim`]), and one torrent with peers of the test's own making
//! ([`lone`]). Every behaviour has its file.

mod addresses;
mod blame;
mod exchange;
mod hashes;
mod ledger;
mod limits;
mod lone;
mod meeting;
mod path_sim;
mod paths;
mod peers;
mod pieces;
mod requests;
mod sim;
mod suggesting;
mod super_seeding;
mod swarm;
mod time;
mod uploads;
mod wishes;
