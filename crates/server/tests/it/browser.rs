//! Headless Chromium, driven over a pipe by the Chrome DevTools Protocol.
//!
//! `ROCMFORGE_CHROMIUM` names the browser; without it and without `chromium` on `PATH`, tests are skipped.
//! `ROCMFORGE_SCREENSHOTS` names a folder for pictures of the pages.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::page::decoded;

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: mpsc::Receiver<Value>,
    n_sent: u64,
    session: Option<String>,
    /// Errors and warnings of the console.
    pub(crate) problems: Vec<String>,
    /// Addresses of all requests.
    pub(crate) requests: Vec<String>,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Opens a page; `None` without a browser.
    pub(crate) fn open(url: &str) -> Option<Browser> {
        let program = std::env::var_os("ROCMFORGE_CHROMIUM").unwrap_or("chromium".into());
        let profile = tempfile::tempdir().unwrap();
        // The browser reads commands from descriptor 3 and writes to 4.
        let child = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<&0 4>&1 </dev/null >/dev/null"#, "sh"])
            .arg(&program)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .args([
                "--disable-sync",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, from) = mpsc::channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let _ = sender.send(serde_json::from_slice(&message).unwrap());
            }
        });
        let mut browser = Browser {
            to: child.stdin.take().unwrap(),
            child,
            from,
            n_sent: 0,
            session: None,
            problems: Vec::new(),
            requests: Vec::new(),
            _profile: profile,
        };
        let Some(target) = browser.try_call("Target.createTarget", &json!({"url": "about:blank"}))
        else {
            eprintln!("skipped: no Chromium on PATH; ROCMFORGE_CHROMIUM names one");
            return None;
        };
        let attached = browser.call(
            "Target.attachToTarget",
            &json!({"targetId": target["targetId"], "flatten": true}),
        );
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_string());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser.go(url);
        Some(browser)
    }

    /// Loads an address and waits for its document.
    pub(crate) fn go(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Sends a command and returns its result; `None` if the browser has ended.
    fn try_call(&mut self, method: &str, params: &Value) -> Option<Value> {
        self.n_sent += 1;
        let mut message = json!({"id": self.n_sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).ok()?;
        loop {
            let message = self.from.recv_timeout(Duration::from_secs(60)).ok()?;
            if message["id"] == self.n_sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return Some(message["result"].clone());
            }
            self.note(&message);
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        let result = self.try_call(method, params);
        result.unwrap_or_else(|| panic!("the browser does not answer {method}"))
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap();
                self.requests.push(url.to_string());
            }
            "Runtime.exceptionThrown" => self.problems.push(params.to_string()),
            "Runtime.consoleAPICalled" => self.problems.push(params.to_string()),
            "Log.entryAdded" => self.problems.push(params["entry"].to_string()),
            _ => {}
        }
    }

    /// Returns the value of an expression, after its promise.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression,
            "awaitPromise": true,
            "returnByValue": true,
            "userGesture": true,
        });
        let result = self.call("Runtime.evaluate", &params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, condition: &str) {
        for _ in 0..400 {
            if self.eval(&format!("Boolean({condition})")) == true {
                return;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        let text = self.eval("document.body.innerText");
        panic!("{condition} stays false: {text}\n{:?}", self.problems);
    }

    /// Presses Enter.
    pub(crate) fn press_enter(&mut self) {
        for kind in ["keyDown", "keyUp"] {
            let params = json!({
                "type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13,
            });
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Checks that the page fits a window of this width, in both themes, and keeps pictures of it.
    pub(crate) fn check_sizes(&mut self, name: &str) {
        for (width, height) in [(1280, 860), (375, 812)] {
            let size = json!({
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
            });
            self.call("Emulation.setDeviceMetricsOverride", &size);
            for theme in ["light", "dark"] {
                let features = json!([{"name": "prefers-color-scheme", "value": theme}]);
                self.call(
                    "Emulation.setEmulatedMedia",
                    &json!({ "features": features }),
                );
                self.wait_for(&format!("innerWidth === {width}"));
                let needed = self.eval("document.documentElement.scrollWidth");
                assert!(
                    needed.as_u64() <= Some(width),
                    "{name} needs {needed} of {width} pixels"
                );
                self.keep(&format!("{name}-{width}-{theme}.png"));
            }
        }
    }

    fn keep(&mut self, name: &str) {
        if let Some(folder) = std::env::var_os("ROCMFORGE_SCREENSHOTS") {
            let picture = self.call("Page.captureScreenshot", &json!({}));
            let bytes = decoded(picture["data"].as_str().unwrap());
            std::fs::write(Path::new(&folder).join(name), bytes).unwrap();
        }
    }

    /// Checks that the console is empty and that every request went to `url`.
    pub(crate) fn check_quiet(&mut self, url: &str) {
        // Takes what the browser has told so far.
        self.eval("0");
        assert_eq!(self.problems, [""; 0]);
        let is_foreign =
            |request: &&String| !request.starts_with(url) && !request.starts_with("data:");
        let foreign: Vec<&String> = self.requests.iter().filter(is_foreign).collect();
        assert_eq!(foreign, [""; 0]);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.try_call("Browser.close", &json!({}));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
