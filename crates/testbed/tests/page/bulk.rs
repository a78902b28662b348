//! Bulk transfers on the page: tickets are made and pasted.

use anabranch_testbed::peers::anabranch;
use anabranch_testbed::process::Process;

use super::stage::{LIMIT, Stage, must};

#[test]
fn a_ticket_is_made_for_a_file_and_one_that_was_given_is_pasted() {
    let stage = Stage::alone();
    let (browser, dir) = (&stage.browser, stage.dir.path());
    std::fs::write(dir.join("files/report.bin"), vec![7; 2_000_000]).unwrap();
    std::fs::write(dir.join("answer.bin"), vec![9; 1_000_000]).unwrap();
    stage.open();
    must(browser.click("#add"));
    must(browser.write("#add-path", &dir.join("files/report.bin").to_string_lossy()));
    must(browser.click("#add-ticket"));
    stage.assert_accessible("the dialog with a ticket to be made");
    must(browser.click("#add-dialog .primary"));
    must(browser.wait("document.getElementById('told')?.textContent.startsWith('bulk1-')"));
    stage.assert_accessible("a ticket");
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
