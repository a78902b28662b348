//! Bulk transfers and live streams on the page: tickets are made and pasted, a stream is made.

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;

use super::fixture::{Fixture, LIMIT, must};

#[test]
fn a_ticket_is_made_for_a_file_and_one_that_was_given_is_pasted() {
    let fixture = Fixture::alone();
    let (browser, dir) = (&fixture.browser, fixture.dir.path());
    std::fs::write(dir.join("files/report.bin"), vec![7; 2_000_000]).unwrap();
    std::fs::write(dir.join("answer.bin"), vec![9; 1_000_000]).unwrap();
    fixture.open();
    must(browser.click("#add"));
    must(browser.write("#add-path", &dir.join("files/report.bin").to_string_lossy()));
    must(browser.run("document.getElementById('add-how').value = 'ticket';"));
    fixture.assert_accessible("the dialog with a ticket to be made");
    must(browser.click("#add-dialog .primary"));
    must(browser.wait("document.getElementById('told')?.textContent.startsWith('bulk1-')"));
    fixture.assert_accessible("a ticket");
    let ticket = must(browser.run("return document.getElementById('told').textContent;"));
    let mut receive = must(anabranch::command(None));
    receive.current_dir(dir).args(["receive", ticket.as_str().unwrap(), "-o", "out", "--quiet"]);
    must(Process::run("receive", &mut receive, LIMIT));
    assert_eq!(std::fs::read(dir.join("out/report.bin")).unwrap(), vec![7; 2_000_000]);
    must(browser.wait("document.querySelector('.row.complete .left')?.textContent === '100 %'"));
    must(browser.wait("!document.getElementById('told')"));

    let mut send = must(anabranch::command(None));
    send.current_dir(dir).args(["send", "answer.bin", "--json", "--listen", "127.0.0.1:0"]);
    let mut sending = must(Process::spawn("send", &mut send));
    let (told, _) = must(sending.wait_event("ticket", LIMIT));
    must(browser.paste("#search", told["ticket"].as_str().unwrap()));
    must(browser.wait("document.querySelectorAll('.row.complete').length === 2"));
    assert_eq!(std::fs::read(dir.join("files/answer.bin")).unwrap(), vec![9; 1_000_000]);
    must(
        browser.wait("[...document.querySelectorAll('.row .name')].some((name) => name.textContent === 'answer.bin')"),
    );
}

#[test]
fn a_live_stream_is_made_and_its_page_says_where_it_is_sent_and_where_viewers_find_it() {
    let fixture = Fixture::alone();
    let browser = &fixture.browser;
    fixture.open();
    must(browser.click("#add"));
    must(browser.run("document.getElementById('add-how').value = 'live';"));
    must(browser.click("#add-dialog .primary"));
    must(browser.wait("document.getElementById('told')?.textContent.startsWith('ppspp:')"));
    must(browser.wait("/^PUT http.*\\/contents\\/1\\/live$/.test(document.getElementById('input')?.textContent)"));
    must(browser.wait("document.querySelector('.row.waiting .name')?.textContent === 'live.ts'"));
    fixture.assert_accessible("a live stream");
    must(browser.press("Remove"));
    must(browser.click("#remove-dialog .danger"));
    must(browser.wait("document.querySelectorAll('.row').length === 0"));
}
