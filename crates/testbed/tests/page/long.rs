//! What takes longer: everything on the page for people with disabilities, on a phone and by keyboard; hundreds of transfers; pictures.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anabranch_testbed::browser::{ARROW_DOWN, END, ENTER, ESCAPE};

use super::fixture::{Fixture, must};

/// Transfers of a long list.
const MANY: usize = 500;
/// How long a page is left open, and by how much its memory may have grown then.
const LEFT_OPEN: Duration = Duration::from_secs(60);
const GROWN_BYTES_MAX: f64 = 8e6;
/// How often a page is opened for the median of its times.
const OPENINGS: usize = 9;
/// Notes when the first transfers can be seen, at the end of the frame in which they are drawn.
const NOTE_ROWS: &str = "addEventListener('DOMContentLoaded', () => new MutationObserver((_, observer) => { \
    if (!document.querySelector('.row')) return; observer.disconnect(); \
    requestAnimationFrame(() => setTimeout(() => { window.rowsAt = performance.now(); })); \
    }).observe(document.body, { childList: true, subtree: true }));";

/// Adds contents that wait, as programs do.
fn add_many(fixture: &Fixture, count: usize) {
    let added = fixture.browser.run_async(&format!(
        "for (let at = 1; at <= {count}; at++) {{ \
           const source = `magnet:?xt=urn:btih:${{at.toString(16).padStart(40, '0')}}&dn=transfer ${{at}}`; \
           const options = {{ method: 'POST', headers: {{ 'content-type': 'application/json' }}, body: JSON.stringify({{ source, paused: true }}) }}; \
           const answer = await fetch('/api/v1/contents', options); \
           if (!answer.ok) throw new Error(await answer.text()); }} return {count};"
    ));
    assert_eq!(must(added), count);
}

#[test]
#[ignore = "a minute: `make page`"]
fn every_part_of_the_page_is_accessible_on_a_desk_and_on_a_phone() {
    let fixture = Fixture::on_a_network(64);
    let browser = &fixture.browser;
    for (what, width, height) in [("desk", 1360, 900), ("phone", 390, 844)] {
        must(browser.resize(width, height));
        fixture.open();
        if what == "desk" {
            fixture.assert_accessible("the empty list");
            must(browser.paste("#search", &fixture.magnet));
            must(browser.drop_file(&fixture.tone));
        }
        must(browser.wait("document.querySelectorAll('.row').length === 2"));
        fixture.assert_accessible(&format!("the list, {what}"));
        for (button, field) in [("#add", "#add-links"), ("#limits", "#limit-down")] {
            must(browser.click(button));
            must(browser.wait(&format!("document.querySelector('{field}').checkVisibility()")));
            fixture.assert_accessible(&format!("the dialog of {button}, {what}"));
            must(browser.keys(&[ESCAPE]));
        }
        must(browser.click(".row"));
        for tab in ["overview", "files", "peers", "trackers", "paths", "log"] {
            must(browser.click(&format!("#tab-{tab}")));
            must(browser.wait("document.getElementById('panel').children.length > 0"));
            fixture.assert_accessible(&format!("{tab}, {what}"));
            let wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth";
            assert_eq!(must(browser.run(&format!("return {wider};"))), false, "{tab} is wider than a {what}");
        }
    }
}

#[test]
#[ignore = "a minute: `make page`"]
fn hundreds_of_transfers_are_walked_through_by_keyboard_and_the_page_left_open_grows_no_memory() {
    let fixture = Fixture::alone();
    let browser = &fixture.browser;
    fixture.open();
    add_many(&fixture, MANY);
    must(browser.wait(&format!("document.getElementById('count').textContent === '{MANY} transfers'")));
    let rows = must(browser.run("return document.querySelectorAll('.row').length;")).as_u64().unwrap();
    assert!(rows < 60, "{rows} rows are drawn, of which a dozen can be seen");

    // Down, to the end, and into the transfer there.
    must(browser.run("document.querySelector('.row[tabindex=\"0\"]').focus();"));
    must(browser.keys(&[ARROW_DOWN]));
    must(browser.wait("document.activeElement.getAttribute('aria-rowindex') === '2'"));
    must(browser.keys(&[END]));
    must(browser.wait(&format!("document.activeElement.getAttribute('aria-rowindex') === '{MANY}'")));
    must(browser.keys(&[ENTER]));
    must(browser.wait(&format!("document.querySelector('.detail h2')?.textContent === 'transfer {MANY}'")));
    must(browser.keys(&[ESCAPE]));
    must(browser.wait("document.getElementById('detail').hidden"));
    must(browser.write("#search", "transfer 49"));
    must(browser.wait(&format!("document.getElementById('count').textContent === '11 of {MANY}'")));
    must(browser.write("#search", ""));

    // Left open, with a transfer chosen.
    must(browser.run("document.querySelector('.row').click();"));
    let heap = || {
        must(browser.devtools("HeapProfiler.collectGarbage", &serde_json::json!({})));
        must(browser.run("return performance.memory.usedJSHeapSize;")).as_f64().unwrap()
    };
    std::thread::sleep(Duration::from_secs(5));
    let before = heap();
    let began = Instant::now();
    while began.elapsed() < LEFT_OPEN {
        std::thread::sleep(Duration::from_secs(1));
        // Changes come in all the time.
        must(browser.run_async(
            "await fetch('/api/v1/contents/7', { method: 'PATCH', headers: { 'content-type': 'application/json' }, \
             body: JSON.stringify({ name: `transfer ${Math.random()}` }) });",
        ));
    }
    let grown = heap() - before;
    println!("the heap of the page: {:.1} MB, grown by {:.2} MB in {LEFT_OPEN:?}", before / 1e6, grown / 1e6);
    assert!(grown < GROWN_BYTES_MAX, "{grown} bytes in {LEFT_OPEN:?}");
}

#[test]
#[ignore = "prints times: `make page`"]
fn the_time_until_hundreds_of_transfers_are_seen_is_printed() {
    let fixture = Fixture::alone();
    let browser = &fixture.browser;
    fixture.open();
    add_many(&fixture, MANY);
    must(browser.devtools("Page.addScriptToEvaluateOnNewDocument", &serde_json::json!({ "source": NOTE_ROWS })));
    let mut times: Vec<(u64, u64)> = (0..OPENINGS)
        .map(|_| {
            fixture.open();
            let rows = must(browser.wait("window.rowsAt")).as_f64().unwrap_or_default();
            let paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime";
            let paint = must(browser.wait(paint)).as_f64().unwrap_or_default();
            (rows.round() as u64, paint.round() as u64)
        })
        .collect();
    times.sort_unstable();
    let (rows, paint) = times[times.len() / 2];
    println!(
        "{MANY} transfers: first paint after {paint} ms, transfers seen after {rows} ms (median of {OPENINGS}); all: {times:?}"
    );
}

#[test]
#[ignore = "pictures: `ANABRANCH_SCREENSHOTS=DIR make page`"]
fn pictures_are_taken_of_it() {
    let Some(dir) = std::env::var_os("ANABRANCH_SCREENSHOTS").map(PathBuf::from) else {
        println!("no picture is taken: ANABRANCH_SCREENSHOTS names no folder");
        return;
    };
    let fixture = Fixture::on_a_network(128);
    let browser = &fixture.browser;
    fixture.open();
    must(browser.paste("#search", &fixture.magnet));
    must(browser.drop_file(&fixture.tone));
    must(browser.wait("document.querySelectorAll('.row').length === 2"));
    must(browser.run("[...document.querySelectorAll('.row')].find((row) => /noise/.test(row.textContent)).click();"));
    must(browser.run_async(
        "await fetch('/api/v1/contents/1', { method: 'PATCH', headers: { 'content-type': 'application/json' }, \
         body: JSON.stringify({ limit_down: 1500000 }) });",
    ));
    must(browser.click("#tab-paths"));
    must(browser.wait("document.querySelectorAll('.path .chip.active').length === 4"));
    // Rates over some seconds are more to look at than over one.
    std::thread::sleep(Duration::from_secs(8));
    let take = |name: &str| must(browser.screenshot(&dir.join(format!("daemon-{name}.png"))));
    take("page");
    let network = fixture.network.as_ref().unwrap();
    let link = network.find_link(super::CUT[0], Some(super::CUT[1])).unwrap();
    network.set_link_up(link, false).unwrap();
    must(browser.set_dark(true));
    must(browser.wait("document.querySelector('.path .chip.down')"));
    take("page-cut");
    must(browser.set_dark(false));
    must(browser.resize(390, 844));
    std::thread::sleep(Duration::from_secs(2));
    take("page-phone");
    must(browser.resize(1360, 900));
    must(browser.click("#add"));
    must(browser.wait("document.getElementById('add-links').checkVisibility()"));
    take("page-add");
}
