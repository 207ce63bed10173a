//! What the documentation names exists: files and headings that are linked, paths in code, tests by
//! name, commands of weir with their options, figures, scenarios, cargo's and make's targets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Endings of files that are named in code spans and belong to this repository.
const ENDINGS: [&str; 6] = [".rs", ".h", ".c", ".md", ".toml", ".css"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Paths of the repository's files from its root, without what builds and benches leave there.
fn files() -> BTreeSet<String> {
    fn walk(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).expect("a directory can be read") {
            let path = entry.expect("an entry can be read").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", ".git", "bench-results", "artifacts"].contains(&name.as_str()) {
                    walk(&path, found);
                }
            } else if let Ok(path) = path.strip_prefix(root()) {
                found.insert(path.to_string_lossy().into_owned());
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(root(), &mut found);
    found
}

/// A page of documentation, taken apart.
struct Page {
    path: String,
    /// Code spans, and lines of code blocks.
    code: Vec<String>,
    /// Targets of links.
    links: Vec<String>,
    /// Headings as links name them.
    headings: BTreeSet<String>,
}

impl Page {
    fn of(path: &str) -> Self {
        let (mut code, mut links, mut headings) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut in_block = false;
        for line in read(path).lines() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if in_block {
                let line = line.trim_start().trim_start_matches("$ ");
                // What stands apart behind a command explains it.
                let command =
                    ["weir ", "make ", "cargo "].iter().any(|name| line.starts_with(name));
                let line = if command { line.split("  ").next().unwrap_or_default() } else { line };
                code.push(line.to_owned());
            } else {
                code.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
                links.extend(
                    line.split("](")
                        .skip(1)
                        .filter_map(|rest| rest.split(')').next())
                        .map(str::to_owned),
                );
                if line.starts_with('#') {
                    headings.insert(anchor(line.trim_start_matches('#')));
                }
            }
        }
        Self { path: path.to_owned(), code, links, headings }
    }

    /// A target of a link, seen from this page, as a path from the root.
    fn resolve(&self, target: &str) -> String {
        let mut parts: Vec<&str> = self.path.split('/').collect();
        parts.pop();
        for part in target.split('/') {
            match part {
                ".." => drop(parts.pop()),
                "." | "" => {}
                part => parts.push(part),
            }
        }
        parts.join("/")
    }
}

/// A heading as links name it: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// All pages but the changelog, which also tells of what is gone.
fn pages(files: &BTreeSet<String>) -> Vec<Page> {
    let pages = files.iter().filter(|path| path.ends_with(".md") && *path != "CHANGELOG.md");
    pages.map(|path| Page::of(path)).collect()
}

fn weir(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("weir {arguments:?}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Every fault at once, so that one run shows what to mend.
fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let files = files();
    let pages = pages(&files);
    let mut faults = Vec::new();
    let mut links = 0;
    for page in pages.iter().chain([&Page::of("CHANGELOG.md")]) {
        for link in page.links.iter().filter(|link| !link.contains("://")) {
            links += 1;
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if target.is_empty() { page.path.clone() } else { page.resolve(target) };
            if !is_there(&files, &path) {
                faults.push(format!("{}: link to {link}: no such file", page.path));
            } else if !heading.is_empty()
                && let Some(there) = pages.iter().find(|page| page.path == path)
                && !there.headings.contains(heading)
            {
                faults.push(format!("{}: link to {link}: no such heading", page.path));
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert_none(faults);
}

/// Each finding that `weir doctor` may have has a section of its own.
#[test]
fn every_finding_of_doctor_is_explained() {
    let page = Page::of("docs/troubleshooting.md");
    let mut names = BTreeSet::new();
    for path in files().iter().filter(|path| path.starts_with("crates/") && path.ends_with(".rs")) {
        let text = read(path);
        for verdict in ["Finding::ok(", "Finding::warn(", "Finding::fail("] {
            for call in text.split(verdict).skip(1) {
                let first =
                    call.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next());
                names.extend(first.map(str::to_owned));
            }
        }
    }
    assert!(names.len() > 20, "{names:?}");
    let missing = names.iter().filter(|name| !page.headings.contains(*name));
    assert_none(
        missing.map(|name| format!("docs/troubleshooting.md has no section {name}")).collect(),
    );
    let others = ["findings", "drops", "by-symptom", "when-something-does-not-work"];
    let known = |name: &&String| names.contains(*name) || others.contains(&name.as_str());
    let stray = page.headings.iter().filter(|heading| !known(heading));
    assert_none(
        stray.map(|heading| format!("docs/troubleshooting.md: no finding {heading}")).collect(),
    );
}

/// Each reason for which a packet is not forwarded has a row that says what to do, and no row is about another one.
#[test]
fn every_reason_of_a_drop_is_explained() {
    let page = read("docs/troubleshooting.md");
    let (_, drops) = page.split_once("\n## Drops\n").expect("a section");
    let (drops, _) = drops.split_once("\n## ").expect("the next one");
    let rows = drops.lines().filter_map(|line| line.strip_prefix("| `")?.split_once(" | "));
    let told: Vec<&str> =
        rows.flat_map(|(names, _)| names.split(", ").map(|name| name.trim_matches('`'))).collect();
    let known: Vec<&str> = weir_wire::Reason::ALL.iter().map(|reason| reason.name()).collect();
    let missing = known.iter().filter(|name| !told.contains(name));
    assert_none(missing.map(|name| format!("{name}: no row")).collect());
    let stray = told.iter().filter(|name| !known.contains(name));
    assert_none(stray.map(|name| format!("{name}: no reason")).collect());
    assert_eq!(told.len(), known.len(), "a reason has two rows");
}

#[test]
fn every_page_is_reached_from_the_readme() {
    let readme = Page::of("README.md");
    let linked: BTreeSet<String> = readme.links.iter().map(|link| readme.resolve(link)).collect();
    let missing = files()
        .into_iter()
        .filter(|path| path.starts_with("docs/") && path.ends_with(".md") && !linked.contains(path))
        .map(|path| format!("README.md has no link to {path}"));
    assert_none(missing.collect());
}

/// A file, or a directory with files.
fn is_there(files: &BTreeSet<String>, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let within = format!("{path}/");
    files.contains(path)
        || files.range(within.clone()..).next().is_some_and(|file| file.starts_with(&within))
}

/// Paths in code: from the root, or the end of one that is unique enough for a reader to find.
#[test]
fn paths_in_code_exist() {
    let files = files();
    let tops: BTreeSet<&str> =
        files.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    let (mut faults, mut paths, mut tests) = (Vec::new(), 0, 0);
    for page in pages(&files) {
        for word in page.code.iter().flat_map(|code| code.split_whitespace()) {
            let word = word.trim_matches(|c| "()[],;:'\"".contains(c)).trim_end_matches('.');
            if word.starts_with('/')
                || word.contains("://")
                || word.contains(|c| "*{}<>$|=…".contains(c))
            {
                continue;
            }
            if let Some((file, name)) = word.split_once("::")
                && file.ends_with(".rs")
            {
                tests += 1;
                if !files.contains(file) || !read(file).contains(&format!("fn {name}(")) {
                    faults.push(format!("{}: {word}: no such test", page.path));
                }
                continue;
            }
            let path = if word.starts_with("../") { page.resolve(word) } else { word.to_owned() };
            let top = path.split_once('/').is_some_and(|(top, _)| tops.contains(top));
            if !top && !ENDINGS.iter().any(|ending| path.ends_with(ending)) {
                continue;
            }
            paths += 1;
            let end = format!("/{path}");
            // A placeholder, such as FILE.toml.
            let placeholder =
                !path.contains('/') && !path.contains(|c: char| c.is_lowercase() && c != '.');
            let stem = path.split('.').next().unwrap_or_default();
            let placeholder = placeholder || stem.chars().all(|c| c.is_uppercase());
            if !is_there(&files, &path)
                && !files.iter().any(|file| file.ends_with(&end))
                && !placeholder
            {
                faults.push(format!("{}: {word}: no such file", page.path));
            }
        }
    }
    assert!(paths > 200 && tests > 100, "only {paths} paths and {tests} tests were found");
    assert_none(faults);
}

/// A page that says how few lines a method takes counts them.
#[test]
fn lines_of_the_example_are_counted() {
    let mut counted = 0;
    for line in read("docs/add-a-method.md").lines() {
        let cells: Vec<&str> = line.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, path, what, lines, _] = cells[..] else { continue };
        // Of files that are there already it counts what is added.
        if path.contains('/') && !what.contains("line") && !what.contains("pub mod") {
            assert_eq!(read(path).lines().count().to_string(), lines, "{path}");
            counted += 1;
        }
    }
    assert_eq!(counted, 2);
}

/// Comments and scripts refer to pages as well.
#[test]
fn pages_named_in_sources_exist() {
    let files = files();
    let mut faults = Vec::new();
    let endings = [".rs", ".c", ".h", ".toml"];
    for path in &files {
        if !endings.iter().any(|ending| path.ends_with(ending)) && !path.starts_with("scripts/") {
            continue;
        }
        for rest in read(path).split("docs/").skip(1) {
            let name: String = rest
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
                .collect();
            if let Some(end) = name.find(".md")
                && !files.contains(&format!("docs/{}", &name[..end + 3]))
            {
                faults.push(format!("{path}: docs/{name}: no such page"));
            }
        }
    }
    assert_none(faults);
}

/// What `weir` can do: its help by command, figures and scenarios.
struct Program {
    helps: BTreeMap<String, String>,
    figures: String,
    scenarios: String,
}

impl Program {
    /// The commands that a help lists.
    fn commands(help: &str) -> Vec<&str> {
        let listed = help.split_once("Commands:").map_or("", |(_, rest)| rest);
        let lines = listed.lines().skip(1).take_while(|line| line.starts_with("  "));
        lines.filter_map(|line| line.split_whitespace().next()).collect()
    }

    fn ask() -> Self {
        let mut helps = BTreeMap::from([(String::new(), weir(&["--help"]))]);
        for verb in Self::commands(&helps[""].clone()) {
            let help = weir(&[verb, "--help"]);
            for further in Self::commands(&help) {
                helps.insert(format!("{verb} {further}"), weir(&[verb, further, "--help"]));
            }
            helps.insert(verb.to_owned(), help);
        }
        Self { helps, figures: weir(&["reproduce", "--json"]), scenarios: weir(&["sim", "--list"]) }
    }

    fn has_figure(&self, name: &str) -> bool {
        name == "all" || self.figures.contains(&format!("\"{name}\""))
    }

    /// What is wrong with a line that begins with `weir`.
    fn fault(&self, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let options = words.iter().filter_map(|word| word.strip_prefix("--"));
        let named: Vec<&str> = words.iter().copied().take_while(|word| is_word(word)).collect();
        let mut commands: Vec<String> = vec![String::new()];
        let mut arguments = &named[..];
        while let Some((first, rest)) = arguments.split_first() {
            if Self::commands(&self.helps[&commands[0]]).is_empty() {
                break;
            }
            let under = commands[0].clone();
            commands =
                first.split('|').map(|word| format!("{under} {word}").trim().to_owned()).collect();
            if let Some(unknown) =
                commands.iter().find(|&command| !self.helps.contains_key(command))
            {
                return Some(format!("no command {unknown:?}"));
            }
            arguments = rest;
        }
        for option in options {
            let name: String =
                option.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            let known = |help: &str| {
                help.split_whitespace().any(|word| word.trim_matches(',') == format!("--{name}"))
            };
            if !name.is_empty() && !commands.iter().any(|command| known(&self.helps[command])) {
                return Some(format!("no option --{name}"));
            }
        }
        match commands[0].as_str() {
            "reproduce" => arguments
                .iter()
                .find(|name| !self.has_figure(name))
                .map(|name| format!("no figure {name}")),
            "sim" => arguments
                .first()
                .filter(|name| !self.scenarios.split_whitespace().any(|known| known == **name))
                .map(|name| format!("no scenario {name}")),
            _ => None,
        }
    }
}

/// A command or a name, or several with bars between: no option, placeholder or punctuation.
fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-|.".contains(c))
        && !ENDINGS.iter().any(|ending| word.ends_with(ending))
}

/// How many figures there are is said beside `weir reproduce all`.
#[test]
fn the_number_of_figures_is_that_of_the_list() {
    let listed = weir(&["reproduce", "--json"]).matches("\"id\":").count();
    let mut said = 0;
    for page in pages(&files()) {
        for line in read(&page.path).lines() {
            let Some((before, _)) = line.split_once(" of the papers' figures") else { continue };
            let word = before.rsplit(' ').next().unwrap_or_default();
            if let Ok(number) = word.parse::<usize>() {
                assert_eq!(number, listed, "{}: {line}", page.path);
                said += 1;
            }
        }
    }
    assert!(said > 0, "no page says how many figures there are");
}

#[test]
fn commands_exist_with_their_options() {
    let program = Program::ask();
    let makefile = read("Makefile");
    let (mut faults, mut commands) = (Vec::new(), 0);
    for page in pages(&files()) {
        for code in &page.code {
            let mut words = code.split_whitespace();
            let fault = match (words.next(), words.next()) {
                (Some("weir"), Some(verb)) if is_word(verb) => program.fault(code),
                (Some("make"), Some(target)) if is_word(target) => {
                    (!makefile.lines().any(|line| line.starts_with(&format!("{target}:"))))
                        .then(|| format!("no target {target}"))
                }
                (Some("cargo"), Some("run" | "test" | "bench")) => cargo_fault(code),
                (Some(name), None) if is_figure(name) => {
                    (!program.has_figure(name)).then(|| format!("no figure {name}"))
                }
                _ => continue,
            };
            commands += 1;
            faults.extend(fault.map(|fault| format!("{}: `{code}`: {fault}", page.path)));
        }
    }
    assert!(commands > 200, "only {commands} commands were found");
    assert_none(faults);
}

/// Every option of a command is on some page. Those of laboratories, benches and figures are in their help.
#[test]
fn every_option_is_explained() {
    const IN_THEIR_HELP: [&str; 6] = ["lab", "sim", "fib", "reproduce", "bench", "help"];
    let text: String = files()
        .iter()
        .filter(|path| *path == "README.md" || path.starts_with("docs/") && path.ends_with(".md"))
        .map(|path| read(path))
        .collect();
    let on_a_page = |option: &str| {
        text.split(option)
            .skip(1)
            .any(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '-'))
    };
    let (mut options, mut faults) = (0, Vec::new());
    for (command, help) in Program::ask().helps {
        if IN_THEIR_HELP.iter().any(|verb| command.split(' ').next() == Some(*verb)) {
            continue;
        }
        for line in help.lines().map(str::trim_start).filter(|line| line.starts_with('-')) {
            let Some(option) = line.split_whitespace().find(|word| word.starts_with("--")) else {
                continue;
            };
            options += 1;
            let option = option.trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
            if !["--help", "--version"].contains(&option) && !on_a_page(option) {
                faults.push(format!("weir {command} {option}: on no page"));
            }
        }
    }
    assert!(options > 150, "only {options} options were found");
    assert_none(faults);
}

/// Whether a word looks like the name of a figure: `jet-fig3`, `fib-eq3.8`, `jet-table2`.
fn is_figure(word: &str) -> bool {
    ["-fig", "-eq", "-table"].iter().any(|kind| {
        word.split_once(kind).is_some_and(|(paper, number)| {
            is_word(paper) && number.starts_with(|c: char| c.is_ascii_digit())
        })
    })
}

/// What is wrong with a line of cargo's: the package, its example or its test program.
fn cargo_fault(line: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |option: &str| {
        words.iter().position(|word| *word == option).and_then(|at| words.get(at + 1)).copied()
    };
    let package = after("-p")?;
    let directory = match package.strip_prefix("weir-") {
        Some(name) => format!("crates/{name}"),
        None => package.to_owned(),
    };
    if !root().join(&directory).join("Cargo.toml").exists() {
        return Some(format!("no package {package}"));
    }
    for (option, folder) in [("--example", "examples"), ("--test", "tests"), ("--bench", "benches")]
    {
        if let Some(name) = after(option) {
            let base = root().join(&directory).join(folder);
            if !base.join(format!("{name}.rs")).exists()
                && !base.join(name).join("main.rs").exists()
            {
                return Some(format!("no {directory}/{folder}/{name}.rs"));
            }
        }
    }
    None
}

/// The container recipe installs what `scripts/setup` finds that a build needs.
#[test]
fn the_container_has_what_a_build_needs() {
    let setup = read("scripts/setup");
    let needs = setup.split("find_missing() {").nth(1).expect("it says what is needed");
    // What follows is for running it.
    let needs = needs.split("# The store of several balancers.").next().unwrap_or_default();
    let recipe = read("packaging/Containerfile");
    let build = recipe.split("WORKDIR").next().unwrap_or_default();
    let words: BTreeSet<&str> = build.split_whitespace().collect();
    let mut found = 0;
    for line in needs.lines().filter_map(|line| line.trim().strip_prefix("need ")) {
        let package = line.split(' ').next().unwrap_or_default();
        let there = words
            .iter()
            .any(|word| *word == package || word.starts_with("clang-") && package == "clang");
        assert!(there, "{package} is not in packaging/Containerfile");
        found += 1;
    }
    assert!(found >= 8, "{found} packages of a build");
}

/// The site's reference has every command with its options, every field of the file, every request of the API: it is
/// made of what the program prints.
#[test]
fn the_site_has_a_reference_of_the_program() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let (said, out) = (folder.path().join("said"), folder.path().join("site"));
    let man = said.join("man");
    weir(&["man", &man.display().to_string()]);
    let (schema, api) = (weir(&["schema"]), weir(&["schema", "--api"]));
    fs::write(said.join("schema.json"), &schema).expect("a file");
    fs::write(said.join("api.json"), &api).expect("a file");
    let without = weir_site::write(root(), None, &out).unwrap_or_else(|error| panic!("{error}"));
    let with = weir_site::write(root(), Some(&said), &out);
    assert_eq!(with.unwrap_or_else(|error| panic!("{error}")), without + 3);
    let page = |name: &str| {
        let path = out.join(format!("reference-{name}.html"));
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let (commands, fields, requests) =
        (page("command-line"), page("configuration-fields"), page("api-requests"));
    let mut faults = Vec::new();
    let mut needs = |page: &str, words: String| {
        if !page.contains(&words) {
            faults.push(format!("no {words}"));
        }
    };
    for entry in fs::read_dir(&man).expect("manual pages") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        needs(&commands, format!("<h2 id=\"{name}\">"));
    }
    for option in ["--vip &lt;ADDRESS[:PORT]&gt;", "--prepare", "--break-connections", "--deadline"]
    {
        needs(&commands, format!("<code>{option}"));
    }
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    fn all_fields(schema: &serde_json::Value, found: &mut BTreeSet<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            found.insert(name.clone());
            all_fields(field, found);
            all_fields(&field["items"], found);
        }
    }
    let mut names = BTreeSet::new();
    all_fields(&parse(&schema), &mut names);
    assert!(names.len() > 100, "{names:?}");
    for name in names {
        // A field, or a table of its own.
        if !fields.contains(&format!("<code>{name}</code>")) {
            needs(&fields, format!("{name}]"));
        }
    }
    let api = parse(&api);
    for (path, methods) in api["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            needs(&requests, format!(">{} {path}</h2>", method.to_uppercase()));
        }
    }
    for name in api["components"]["schemas"].as_object().expect("schemas").keys() {
        needs(&requests, format!("<h3 id=\"{}\">", name.to_lowercase()));
    }
    assert_none(faults);
    // What the program does not print is told.
    fs::write(said.join("api.json"), "no JSON").expect("a file");
    let refused = weir_site::write(root(), Some(&said), &out).expect_err("it is told");
    assert!(refused.to_string().contains("api.json"), "{refused}");
}

/// The example for BIRD, as BIRD itself reads it: at its first start, when the folder is there and no file is in it,
/// and with a file of the two protocols.
#[test]
fn bird_takes_the_example_of_the_page() {
    const FOLDER: &str = "/run/weir-bird/";
    let page = read("docs/announcing.md");
    let line = read("examples/bird/weir-bird.conf");
    let line = line.lines().find(|line| line.starts_with("d ")).expect("a line of tmpfiles.d");
    assert!(page.lines().any(|one| one == line), "{line}: it is not the page's");
    let blocks: Vec<&str> = page.split("```").skip(1).step_by(2).collect();
    let of = |begin: &str| blocks.iter().find(|block| block.trim_start().starts_with(begin));
    let example = of("include \"").expect("what BIRD's own file needs");
    assert!(example.contains(&format!("include \"{FOLDER}bird.conf*\"")), "{example}");
    assert!(
        page.contains(&format!("file = \"{FOLDER}bird.conf\"")) && line.contains("/run/weir-bird ")
    );
    let home = tempfile::tempdir().expect("a temporary directory");
    let folder = home.path().join("weir-bird");
    let (config, written) = (home.path().join("own.conf"), folder.join("bird.conf"));
    let example = example.replace(FOLDER, &format!("{}/", folder.display()));
    fs::write(&config, format!("router id 192.0.2.1;\n{example}")).expect("a file");
    let bird = || {
        let mut command = Command::new("/usr/sbin/bird");
        command.arg("-p").arg("-c").arg(&config).output().expect("bird, of the package bird2")
    };
    let none = bird();
    assert!(!none.status.success(), "without the folder it takes none: why should it be made?");
    fs::create_dir(&folder).expect("a folder");
    let text = "protocol static weir4 {\n\tipv4;\n\troute 192.0.2.7/32 blackhole;\n}\n\
                protocol static weir6 {\n\tipv6;\n}\n";
    for file in [None, Some(text)] {
        if let Some(text) = file {
            fs::write(&written, text).expect("a file");
        }
        let taken = bird();
        let said = String::from_utf8_lossy(&taken.stderr);
        assert!(taken.status.success(), "{file:?}: {said}");
    }
}
