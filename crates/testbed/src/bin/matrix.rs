//! `make matrix`: every client with ours, both ways, and with itself, with the settings that they are installed with. Writes the table of
//! docs/matrix.md.
//!
//! usage: anabranch-matrix [--out FILE] [CLIENT | tracker | dht | lsd]...

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anabranch_testbed::matrix::clients::Client;
use anabranch_testbed::matrix::{Cell, Found, Measured, cells};
use anabranch_testbed::peers::checkout;
use anabranch_testbed::{Error, Result};

/// For one transfer, from the start of who fetches.
const LIMIT: Duration = Duration::from_secs(120);
const HEAD: &str = "# The matrix of clients

Who shares to whom, both with the settings that they come with, in a network of three hosts (namespaces of one machine, a bridge between them).
`make matrix` runs all of it and writes this file anew (as root; the better part of an hour). What is off by default where a cell is about it, is
turned on, and is marked. Transmission knows the nodes of the table from an earlier run: in its first one it waits for up to a minute before it asks.
The clock runs from the start of the program that fetches, which for some is seconds before they speak to anybody: read it against the client with
itself. The content is 32 MiB; the rate is from its first byte to its last.

| client | direction | found by | version | given | first byte | rate | |
| --- | --- | --- | --- | --- | --- | --- | --- |
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<()> {
    let mut out: PathBuf = checkout().join("docs/matrix.md");
    let (mut wanted, mut ways) = (Vec::new(), Vec::new());
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--out" => out = words.next().ok_or_else(|| Error::Usage("--out takes a file".into()))?.into(),
            word if let Some(way) = Found::ALL.into_iter().find(|way| way.name().eq_ignore_ascii_case(word)) => {
                ways.push(way)
            }
            name => {
                let known = |client: &Client| client.name().eq_ignore_ascii_case(name);
                let client = Client::OTHERS.into_iter().chain([Client::Ours]).find(known);
                wanted.push(client.ok_or_else(|| Error::Usage(format!("`{name}` is no client of the matrix")))?);
            }
        }
    }
    if wanted.is_empty() {
        wanted.extend(Client::OTHERS);
    }
    let mut text = HEAD.to_owned();
    for client in wanted {
        let is_wanted = |found: &Found| ways.is_empty() || ways.contains(found);
        for cell in cells::of(client).into_iter().filter(|cell| is_wanted(&cell.found)) {
            let result = cell.run(LIMIT);
            let line = line(client, &cell, &result);
            println!("{line}");
            let _ = writeln!(text, "{line}");
            if let Err(Error::Missing { .. }) = result {
                break;
            }
        }
        for (_, what, why) in cells::left_out(client).into_iter().filter(|(found, ..)| is_wanted(found)) {
            let _ = writeln!(text, "| {} | | {what} | | | | | {why} |", client.name());
        }
    }
    std::fs::write(&out, text).map_err(Error::file(out))
}

fn line(client: Client, cell: &Cell, result: &Result<Measured>) -> String {
    let direction = match (cell.from, cell.to) {
        (from, to) if from == to => "with itself",
        (_, Client::Ours) => "from it",
        _ => "to it",
    };
    let given = if cell.by_magnet { "link" } else { "torrent" };
    let mark = if client.is_by_default(cell.found) { "" } else { " (off by default)" };
    let head = format!(
        "| {} | {direction} | {}{mark} | {} | {given} |",
        client.name(),
        cell.found.name(),
        cell.version.replace('1', "v1").replace('2', "v2"),
    );
    match result {
        Ok(measured) => {
            let (first, rate) = (measured.first_byte.as_secs_f64(), measured.rate_bytes() / 1e6);
            format!("{head} {first:.1} s | {rate:.0} MB/s | whole |")
        }
        Err(Error::Missing { what, .. }) => format!("{head} | | not run: {what} is not installed |"),
        Err(Error::Timeout { name, waited_for, limit, log }) => {
            eprintln!("{log}");
            format!("{head} | | failed: {name}: no {waited_for} within {} s |", limit.as_secs())
        }
        Err(error) => {
            eprintln!("{error}");
            format!("{head} | | failed: {} |", error.to_string().lines().next().unwrap_or_default().replace('|', "/"))
        }
    }
}
