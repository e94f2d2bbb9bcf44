//! The structure of the workspace: which crate may depend on which, and how far files of a crate may depend on each
//! other in a circle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Floors of the house: a crate depends only on crates of lower floors. ARCHITECTURE.md draws the same picture.
const FLOORS: &[&[&str]] = &[
    &["gguf"],
    &["plan", "text", "hub", "testkit"],
    &["cpu", "gpu", "grammar", "model"],
    &["quantize", "runtime"],
    &["engine"],
    &["rocmforge", "evaluate", "profile"],
    &["external", "bench"],
    &["report"],
    &["server"],
    &["cli", "fuzz"],
    &["xtask"],
];

/// Files of a crate that may import each other in a circle, at most.
const MAX_CIRCLE: usize = 12;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The name of a workspace crate, without its prefix.
fn short(name: &str) -> &str {
    name.strip_prefix("rocmforge-").unwrap_or(name)
}

fn floor(name: &str) -> usize {
    let found = FLOORS
        .iter()
        .position(|crates| crates.contains(&short(name)));
    found.unwrap_or_else(|| panic!("{name} has no floor; give it one here and in ARCHITECTURE.md"))
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn crates_depend_only_on_lower_floors() {
    let packages = packages();
    let names: BTreeSet<&str> = packages
        .iter()
        .map(|p| p["name"].as_str().unwrap())
        .collect();
    assert!(names.len() > 10, "{names:?}");
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            if !names.contains(on) {
                continue;
            }
            // Tests may use any crate that does not lead back here; cargo sees to that for libraries.
            let is_for_tests = dependency["kind"].as_str() == Some("dev");
            if !is_for_tests {
                assert!(floor(on) < floor(name), "{name} must not depend on {on}");
            }
        }
    }
}

#[test]
fn files_of_a_crate_form_no_large_circle() {
    for package in packages() {
        let manifest = PathBuf::from(package["manifest_path"].as_str().unwrap());
        let src = manifest.with_file_name("src");
        let circle = largest_circle(&Modules::read(&src).imports());
        assert!(
            circle.len() <= MAX_CIRCLE,
            "{} files of {} import each other in a circle: {circle:?}",
            circle.len(),
            package["name"],
        );
    }
}

#[test]
fn a_circle_is_found() {
    let graph = |edges: &[(usize, usize)]| {
        let mut imports: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); 6];
        for &(from, to) in edges {
            imports[from].insert(to);
        }
        let names = (0..6).map(|i| i.to_string()).collect();
        largest_circle(&Imports { names, imports })
    };
    assert_eq!(graph(&[(0, 1), (1, 2), (2, 3)]).len(), 1);
    assert_eq!(graph(&[(0, 1), (1, 2), (2, 0), (3, 0)]), ["0", "1", "2"]);
}

#[test]
fn imports_are_read_from_sources() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\npub use b::Thing;\n");
    write(
        "a.rs",
        "use crate::{Thing, b::inner::{self, X}};\nuse std::fmt;\n",
    );
    write(
        "b/mod.rs",
        "mod inner;\npub struct Thing;\n// use crate::a::Nothing;\n",
    );
    write(
        "b/inner.rs",
        "pub fn f() { super::super::a::g() }\n#[cfg(test)]\nmod tests { use crate::b::Thing; }\n",
    );
    let Imports { names, imports } = Modules::read(dir.path()).imports();
    let named: BTreeSet<(&str, &str)> = names
        .iter()
        .zip(&imports)
        .flat_map(|(from, to)| to.iter().map(|&to| (from.as_str(), names[to].as_str())))
        .collect();
    assert_eq!(
        named,
        BTreeSet::from([("a", "b"), ("a", "b::inner"), ("b::inner", "a")])
    );
}

/// The modules of a crate that are files, by path (`a::b`; empty for the root).
struct Modules {
    sources: BTreeMap<String, String>,
    /// Names that a module hands on from another: `(module, name) -> path`.
    handed_on: HashMap<(String, String), String>,
}

/// Which file imports which, by index.
struct Imports {
    names: Vec<String>,
    imports: Vec<BTreeSet<usize>>,
}

impl Modules {
    fn read(src: &Path) -> Modules {
        let mut sources = BTreeMap::new();
        read_folder(src, "", &mut sources);
        let mut modules = Modules {
            sources,
            handed_on: HashMap::new(),
        };
        for module in modules.sources.keys().cloned().collect::<Vec<_>>() {
            for path in uses(&modules.sources[&module]).filter(|path| path.is_public) {
                let Some(full) = absolute(&module, &path.path, &modules) else {
                    continue;
                };
                let name = full.rsplit("::").next().unwrap_or_default().to_string();
                modules.handed_on.insert((module.clone(), name), full);
            }
        }
        modules
    }

    fn imports(&self) -> Imports {
        let names: Vec<String> = self.sources.keys().cloned().collect();
        let index = |name: &str| names.iter().position(|known| known == name).unwrap();
        let imports = self.sources.iter().map(|(module, source)| {
            let private = uses(source).filter(|path| !path.is_public);
            let paths = private.map(|path| path.path).chain(inline_paths(source));
            let found = paths.filter_map(|path| self.file_of(&absolute(module, &path, self)?));
            found
                .filter(|found| found != module)
                .map(|found| index(&found))
                .collect()
        });
        let imports = imports.collect();
        Imports { names, imports }
    }

    /// The file that defines what `path` names, through the modules that hand it on.
    fn file_of(&self, path: &str) -> Option<String> {
        let mut path = path.to_string();
        for _ in 0..8 {
            let module = self.longest_module(&path);
            let rest = path[module.len()..].trim_start_matches("::");
            let name = rest.split("::").next().unwrap_or_default();
            match self.handed_on.get(&(module.clone(), name.to_string())) {
                Some(further) if *further != path => path = further.clone(),
                // What the root of a crate defines itself is nobody's circle.
                _ => return (!module.is_empty()).then_some(module),
            }
        }
        None
    }

    fn longest_module(&self, path: &str) -> String {
        let mut module = path;
        loop {
            if self.sources.contains_key(module) {
                return module.to_string();
            }
            module = module.rsplit_once("::").map_or("", |(parent, _)| parent);
        }
    }
}

fn read_folder(dir: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let module = match (prefix, stem.as_str()) {
            ("", "lib" | "main") => String::new(),
            (prefix, "mod") => prefix.to_string(),
            ("", stem) => stem.to_string(),
            (prefix, stem) => format!("{prefix}::{stem}"),
        };
        if path.is_dir() {
            read_folder(&path, &module, sources);
        } else if path.extension().is_some_and(|e| e == "rs") && stem != "tests" {
            let text = fs::read_to_string(&path).unwrap();
            let production = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = production
                .lines()
                .map(|line| line.split("//").next().unwrap_or(""));
            sources.insert(module, lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// A path of a `use` item.
struct UsePath {
    path: String,
    is_public: bool,
}

/// The paths that the `use` items of a file name.
fn uses(source: &str) -> impl Iterator<Item = UsePath> + '_ {
    let items = source.split(';').filter_map(|item| {
        let at = item.find("use ").filter(|&at| {
            let before = item[..at].trim_end();
            before.is_empty() || before.ends_with(['}', ')', '\n', ']']) || before.ends_with("pub")
        })?;
        let is_public =
            item[..at].trim_end().ends_with("pub") || item[..at].trim_end().ends_with("pub(crate)");
        Some((item[at + 4..].trim(), is_public))
    });
    items.flat_map(|(tree, is_public)| {
        let paths = expand(tree).into_iter();
        paths.map(move |path| UsePath { path, is_public })
    })
}

/// The single paths of a tree such as `a::{b, c::{self, d}}`.
fn expand(tree: &str) -> Vec<String> {
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default().trim();
        return vec![path.to_string()];
    };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let (mut depth, mut start) = (0, 0);
    let mut parts = Vec::new();
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[start..]);
    let parts = parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let prefix = prefix.trim();
    parts
        .flat_map(expand)
        .map(|part| match part.as_str() {
            "self" => prefix.trim_end_matches("::").to_string(),
            part => format!("{prefix}{part}"),
        })
        .collect()
}

/// Paths from `crate` or `super` outside of `use` items.
fn inline_paths(source: &str) -> impl Iterator<Item = String> + '_ {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = source.split(move |c| !is_path(c));
    words
        .filter(|word| word.starts_with("crate::") || word.starts_with("super::"))
        .map(|word| word.trim_end_matches(':').to_string())
}

/// `path`, as written in `module`, from the root of the crate; `None` for other crates.
fn absolute(module: &str, path: &str, modules: &Modules) -> Option<String> {
    let mut at = module.to_string();
    let mut rest = path;
    if let Some(after) = rest.strip_prefix("crate::") {
        return Some(after.to_string());
    }
    let is_relative = rest.starts_with("super::") || rest.starts_with("self::");
    while let Some((first, after)) = rest.split_once("::") {
        match first {
            "self" => {}
            "super" => {
                at = at
                    .rsplit_once("::")
                    .map_or(String::new(), |(parent, _)| parent.to_string())
            }
            _ => break,
        }
        rest = after;
    }
    let joined = if at.is_empty() {
        rest.to_string()
    } else {
        format!("{at}::{rest}")
    };
    let first = joined.len() - rest.len() + rest.split("::").next().unwrap_or_default().len();
    (is_relative || modules.sources.contains_key(&joined[..first])).then_some(joined)
}

/// The largest set of files that reach each other.
fn largest_circle(graph: &Imports) -> Vec<String> {
    let n = graph.names.len();
    let reached: Vec<BTreeSet<usize>> = (0..n)
        .map(|start| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
            while let Some(at) = open.pop() {
                open.extend(graph.imports[at].iter().filter(|&&to| seen.insert(to)));
            }
            seen
        })
        .collect();
    let circles = (0..n).map(|a| {
        let in_circle = |&b: &usize| a == b || (reached[a].contains(&b) && reached[b].contains(&a));
        (0..n).filter(in_circle).collect::<Vec<_>>()
    });
    let largest = circles.max_by_key(Vec::len).unwrap_or_default();
    largest
        .into_iter()
        .map(|i| graph.names[i].clone())
        .collect()
}
