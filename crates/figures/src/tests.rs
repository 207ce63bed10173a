//! What a report promises, on figures that take a moment.

use super::figure::{Measured, Scale, Setup, Size};
use super::machine::Machine;
use super::report::{Head, html};
use super::rows::{csv, rows};
use super::{Run, choose, compare, figures};
use std::collections::HashSet;

/// The figures that end in a second or two even when the tests run unoptimised; scripts/test runs
/// others.
const QUICK: [&str; 14] = [
    "concury-fig5",
    "concury-fig8",
    "concury-fig10",
    "concury-fig20",
    "concury-fig21",
    "concury-insert",
    "jet-fig5",
    "fib-eq3.8",
    "fib-fig3.20",
    "fib-fig3.22",
    "ludo-fig4.7",
    "ludo-fig4.12",
    "ludo-fig4.30",
    "ludo-messages",
];

fn runs(ids: &[&str]) -> Vec<Run> {
    let names: Vec<String> = ids.iter().map(|&id| id.to_owned()).collect();
    let run = |figure: &'static super::Figure| {
        let setup =
            Setup { size: Size::Smoke, seed: 7, program: "weir".as_ref(), progress: &|_| {} };
        Run { figure, measured: (figure.run)(&setup).unwrap(), seconds: 0.1 }
    };
    choose(&names).unwrap().into_iter().map(run).collect()
}

#[test]
fn every_figure_is_described_and_quotes_its_paper() {
    let all = figures();
    let ids: HashSet<&str> = all.iter().map(|figure| figure.id).collect();
    assert_eq!(ids.len(), all.len(), "ids are unique");
    for figure in all {
        let id = figure.id;
        for text in [figure.title, figure.paper, figure.measures, figure.why] {
            assert!(!text.is_empty(), "{id}");
        }
        assert!(!figure.charts.is_empty(), "{id}");
        // Where the paper has no number, the note says so.
        let silent = figure.note.starts_with("the paper");
        assert!(!figure.quotes.is_empty() || silent, "{id}: neither quotes its paper nor says why");
        for quote in figure.quotes {
            assert!(quote.chart < figure.charts.len(), "{id}: {}", quote.name);
            assert!(!quote.points.is_empty() && !quote.source.is_empty(), "{id}: {}", quote.name);
            if let Scale::Names(names) = figure.charts[quote.chart].x.scale {
                let named = |&(x, _): &(f64, f64)| x.fract() == 0.0 && (x as usize) < names.len();
                assert!(quote.points.iter().all(named), "{id}: {}", quote.name);
            }
        }
    }
}

/// Series that a run yields: finite values, in the order of x, in charts that exist; and every
/// quote of the paper names one of them, or none could ever be compared.
fn check(run: &Run) {
    let (figure, measured) = (run.figure, &run.measured);
    let id = figure.id;
    for (number, _) in figure.charts.iter().enumerate() {
        let points = measured.series.iter().filter(|s| s.chart == number);
        assert!(points.map(|s| s.points.len()).sum::<usize>() > 0, "{id}: chart {number} is empty");
    }
    for series in &measured.series {
        assert!(series.chart < figure.charts.len(), "{id}: {}", series.name);
        assert!(series.points.is_sorted_by(|a, b| a.x < b.x), "{id}: {}", series.name);
        for point in &series.points {
            assert!(point.x.is_finite() && point.y.is_finite(), "{id}: {point:?}");
            let inside = point.spread.is_none_or(|(low, high)| low <= point.y && point.y <= high);
            assert!(inside, "{id}: {point:?}");
        }
    }
    for quote in figure.quotes {
        let known = measured.find(quote.chart, quote.like).is_some();
        assert!(known, "{id}: no series is called {:?}", quote.like);
    }
    assert_eq!(compare::sentences(figure, measured).len(), figure.quotes.len(), "{id}");
}

#[test]
fn quick_figures_yield_what_they_describe() {
    runs(&QUICK).iter().for_each(check);
}

/// A run of each of the dissertation's figures, but for those of lookup rates, which take longer.
#[test]
fn the_dissertations_figures_yield_what_they_describe() {
    let rates = [
        "3.6", "3.7", "3.11", "3.12", "3.16", "3.26", "3.30", "3.34", "4.17", "4.20", "4.22",
        "4.26",
    ];
    let slow = |id: &str| rates.iter().any(|number| id.ends_with(&format!("fig{number}")));
    let of = |id: &str| id.starts_with("ludo-") || id.starts_with("fib-");
    let ids: Vec<&str> = (figures().iter().map(|figure| figure.id))
        .filter(|id| of(id) && !slow(id) && !QUICK.contains(id))
        .collect();
    assert!(ids.len() >= 10, "{ids:?}");
    runs(&ids).iter().for_each(check);
}

/// What a chart puts beside an equation does not depend on how fast anything is.
#[test]
fn counts_stand_where_the_equations_put_them() {
    let all = runs(&["fib-eq3.8", "ludo-fig4.7", "ludo-fig4.12", "ludo-fig4.30"]);
    let series = |id: &str, chart: usize, name: &str| {
        let run = all.iter().find(|run| run.figure.id == id).unwrap();
        run.measured.find(chart, name).unwrap_or_else(|| panic!("{id} {name}")).points.clone()
    };
    for name in ["OFW", "CFW"] {
        for point in series("fib-eq3.8", 2, name) {
            // 100,000 aliens and more: at least 700 false positives, but for the longest digests.
            let most = if point.x <= 8.0 { 0.1 } else { 0.3 };
            assert!((point.y - 1.0).abs() < most, "{name}, {} bits: {}", point.x, point.y);
        }
    }
    let seeds = series("ludo-fig4.7", 0, "by chance");
    for point in seeds.iter().filter(|p| p.x <= 6.0) {
        let failing = (29.0f64 / 32.0).powi((1 << point.x as u32) - 1);
        let found = 1.0 - point.y / 100.0;
        assert!((found - failing).abs() < 0.008, "{} bits: {found}, chance {failing}", point.x);
    }
    for point in series("ludo-fig4.12", 0, "Ludo") {
        // Whole pages and the hash key are what 20,000 keys have on top.
        let equation = 3.76 + 1.05 * point.x;
        assert!((0.97..1.08).contains(&(point.y / equation)), "l = {}: {}", point.x, point.y);
    }
    for name in ["Ludo", "Othello", "SetSep"] {
        assert!(series("ludo-fig4.30", 0, name).iter().all(|point| point.y == 0.0), "{name}");
    }
}

/// Opens and closes all tags of a page; returns those that stay open.
fn tags(page: &str) -> Vec<String> {
    let mut open = Vec::new();
    for piece in page.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap();
        let name: String =
            tag.trim_start_matches('/').chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        let void = ["meta", "DOCTYPE"].contains(&name.trim_start_matches('!'));
        if tag.starts_with('!') || tag.ends_with('/') || void {
            continue;
        }
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(&name[..]), "closed: {tag}");
        } else {
            open.push(name);
        }
    }
    open
}

#[test]
fn a_report_is_whole_and_refers_to_nothing_outside_itself() {
    let runs = runs(&QUICK);
    let machine = Machine::here();
    let page = html(&Head { machine: &machine, size: Size::Smoke, seed: 7 }, &runs);
    assert_eq!(tags(&page), [""; 0], "tags that stay open");
    for outside in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for run in &runs {
        let id = run.figure.id;
        assert!(page.contains(&format!("<section id=\"{id}\">")), "{id}");
        assert!(page.contains(&format!("href=\"#{id}\"")), "{id}");
    }
    let charts: usize = runs.iter().map(|run| run.figure.charts.len()).sum();
    assert_eq!(page.matches("<svg ").count(), charts);
    assert!(!page.contains("NaN") && !page.contains("inf "), "a value has no place");
}

/// Splits a line of CSV, quotes and all.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        let last = fields.len() - 1;
        match c {
            '"' if quoted && letters.peek() == Some(&'"') => {
                fields[last].push('"');
                letters.next();
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields[last].push(c),
        }
    }
    fields
}

#[test]
fn csv_reads_back() {
    for run in runs(&["concury-fig10", "jet-fig5"]) {
        let rows = rows(run.figure, &run.measured);
        let text = csv(&rows);
        let lines: Vec<Vec<String>> = text.lines().map(fields).collect();
        assert_eq!(lines.len(), rows.len() + 1);
        assert!(rows.iter().any(|row| row.origin == "weir"));
        assert!(rows.iter().any(|row| row.origin == "paper" && !row.source.is_empty()));
        let column = |name: &str| lines[0].iter().position(|c| c == name).unwrap();
        for (line, row) in lines[1..].iter().zip(&rows) {
            assert_eq!(line.len(), lines[0].len());
            assert_eq!(line[column("series")], row.series);
            assert_eq!(line[column("x_label")], row.x_label);
            assert_eq!(line[column("y")].parse(), Ok(row.y));
            assert_eq!(line[column("high")].parse().ok(), row.high);
        }
    }
}

#[test]
fn an_unknown_figure_is_refused_with_those_of_a_similar_name() {
    let error = choose(&["jet-fig33".into()]).err().unwrap().to_string();
    assert!(error.contains("jet-fig33") && error.contains("jet-fig3"), "{error}");
    let error = choose(&["all".into(), "nonsense".into()]).err().unwrap().to_string();
    assert!(error.contains("nonsense") && !error.contains("did you mean"), "{error}");
    let twice = choose(&["jet-fig4".into(), "jet-fig3".into(), "jet-fig4".into()]).unwrap();
    assert_eq!(twice.iter().map(|f| f.id).collect::<Vec<_>>(), ["jet-fig3", "jet-fig4"]);
    assert_eq!(choose(&["all".into()]).unwrap().len(), figures().len());
}

#[test]
fn ratios_and_bounds_are_said_as_they_are() {
    let figure = *figures().iter().find(|f| f.id == "concury-fig8").unwrap();
    let series = |ms: f64| super::figure::Series::of(0, "OthelloMap", [(8_192.0, ms)]);
    let said = |ms| {
        let measured = Measured { series: vec![series(ms)], facts: Vec::new() };
        compare::sentences(figure, &measured).join(" ")
    };
    assert!(said(1.0).contains("0.50 times"), "{}", said(1.0));
    assert!(said(5.0).contains("2.50 times"), "{}", said(5.0));
    // A bound along the axis, and a value at one place of it, are said apart.
    let memory = *figures().iter().find(|f| f.id == "concury-fig9").unwrap();
    let cells = memory.quotes[0].like;
    let ours = super::figure::Series::of(0, cells, [(1_000.0, 1.05), (64_000.0, 1.05)]);
    let said = compare::sentences(memory, &Measured { series: vec![ours], facts: Vec::new() });
    assert!(
        said[0].contains("bound from x = 1000 to x = 255K is at most 1;")
            && said[0].contains("ours there are 1.05 to 1.05, outside it"),
        "{said:?}"
    );
    assert!(said[1].contains("no value beside the paper's at x = 1M"), "{said:?}");
    let nothing = compare::sentences(figure, &Measured::default()).join(" ");
    assert!(nothing.contains("was not measured"), "{nothing}");
}
