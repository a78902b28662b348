//! The index page and the playlist. Pure.

use std::fmt::Write;

use super::names::{content_type, html, is_media, line};
use super::show::Show;

/// Decimal, as file managers have it.
fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// All files, each a link; the one that is being fetched can be watched at once, where it is the only one.
pub(super) fn index(show: &Show) -> String {
    let name = html(&show.name);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title></head>\n<body><h1>{name}</h1>\n"
    );
    let mut chosen = show.files.iter().filter(|file| show.wanted.contains(&file.index) && is_media(&file.name));
    if let (Some(file), None) = (chosen.next(), chosen.next()) {
        let tag = if content_type(&file.name).starts_with("audio/") { "audio" } else { "video" };
        // A text takes all that is written.
        let _ = writeln!(
            page,
            "<p><{tag} controls preload=\"metadata\" width=\"100%\" src=\"{}\"></{tag}></p>",
            file.target()
        );
    }
    page.push_str("<p><a href=\"/playlist.m3u\">playlist</a></p>\n<ul>\n");
    for file in &show.files {
        let (target, path, size) = (file.target(), html(&file.path), size(file.length));
        let _ = writeln!(page, "<li><a href=\"{target}\">{path}</a> {size}</li>");
    }
    page.push_str("</ul></body></html>\n");
    page
}

/// What is played of the content: all that is wanted, or all there is where nothing of it is.
pub(super) fn playlist(show: &Show, host: &str) -> String {
    let playable = || show.files.iter().filter(|file| is_media(&file.name));
    let mut wanted = playable().filter(|file| show.wanted.contains(&file.index)).peekable();
    let mut text = String::from("#EXTM3U\n");
    let entries: Vec<_> = if wanted.peek().is_some() { wanted.collect() } else { playable().collect() };
    for file in entries {
        // A text takes all that is written.
        let _ = write!(text, "#EXTINF:-1,{}\nhttp://{host}{}\n", line(&file.path), file.target());
    }
    text
}
