//! The page as people meet it, in Chromium: `make deps` installs that, and axe-core, which looks for what keeps people with disabilities
//! out. The long tests, and the pictures of docs/daemon.md:
//!
//! ```sh
//! make page                                 # FLAGS=... for one of them
//! ANABRANCH_SCREENSHOTS=docs/images make page
//! ```

mod bulk;
mod fixture;
mod long;

use anabranch_testbed::browser::ESCAPE;
use fixture::{Fixture, must};

/// The link that is cut: one of the four by which everything arrives.
const CUT: [&str; 2] = ["1-ff00:0:110", "1-ff00:0:111"];
/// Whether a link is crossed by what a row of the page says, or a title of the map.
const CROSSES: &str = r"(text) => /1-ff00:0:111(#\d+ . | \d+>\d+ )1-ff00:0:110\b/.test(text)";

#[test]
fn a_transfer_over_several_paths_is_added_watched_limited_played_and_removed() {
    let fixture = Fixture::on_a_network(0);
    let browser = &fixture.browser;
    // Without the token in the address, and with a wrong one, there is a form.
    let (url, token) = fixture.link.split_once("#token=").unwrap();
    must(browser.go(url));
    must(browser.wait("!document.getElementById('login').hidden"));
    fixture.assert_accessible("the log-in");
    must(browser.write("#token", "wrong"));
    must(browser.press("Log in"));
    must(browser.wait("document.querySelector('#message.bad:not([hidden])')?.textContent.includes('token')"));
    must(browser.write("#token", token));
    must(browser.press("Log in"));
    must(browser.wait("!document.getElementById('main').hidden"));

    // Pasted, it is there, and begins. Slowed, there is time to look.
    must(browser.paste("#search", &fixture.magnet));
    must(browser.wait("document.querySelector('.row .name')?.textContent === 'noise.bin'"));
    must(browser.click(".row"));
    must(browser.click(".detail .actions button:nth-child(3)"));
    fixture.assert_accessible("the dialog of limits");
    must(browser.write("#limit-down", "1"));
    must(browser.press("Set"));
    fixture.wait_for("contents/1", |content| content["limit_down"] == 1_000_000);

    // Four paths carry it, and the map shows them.
    must(browser.click("#tab-paths"));
    must(browser.wait("document.querySelectorAll('.path .chip.active').length === 4"));
    must(browser.wait("document.querySelectorAll('.map .load').length >= 8"));
    fixture.assert_accessible("the map of the paths");
    let arrives = format!(
        "[...document.querySelectorAll('.map .wire')].filter((wire) => ({CROSSES})(wire.querySelector('title').textContent))"
    );
    must(browser.wait(&format!("{arrives}.some((wire) => !/\\n0 B.s to us/.test(wire.textContent))")));

    // One of the links that it arrives by is cut: what went over it goes elsewhere.
    let network = fixture.network.as_ref().unwrap();
    let link = network.find_link(CUT[0], Some(CUT[1])).unwrap();
    network.set_link_up(link, false).unwrap();
    let moved = format!(
        "![...document.querySelectorAll('.path')].some((path) => path.querySelector('.chip.active') \
         && ({CROSSES})(path.querySelector('.mono').textContent)) && document.querySelectorAll('.path .chip.active').length >= 3"
    );
    must(browser.wait(&moved));
    must(browser.wait("/What changed[^]*down/.test(document.getElementById('panel').textContent)"));
    let done = fixture.ask("contents/1")["done"].as_u64().unwrap();
    fixture.wait_for("contents/1", |content| content["done"].as_u64() > Some(done + (1 << 20)));
    network.set_link_up(link, true).unwrap();

    // A torrent that is dropped is added too, and played.
    must(browser.drop_file(&fixture.tone));
    must(browser.wait("[...document.querySelectorAll('.row .name')].some((name) => name.textContent === 'tone.wav')"));
    must(
        browser.run("[...document.querySelectorAll('.row')].find((row) => /tone.wav/.test(row.textContent)).click();"),
    );
    must(browser.click("#tab-files"));
    must(browser.press("Play"));
    must(browser.wait("document.querySelector('#player audio')?.currentTime > 0.2"));
    fixture.assert_accessible("the player");
    must(browser.keys(&[ESCAPE]));
    must(browser.wait("!document.querySelector('#player audio')"));

    // Removed, with its files, it is gone.
    fixture.wait_for("contents/2", |content| content["state"] == "seeding");
    assert!(fixture.dir.path().join("files/tone.wav").exists());
    must(browser.press("Remove"));
    must(browser.click("#remove-data"));
    must(browser.click("#remove-dialog .danger"));
    must(browser.wait("document.querySelectorAll('.row').length === 1"));
    fixture.wait_for("contents", |list| list["contents"].as_array().is_some_and(|list| list.len() == 1));
    assert!(!fixture.dir.path().join("files/tone.wav").exists());

    // Without the limit, the other is soon there.
    must(browser.click(".row"));
    must(browser.press("Limits"));
    must(browser.write("#limit-down", ""));
    must(browser.press("Set"));
    fixture.wait_for("contents/1", |content| content["completed"].is_u64());
    must(browser.wait("document.querySelector('.row.seeding .left')?.textContent === '100 %'"));
}

#[test]
fn a_page_that_is_left_gives_its_connection_back_and_takes_one_when_it_is_shown_again() {
    let fixture = Fixture::alone();
    fixture.open();
    let wait_for = |count: &str| {
        let count_watchers =
            r"return /^anabranch_event_watchers (\d+)$/m.exec(await (await fetch('/metrics')).text())[1];";
        let began = std::time::Instant::now();
        while must(fixture.browser.run_async(count_watchers)) != count {
            assert!(began.elapsed() < fixture::LIMIT, "there are not {count} who watch");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    wait_for("1");
    let happens = |what: &str| {
        let event = format!("dispatchEvent(new PageTransitionEvent('{what}', {{ persisted: true }}));");
        must(fixture.browser.run(&event));
    };
    happens("pagehide");
    wait_for("0");
    happens("pageshow");
    wait_for("1");
    // What came while it was away is there.
    must(fixture.browser.wait("document.getElementById('message').hidden"));
    // One that is shown for the first time has its connection already.
    must(fixture.browser.run("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: false }));"));
    wait_for("1");
}
