//! Chromium without a window, driven by WebDriver (W3C) as chromedriver speaks it: HTTP with JSON, of which tests need a dozen
//! commands. What that has no command for (files that are dropped, light and dark) goes by Chromium's own protocol.
//!
//! The browser looks up no names and reaches loopback addresses alone.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::peers::{checkout, installed};
use crate::process::Process;
use crate::{Error, Result};

/// How long the browser may take to start, and to do what it was told.
const START_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);
/// How long something on a page is waited for, with both cores busy elsewhere.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What an element is called by (WebDriver §12.1, "web element identifier").
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Refusals that pass: the page was just drawn anew, or something moves.
const PASSING: [&str; 4] =
    ["no such element", "stale element reference", "element click intercepted", "element not interactable"];

/// Keys as WebDriver names them (§17.4.2).
pub const CONTROL: &str = "\u{e009}";
/// Escape.
pub const ESCAPE: &str = "\u{e00c}";
/// Enter.
pub const ENTER: &str = "\u{e007}";
/// Down.
pub const ARROW_DOWN: &str = "\u{e015}";
/// End.
pub const END: &str = "\u{e010}";

/// A browser with one window.
pub struct Browser {
    /// Ends, and the browser with it, when this is dropped.
    driver: Process,
    address: SocketAddr,
    session: String,
    /// Forgotten with it.
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens one.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start() -> Result<Self> {
        let profile = tempfile::tempdir().map_err(Error::file("a folder for the browser"))?;
        let mut command = Command::new(installed("chromedriver")?);
        // What it keeps it keeps there.
        command.arg("--port=0").env("HOME", profile.path()).env("TMPDIR", profile.path());
        let mut driver = Process::spawn("chromedriver", &mut command)?;
        let ready = driver.wait_line("its port", START_LIMIT, |line| port_of(&line.text).is_some())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port_of(&ready.text).unwrap_or_default()));
        let mut browser = Self { driver, address, session: String::new(), _profile: profile };
        let arguments = [
            "--headless=new",
            // Tests run as root, in containers with a small /dev/shm; the pages are our own.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-proxy-server",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--force-color-profile=srgb",
            "--window-size=1360,900",
        ];
        let options = json!({ "binary": installed("chromium")?, "args": arguments });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options });
        let begun = browser.ask("POST", "/session", &json!({ "capabilities": { "alwaysMatch": wanted } }))?;
        browser.session = begun["sessionId"].as_str().unwrap_or_default().to_owned();
        Ok(browser)
    }

    /// Goes to an address.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub fn go(&self, url: &str) -> Result<()> {
        self.command("url", &json!({ "url": url })).map(drop)
    }

    /// Runs the body of a function on the page: what it returns.
    ///
    /// # Errors
    /// When it throws.
    pub fn run(&self, script: &str) -> Result<Value> {
        self.command("execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Runs the body of an `async` function: what comes of it.
    ///
    /// # Errors
    /// When it throws.
    pub fn run_async(&self, script: &str) -> Result<Value> {
        let script = format!(
            "const done = arguments[arguments.length - 1]; (async () => {{ {script} }})().then((v) => done({{ ok: v ?? null }}), \
             (e) => done({{ failed: String(e) }}));"
        );
        let answer = self.command("execute/async", &json!({ "script": script, "args": [] }))?;
        match answer["failed"].as_str() {
            Some(failed) => Err(nonsense(failed)),
            None => Ok(answer["ok"].clone()),
        }
    }

    /// Waits until an expression is true of the page: its value.
    ///
    /// # Errors
    /// When it does not come to be.
    pub fn wait(&self, expression: &str) -> Result<Value> {
        let began = Instant::now();
        loop {
            // A page that is on its way has nothing yet that the expression names.
            let outcome = self.run(&format!("return ({expression});"));
            match outcome {
                Ok(value) if value != false && value != "" && value != 0 && !value.is_null() => return Ok(value),
                outcome if began.elapsed() > PATIENCE => {
                    let log = format!("{outcome:?}; on the page: {}", self.text());
                    let (name, waited_for) = ("the page".to_owned(), expression.to_owned());
                    return Err(Error::Timeout { name, waited_for, limit: PATIENCE, log });
                }
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// What can be read on the page.
    pub fn text(&self) -> String {
        let text = self.run("return document.body.innerText;").unwrap_or_default();
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Clicks what a selector finds first, once it can be clicked.
    ///
    /// # Errors
    /// When there is none.
    pub fn click(&self, selector: &str) -> Result<()> {
        self.act(&json!({ "using": "css selector", "value": selector }), "click", &json!({}))
    }

    /// Clicks the button that is called so.
    ///
    /// # Errors
    /// When there is none.
    pub fn press(&self, name: &str) -> Result<()> {
        let path = format!("//button[normalize-space()='{name}' and not(ancestor::dialog[not(@open)])]");
        self.act(&json!({ "using": "xpath", "value": path }), "click", &json!({}))
    }

    /// Writes in a field, in place of what it has.
    ///
    /// # Errors
    /// When there is none.
    pub fn write(&self, selector: &str, text: &str) -> Result<()> {
        let found = json!({ "using": "css selector", "value": selector });
        self.act(&found, "clear", &json!({}))?;
        self.act(&found, "value", &json!({ "text": text }))
    }

    /// Presses keys, all down before the first is up.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn keys(&self, keys: &[&str]) -> Result<()> {
        let turn = |kind: &'static str| move |key: &&str| json!({ "type": kind, "value": key });
        let actions: Vec<Value> =
            keys.iter().map(turn("keyDown")).chain(keys.iter().rev().map(turn("keyUp"))).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.command("actions", &json!({ "actions": [keyboard] })).map(drop)
    }

    /// Pastes a text, where the keyboard's focus is or on the page itself, out of the clipboard as a user does: it is cut out of the field
    /// that `selector` finds.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn paste(&self, selector: &str, text: &str) -> Result<()> {
        self.write(selector, text)?;
        self.keys(&[CONTROL, "a"])?;
        self.keys(&[CONTROL, "x"])?;
        self.run("document.activeElement.blur();")?;
        self.keys(&[CONTROL, "v"])
    }

    /// Drops a file in the middle of the page.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn drop_file(&self, file: &Path) -> Result<()> {
        let data = json!({ "items": [], "files": [file], "dragOperationsMask": 1 });
        for kind in ["dragEnter", "dragOver", "drop"] {
            self.devtools("Input.dispatchDragEvent", &json!({ "type": kind, "x": 400, "y": 400, "data": data }))?;
        }
        Ok(())
    }

    /// Has pages be light or dark.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn set_dark(&self, dark: bool) -> Result<()> {
        let value = if dark { "dark" } else { "light" };
        // What moves would be caught half-way by whoever looks at colours.
        let features = json!([
            { "name": "prefers-color-scheme", "value": value },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", &json!({ "features": features })).map(drop)
    }

    /// Has the window be of this size, in pixels.
    ///
    /// # Errors
    /// When the browser refuses.
    pub fn resize(&self, width: u32, height: u32) -> Result<()> {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size).map(drop)
    }

    /// Keeps what is seen as a PNG.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn screenshot(&self, to: &Path) -> Result<()> {
        let shot = self.ask("GET", &format!("/session/{}/screenshot", self.session), &Value::Null)?;
        let bytes = shot.as_str().and_then(from_base64).ok_or_else(|| nonsense("no picture"))?;
        std::fs::write(to, bytes).map_err(Error::file(to))
    }

    /// What axe-core finds wrong with the page for people with disabilities: a line for each rule that it breaks.
    ///
    /// # Errors
    /// When axe-core is not installed.
    pub fn accessibility(&self) -> Result<Vec<String>> {
        let path = axe();
        let source = std::fs::read_to_string(&path).map_err(|_| Error::Missing {
            what: path.display().to_string(),
            remedy: "`make deps` installs it".into(),
        })?;
        // The page's own rules let nothing run that is not its own; this way goes past them.
        self.devtools(
            "Runtime.evaluate",
            &json!({ "expression": format!("window.axe || (() => {{ {source} }})();") }),
        )?;
        let found = self.run_async(
            "const told = await axe.run(document, { resultTypes: ['violations'] }); \
             return told.violations.map((rule) => `${rule.id} (${rule.impact}): ${rule.help}: ` \
               + rule.nodes.slice(0, 3).map((node) => `${node.target} ${node.html.slice(0, 160)} ${node.failureSummary}`).join('; '));",
        )?;
        Ok(found.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Asks Chromium by its own protocol.
    ///
    /// # Errors
    /// When it refuses.
    pub fn devtools(&self, method: &str, params: &Value) -> Result<Value> {
        self.command("goog/cdp/execute", &json!({ "cmd": method, "params": params }))
    }

    /// Does something to an element, once it is there and takes it.
    fn act(&self, found: &Value, what: &str, body: &Value) -> Result<()> {
        let began = Instant::now();
        loop {
            let done = self.command("element", found).and_then(|element| {
                let id = element[ELEMENT].as_str().unwrap_or_default();
                self.command(&format!("element/{id}/{what}"), body)
            });
            match done {
                Err(Error::Nonsense { what, .. })
                    if PASSING.iter().any(|passing| what.starts_with(passing)) && began.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(LOOK_EVERY);
                }
                done => return done.map(drop),
            }
        }
    }

    fn command(&self, what: &str, body: &Value) -> Result<Value> {
        self.ask("POST", &format!("/session/{}/{what}", self.session), body)
    }

    fn ask(&self, method: &str, target: &str, body: &Value) -> Result<Value> {
        let failed = |error: std::io::Error| nonsense(&format!("{method} {target}: {error}; {}", self.driver.log()));
        let (status, answer) = exchange(self.address, method, target, body).map_err(failed)?;
        let mut answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        if status == 200 {
            return Ok(answer["value"].take());
        }
        let text = |name: &str| answer["value"][name].as_str().unwrap_or_default();
        Err(nonsense(&format!("{}: {}", text("error"), text("message"))))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser; where it does not, that ends with the pipe between them.
        let _ = self.ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
    }
}

fn nonsense(what: &str) -> Error {
    Error::Nonsense { name: "chromedriver".into(), what: what.to_owned() }
}

/// Where `make deps` puts axe-core.
fn axe() -> PathBuf {
    checkout().join(".deps/axe/node_modules/axe-core/axe.min.js")
}

/// `ChromeDriver was started successfully on port 38541.`
fn port_of(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("started successfully on port ")?;
    rest.trim_end_matches('.').parse().ok()
}

/// One request, and the status and body of its answer.
fn exchange(to: SocketAddr, method: &str, target: &str, body: &Value) -> std::io::Result<(u16, Vec<u8>)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(COMMAND_LIMIT))?;
    let head = format!(
        "{method} {target} HTTP/1.1\r\nHost: {to}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let (mut status, mut length, mut line) = (0, 0, String::new());
    while reader.read_line(&mut line)? > 0 && line != "\r\n" {
        match line.split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.trim().parse().unwrap_or(0);
            }
            None => status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0),
            Some(_) => {}
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((status, body))
}

/// RFC 4648 §4.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.trim_end_matches('=').bytes() {
        let value = LETTERS.iter().position(|known| *known == letter)? as u32;
        (bits, count) = ((bits << 6 | value) & 0xffff, count + 6);
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_says_is_understood() {
        assert_eq!(port_of("ChromeDriver was started successfully on port 38541."), Some(38541));
        assert_eq!(port_of("Starting ChromeDriver 1 on port 0"), None);
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9vYmFy", b"foobar"), ("/+8=", &[255, 239])]
        {
            assert_eq!(from_base64(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(from_base64("Z g"), None);
    }
}
