//! The page in a headless Chromium: what its scripts draw, what they log, and what is on the screen.
//!
//! `ROCMFORGE_CHROMIUM` names the browser; without it one is looked for on `PATH`, and without one the tests skip.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rocmforge_profile::render::flamegraph;
use rocmforge_profile::report::Profile;

use crate::fixture;
use crate::page::html;

fn chromium() -> Option<PathBuf> {
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

/// What became of a page.
struct Shown {
    /// The document after its scripts ran.
    dom: String,
    /// Lines that the page logged.
    console: Vec<String>,
    picture: Picture,
}

struct Picture {
    width: usize,
    /// Red, green, blue; row by row.
    pixels: Vec<[u8; 3]>,
}

#[derive(Clone, Copy, PartialEq)]
enum Theme {
    Light,
    Dark,
}

/// Opens `content` as a file named `name` in a window of `size`.
fn show(browser: &Path, name: &str, content: &str, size: [usize; 2], theme: Theme) -> Shown {
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

/// A browser that hangs fails the test instead of holding it up.
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
        let decoder = png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!(info.bit_depth, png::BitDepth::Eight);
        let samples = info.color_type.samples();
        assert!(samples >= 3, "{:?}", info.color_type);
        Picture {
            width: info.width as usize,
            pixels: bytes[..info.buffer_size()]
                .chunks_exact(samples)
                .map(|pixel| [pixel[0], pixel[1], pixel[2]])
                .collect(),
        }
    }

    /// Pixels of each colour.
    fn colours(&self) -> HashMap<[u8; 3], usize> {
        self.pixels
            .iter()
            .fold(HashMap::new(), |mut colours, pixel| {
                *colours.entry(*pixel).or_default() += 1;
                colours
            })
    }

    fn height(&self) -> usize {
        self.pixels.len() / self.width
    }
}

/// Value of an attribute that the page's scripts set when they have drawn.
fn drawn(dom: &str, after: &str) -> Option<usize> {
    let rest = &dom[dom.find(after)? + after.len()..];
    rest[..rest.find('"')?].parse().ok()
}

/// The colours of the style: `k0` to `k2`, and the panel's.
const LIGHT: [[u8; 3]; 4] = [
    [0x34, 0x66, 0xcc],
    [0xb8, 0x5c, 0x00],
    [0x1a, 0x7d, 0x58],
    [0xff, 0xff, 0xff],
];
const DARK: [[u8; 3]; 4] = [
    [0x6f, 0x9f, 0xf5],
    [0xf3, 0xa0, 0x4d],
    [0x4f, 0xc4, 0x95],
    [0x1a, 0x1e, 0x24],
];

/// Rows that both do arithmetic and need memory.
fn n_dots(profile: &Profile) -> usize {
    let rows = profile.phases.iter().flat_map(|phase| &phase.ops);
    rows.filter(|row| row.bytes > 0 && row.i8_ops + row.f32_ops > 0)
        .count()
}

#[test]
fn the_page_draws_its_plots() {
    let Some(browser) = chromium() else { return };
    for (profile, size, theme, [main, second, third, panel]) in [
        (fixture::cpu(), [1280, 4200], Theme::Light, LIGHT),
        (fixture::gpu(), [1280, 5200], Theme::Dark, DARK),
        (fixture::cpu(), [420, 7000], Theme::Light, LIGHT),
    ] {
        let shown = show(&browser, "page.html", &html(&profile), size, theme);
        assert_eq!(shown.console, Vec::<String>::new());
        assert_eq!(
            drawn(&shown.dom, "id=\"roofline-plot\" data-drawn=\""),
            Some(n_dots(&profile))
        );
        assert_eq!(
            drawn(&shown.dom, "id=\"timeline-plot\" data-drawn=\""),
            Some(profile.timeline.len())
        );
        assert!(drawn(&shown.dom, "data-tables=\"").unwrap() >= 11 + 2 * 12);

        let picture = &shown.picture;
        assert_eq!([picture.width, picture.height()], size);
        let colours = picture.colours();
        let count = |colour: [u8; 3]| colours.get(&colour).copied().unwrap_or(0);
        assert!(colours.len() > 300, "only {} colours", colours.len());
        assert!(
            count(panel) > picture.pixels.len() / 3,
            "the theme's panels are not there"
        );
        // The timeline has rows of 17 pixels over the whole width, most of them of the first colour.
        assert!(count(main) > size[0] * 17 / 2, "{}", count(main));
        assert!(
            count(second) > 100 && count(third) > 100,
            "{} {}",
            count(second),
            count(third)
        );
        // The roofline's marks let the panel shine through.
        let mixed =
            |i: usize| (f64::from(main[i]) * 0.72 + f64::from(panel[i]) * 0.28).round() as i32;
        let near = |pixel: &[u8; 3]| (0..3).all(|i| (i32::from(pixel[i]) - mixed(i)).abs() <= 1);
        let marks = picture.pixels.iter().filter(|pixel| near(pixel)).count();
        assert!(marks > 200, "{marks} pixels of marks");
    }
}

#[test]
fn pages_of_any_profile_open_without_an_error() {
    let Some(browser) = chromium() else { return };
    for profile in [fixture::bare(), fixture::hostile(&fixture::gpu())] {
        let shown = show(
            &browser,
            "page.html",
            &html(&profile),
            [1000, 800],
            Theme::Light,
        );
        assert_eq!(shown.console, Vec::<String>::new());
        assert!(
            shown.dom.contains("data-tables="),
            "the scripts did not run"
        );
        let spans = drawn(&shown.dom, "id=\"timeline-plot\" data-drawn=\"");
        assert_eq!(spans.unwrap_or(0), profile.timeline.len());
    }
}

/// The tests above would see a script that fails, one that is not the page's, and a picture from elsewhere.
#[test]
fn the_policy_stops_what_is_not_the_page_s() {
    let Some(browser) = chromium() else { return };
    let page = html(&fixture::bare());
    let foreign = "<script>document.title = 'harm'</script><img src=\"file:///harm.png\"></main>";
    let shown = show(
        &browser,
        "page.html",
        &page.replace("</main>", foreign),
        [600, 400],
        Theme::Light,
    );
    assert_eq!(shown.console.len(), 2, "{:?}", shown.console);
    assert!(!shown.dom.contains("<title>harm"));
}

#[test]
fn the_flame_graph_opens_in_a_browser() {
    let Some(browser) = chromium() else { return };
    for (profile, theme, background) in [
        (fixture::cpu(), Theme::Light, [0xff, 0xff, 0xff]),
        (
            fixture::hostile(&fixture::gpu()),
            Theme::Dark,
            [0x12, 0x15, 0x19],
        ),
    ] {
        let mut svg = Vec::new();
        flamegraph::write(&profile, &mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let frames = svg.matches("class=\"frame ").count();
        let shown = show(&browser, "flame.svg", &svg, [1240, 220], theme);
        assert_eq!(shown.console, Vec::<String>::new());
        assert_eq!(drawn(&shown.dom, "data-frames=\""), Some(frames));
        let colours = shown.picture.colours();
        assert!(
            colours.len() > 50 && colours[&background] > 1000,
            "{} colours",
            colours.len()
        );
    }
}
