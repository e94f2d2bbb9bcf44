//! Opens a file in headless Chromium and returns the document after its scripts ran, the console log and a screenshot.
//!
//! `ROCMFORGE_CHROMIUM` names the browser; otherwise it is searched in `PATH`, and the tests are skipped without one.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ROCMFORGE_CHROMIUM") {
        return Some(path.into());
    }
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
    ];
    let folders: Vec<_> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let found = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no Chromium on PATH; ROCMFORGE_CHROMIUM names one");
    }
    found
}

/// An opened page.
pub(crate) struct Shown {
    /// The document after its scripts ran.
    pub(crate) dom: String,
    /// Lines in the console log.
    pub(crate) console: Vec<String>,
    pub(crate) picture: Picture,
}

pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Number of pixels per colour.
    pub(crate) colours: HashMap<[u8; 3], usize>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Theme {
    Light,
    Dark,
}

/// Opens `content` as a file named `name` in a window of `size`.
pub(crate) fn show(
    browser: &Path,
    name: &str,
    content: &str,
    size: [usize; 2],
    theme: Theme,
) -> Shown {
    let folder = tempfile::tempdir().unwrap();
    let (file, screenshot) = (
        folder.path().join(name),
        folder.path().join("screenshot.png"),
    );
    let [dom, log] = ["dom", "log"].map(|name| folder.path().join(name));
    fs::write(&file, content).unwrap();
    let mut command = Command::new(browser);
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
        ])
        .args([
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            "--force-device-scale-factor=1",
        ])
        .args([
            "--enable-logging=stderr",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .arg(format!("--window-size={},{}", size[0], size[1]))
        .arg(format!("--screenshot={}", screenshot.display()));
    if theme == Theme::Dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let child = command
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .stdout(fs::File::create(&dom).unwrap())
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", browser.display()));
    wait(child);
    let log = String::from_utf8_lossy(&fs::read(&log).unwrap()).into_owned();
    assert!(screenshot.is_file(), "no screenshot: {log}");
    if let Some(kept) = std::env::var_os("ROCMFORGE_SCREENSHOTS") {
        let theme = if theme == Theme::Dark {
            "dark"
        } else {
            "light"
        };
        fs::copy(
            &screenshot,
            Path::new(&kept).join(format!("{name}-{}-{theme}.png", size[0])),
        )
        .unwrap();
    }
    Shown {
        dom: fs::read_to_string(&dom).unwrap(),
        console: log
            .lines()
            .filter(|line| line.contains("CONSOLE"))
            .map(str::to_owned)
            .collect(),
        picture: Picture::read(&screenshot),
    }
}

/// A hanging browser fails the test instead of blocking it.
fn wait(mut child: Child) {
    let deadline = Instant::now() + Duration::from_secs(180);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the browser did not finish");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Picture {
    fn read(path: &Path) -> Picture {
        let mut decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap()));
        decoder.set_transformations(png::Transformations::ALPHA);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!(info.bit_depth, png::BitDepth::Eight);
        assert_eq!(info.color_type, png::ColorType::Rgba);
        let (pixels, _) = bytes[..info.buffer_size()].as_chunks::<4>();
        let mut colours = HashMap::new();
        // Most pixels are of the colour before.
        for run in pixels.chunk_by(|a, b| a == b) {
            let [r, g, b, _] = run[0];
            *colours.entry([r, g, b]).or_default() += run.len();
        }
        Picture {
            width: info.width as usize,
            height: info.height as usize,
            colours,
        }
    }
}

/// Value of an attribute that the page's scripts set after drawing.
pub(crate) fn drawn(dom: &str, after: &str) -> Option<usize> {
    let rest = &dom[dom.find(after)? + after.len()..];
    rest[..rest.find('"')?].parse().ok()
}
