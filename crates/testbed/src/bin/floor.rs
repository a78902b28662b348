//! The naive floor, and bare TCP, as processes of their own: see `anabranch_testbed::raw`.

#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_testbed::fixture::digest_from_hex as digest;
use anabranch_testbed::{Error, Result, dht_nodes, drain, quic, raw, udp, udp_file};
use anabranch_transport::{Congestion, QuicOptions};
use serde_json::json;

const USAGE: &str = "usage: anabranch-floor send FILE LISTEN | recv FILE PEER PIECE_LENGTH cached|direct | read FILE cached|direct | tcp-send BYTES LISTEN | tcp-recv BYTES PEER \
     | quic-send BYTES LISTEN cubic|bbr MTU | quic-recv PEER cubic|bbr MTU LOCAL [DAEMON] | quic-rate PEER cubic|bbr MTU LOCAL SKIPPED_SECONDS COUNTED_SECONDS | udp-send PEER MTU SECONDS | udp-recv PORT | udp-send-file FILE PEER MTU | udp-recv-file FILE BYTES PORT | drain SEEDER INFO_HASH PIECES PIECE_LENGTH LEECHERS SECONDS | dht-nodes ADDRESS,... ENTRY,...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["send", file, listen] => {
            let (listener, address) = raw::listen(parse(listen)?)?;
            println!("{}", json!({ "event": "listening", "address": address.to_string() }));
            raw::send_file(&listener, Path::new(file))
        }
        ["recv", file, peer, piece_length, how] => {
            let (peer, piece_length) = (parse(peer)?, parse(piece_length)?);
            let (bytes, hash) = raw::receive_file(peer, Path::new(file), piece_length, access(how)?)?;
            println!("{}", json!({ "event": "finished", "downloaded": bytes, "hash": format!("{hash:02x?}") }));
            Ok(())
        }
        ["read", file, how] => {
            println!("{}", json!({ "event": "finished", "sum": raw::read_file(Path::new(file), access(how)?)? }));
            Ok(())
        }
        ["tcp-send", bytes, listen] => {
            let (listener, address) = raw::listen(parse(listen)?)?;
            println!("{}", json!({ "event": "listening", "address": address.to_string() }));
            raw::send_raw(&listener, parse(bytes)?)
        }
        ["tcp-recv", bytes, peer] => {
            let report = raw::receive_raw(parse(peer)?, parse(bytes)?)?;
            let (seconds, late) = (report.wall.as_secs_f64(), report.rate_bytes_late);
            println!(
                "{}",
                json!({ "event": "finished", "downloaded": report.bytes, "seconds": seconds, "rate_bytes_late": late })
            );
            Ok(())
        }
        ["quic-send", bytes, listen, congestion, mtu] => {
            let options = quic_options(congestion, mtu)?;
            quic::send(parse(listen)?, &options, parse(bytes)?, |address| {
                println!("{}", json!({ "event": "listening", "address": address.to_string() }));
            })
        }
        ["quic-recv", peer, congestion, mtu, local, daemon @ ..] => {
            let options = quic_options(congestion, mtu)?;
            let report = quic::receive(parse(local)?, parse(peer)?, daemon.first().copied(), &options)?;
            let (seconds, stats) = (report.wall.as_secs_f64(), report.stats);
            println!(
                "{}",
                json!({
                    "event": "finished", "downloaded": report.bytes, "seconds": seconds,
                    "rate_bits": report.bytes as f64 * 8.0 / seconds, "mtu_bytes": stats.mtu_bytes,
                    "rtt_us": stats.rtt.as_micros() as u64,
                })
            );
            Ok(())
        }
        ["quic-rate", peer, congestion, mtu, local, skipped, counted] => {
            let options = quic_options(congestion, mtu)?;
            let seconds = |text| Ok::<_, Error>(Duration::from_secs(parse(text)?));
            let rate = quic::receive_for(parse(local)?, parse(peer)?, &options, seconds(skipped)?, seconds(counted)?)?;
            println!("{}", json!({ "event": "finished", "rate_bits": rate * 8.0 }));
            Ok(())
        }
        ["udp-send", peer, mtu, seconds] => {
            let (bytes, time) = udp::send(parse(peer)?, parse(mtu)?, Duration::from_secs_f64(parse(seconds)?))?;
            println!("{}", json!({ "event": "finished", "arrived": bytes, "seconds": time.as_secs_f64() }));
            Ok(())
        }
        ["udp-recv", port] => {
            let bytes = udp::receive(parse(port)?, || println!("{}", json!({ "event": "listening" })))?;
            println!("{}", json!({ "event": "finished", "downloaded": bytes }));
            Ok(())
        }
        ["udp-send-file", file, peer, mtu] => {
            let root = udp_file::send(Path::new(file), parse(peer)?, parse(mtu)?)?;
            println!("{}", json!({ "event": "finished", "root": format!("{root:02x?}") }));
            Ok(())
        }
        ["udp-recv-file", file, bytes, port] => {
            let listening = || println!("{}", json!({ "event": "listening" }));
            let root = udp_file::receive(Path::new(file), parse(bytes)?, parse(port)?, listening)?;
            println!(
                "{}",
                json!({ "event": "finished", "downloaded": parse::<u64>(bytes)?, "root": format!("{root:02x?}") })
            );
            Ok(())
        }
        ["drain", seeder, info_hash, pieces, piece_length, leechers, seconds] => {
            let target = drain::Target {
                seeder: parse(seeder)?,
                info_hash: digest(info_hash)?,
                pieces: parse(pieces)?,
                piece_length: parse(piece_length)?,
            };
            let measured = Duration::from_secs_f64(parse(seconds)?);
            let drained = drain::drain(target, parse(leechers)?, measured / 2, measured)?;
            let (connected, served, rate) = (drained.connected, drained.served, drained.rate_bytes);
            println!(
                "{}",
                json!({ "event": "finished", "connected": connected, "served": served, "rate_bytes": rate })
            );
            Ok(())
        }
        ["dht-nodes", addresses, entries] => {
            let parse_all = |list: &str| list.split(',').map(parse).collect::<Result<Vec<_>>>();
            let (addresses, entries) = (parse_all(addresses)?, parse_all(entries)?);
            let listening = || println!("{}", json!({ "event": "listening", "nodes": addresses.len() }));
            dht_nodes::run(&addresses, &entries, listening, |joined| {
                println!("{}", json!({ "event": "joined", "nodes": joined }));
            })
        }
        _ => Err(Error::Usage(USAGE.into())),
    }
}

fn access(how: &str) -> Result<raw::Access> {
    match how {
        "cached" => Ok(raw::Access::Cached),
        "direct" => Ok(raw::Access::Direct),
        other => Err(Error::Usage(format!("{other}; {USAGE}"))),
    }
}

fn quic_options(congestion: &str, mtu: &str) -> Result<QuicOptions> {
    let congestion = match congestion {
        "cubic" => Congestion::Cubic,
        "bbr" => Congestion::Bbr,
        other => return Err(Error::Usage(format!("{other}; {USAGE}"))),
    };
    Ok(QuicOptions { congestion, mtu_bytes_max: parse(mtu)?, ..QuicOptions::default() })
}

fn parse<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| Error::Usage(format!("{text}; {USAGE}")))
}
