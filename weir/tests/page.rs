//! The page in a real browser, headless Chromium: what it shows is what the status says, a backend is drained
//! by keyboard and after a question, a phone needs no scrolling sideways, and whoever may only look finds no button
//! that changes anything. WEIR_SHOTS=DIRECTORY keeps pictures.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{WEB4, WEIR, eventually};
use serde_json::{Value, json};
use weir_lab::{BalancerSpec, NetNs};

const PATIENCE: Duration = Duration::from_secs(120);

/// A browser, spoken to as the W3C's WebDriver says.
struct Browser<'a> {
    from: &'a NetNs,
    driver: Child,
    session: String,
}

impl Drop for Browser<'_> {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            let _ = call(self.from, "DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// A request to the driver; its answer's value.
fn call(from: &NetNs, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let at = "127.0.0.1:9515".parse().unwrap();
    let stream = from.enter(|| TcpStream::connect_timeout(&at, PATIENCE)).unwrap();
    let mut stream = stream.map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = if method == "POST" { body.to_string() } else { String::new() };
    let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let head =
        format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    let mut part = [0; 65_536];
    // The driver keeps connections open: as much as it says.
    loop {
        let length = stream.read(&mut part).map_err(|error| error.to_string())?;
        answer.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&answer);
        let whole = text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
            let head = head.to_ascii_lowercase();
            let says = head.lines().find_map(|line| line.strip_prefix("content-length:"));
            says.is_some_and(|says| says.trim().parse() == Ok(body.len()))
        });
        if whole || length == 0 {
            let body = text.split_once("\r\n\r\n").map(|(_, body)| body).unwrap_or_default();
            let value: Value =
                serde_json::from_str(body).map_err(|error| format!("{error}: {text}"))?;
            let value = value["value"].clone();
            return if value["error"].is_string() { Err(value.to_string()) } else { Ok(value) };
        }
    }
}

impl<'a> Browser<'a> {
    fn start(from: &'a NetNs) -> Self {
        let driver = from
            .command("chromedriver")
            .unwrap()
            .arg("--port=9515")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Debian's chromium-driver");
        let mut browser = Self { from, driver, session: String::new() };
        eventually("the driver answers", || call(from, "GET", "/status", &Value::Null).is_ok());
        let arguments =
            ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" }, "goog:chromeOptions": { "args": arguments },
        } } });
        let session = call(from, "POST", "/session", &wanted).expect("a session");
        browser.session = session["sessionId"].as_str().expect("its name").to_owned();
        browser
    }

    fn ask(&self, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        call(self.from, "POST", &path, body).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn run(&self, script: &str) -> Value {
        self.ask("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    fn press(&self, key: &str) {
        let keys = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        self.ask(
            "/actions",
            &json!({ "actions": [{ "type": "key", "id": "keys", "actions": keys }] }),
        );
    }

    fn cdp(&self, command: &str, parameters: Value) -> Value {
        self.ask("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    fn look(&self, name: &str, width: u32, dark: bool) {
        let theme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": features }));
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
        self.cdp("Emulation.setDeviceMetricsOverride", size);
        let Ok(folder) = std::env::var("WEIR_SHOTS") else { return };
        std::thread::sleep(Duration::from_secs(1));
        let whole = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.cdp("Page.captureScreenshot", whole)["data"].clone();
        let path = std::path::Path::new(&folder).join(format!("{name}.png.base64"));
        std::fs::write(path, picture.as_str().unwrap_or_default()).unwrap();
    }
}

#[test]
fn a_browser_shows_and_drains() {
    let _alone = common::alone();
    let lab = common::lab(3);
    let lines = "web = \"127.0.0.1:8080\"\nweb_role = \"operate\"\n";
    let balancer = common::start_spec(
        &lab,
        BalancerSpec { balancer_lines: lines.into(), ..BalancerSpec::new(WEIR, 3) },
    );
    let _held = common::hold(&lab, WEB4, 60);
    let browser = Browser::start(lab.balancer());
    browser.ask("/url", &json!({ "url": "http://127.0.0.1:8080/" }));
    let text = |id: &str| {
        let text = browser.run(&format!("return document.getElementById('{id}').textContent"));
        text.as_str().unwrap_or_default().to_owned()
    };
    eventually("the page is live", || text("link") == "live");
    let status = balancer.status().unwrap();
    assert_eq!(text("name"), status["name"].as_str().unwrap());
    let services = text("services");
    for service in status["services"].as_array().unwrap() {
        let backends = service["backends"].as_array().unwrap();
        for one in backends.iter().chain([service]) {
            assert!(services.contains(one["name"].as_str().unwrap()), "{services}");
        }
    }
    eventually("connections are shown", || {
        let shown =
            browser.run("return document.querySelector('[data-of=states] .num').textContent");
        shown.as_str().and_then(|shown| shown.trim().parse::<u64>().ok()).is_some_and(|n| n >= 60)
    });
    // The line of the last hour has a point every ten seconds, and goes from one to the next.
    eventually("rates are drawn", || {
        let line = "const line = document.querySelector('#big .line'); return line && line.getAttribute('d')";
        browser.run(line).as_str().is_some_and(|path| path.starts_with('M') && path.contains('L'))
    });
    // Whoever hears the page: everything that can be pressed has a name, pictures say what they show.
    let nameless = browser.run(
        "return [...document.querySelectorAll('button, summary, [role=img]')].filter(e => \
         e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim())).length",
    );
    assert_eq!(nameless, 0);
    // By keyboard alone: to the button, the question, which begins with Cancel, and the answer.
    let name = common::service(&status, "web4")["backends"][0]["name"].as_str().unwrap().to_owned();
    let drain = format!("Drain {name} of web4");
    let press_drain = || {
        browser.run(&format!("document.querySelector('[aria-label=\"{drain}\"]').focus()"));
        browser.press("\u{e007}");
        eventually("it asks", || browser.run("return document.getElementById('ask').open") == true);
        assert_eq!(browser.run("return document.activeElement.id"), "no");
    };
    press_drain();
    browser.press("\u{e007}");
    eventually("it is gone", || browser.run("return document.getElementById('ask').open") == false);
    let state = || {
        let status = balancer.status().unwrap();
        common::backend(common::service(&status, "web4"), &name)["state"].clone()
    };
    assert_eq!(state(), "up", "a question that was not answered with yes");
    press_drain();
    browser.press("\u{e004}");
    browser.press("\u{e007}");
    eventually("it drains", || state() == "draining");
    eventually("the page says so", || {
        text("changes").contains("drains") && text("notice").contains("drains")
    });
    // And what it did to connections.
    let what = browser.run(
        "return [...document.querySelectorAll('#changes li')].find(e => \
         e.textContent.includes('drains')).querySelector('.who').textContent",
    );
    let what = what.as_str().unwrap_or_default();
    assert!(what.contains(" connections there, none broken"), "{what}");
    let undrain =
        format!("return !!document.querySelector('[aria-label=\"Undrain {name} of web4\"]')");
    eventually("it can be undone", || browser.run(&undrain) == true);
    for (picture, width, dark) in
        [("light", 1280, false), ("dark", 1280, true), ("phone", 390, true)]
    {
        browser.look(picture, width, dark);
        let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
        assert!(wide.as_i64().is_some_and(|wide| wide <= 0), "{picture}: {wide} pixels too wide");
    }
    // Names that are no markup, and nothing that the policy of the page forbids.
    let log = browser.ask("/se/log", &json!({ "type": "browser" }));
    assert_eq!(log.as_array().map(Vec::len), Some(0), "{log}");
    // The process dies: the page says so, and goes on with the next one.
    balancer.kill();
    eventually("the page says that it is gone", || text("link").contains("no connection"));
    balancer.launch().unwrap();
    eventually("the page is live again", || text("link") == "live");
    // The next one lets whoever reaches it look, and nothing else.
    balancer.kill();
    let file = std::fs::read_to_string(balancer.config()).unwrap();
    let only_looks = file.replace("web_role = \"operate\"", "web_role = \"read\"");
    assert_ne!(file, only_looks);
    std::fs::write(balancer.config(), only_looks).unwrap();
    balancer.launch().unwrap();
    browser.ask("/url", &json!({ "url": "http://127.0.0.1:8080/" }));
    let count = |what: &str| {
        browser.run(&format!("return document.querySelectorAll('{what}').length")).as_u64()
    };
    eventually("backends are shown", || count("#services tbody tr") > Some(0));
    assert!(text("me").ends_with("may look."), "{}", text("me"));
    assert_eq!(count("#services tbody button"), Some(0), "buttons of somebody who may only look");
}
