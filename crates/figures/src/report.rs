//! The report: one HTML file that refers to nothing outside itself.

use super::figure::{Figure, Measured, Says, Scale};
use super::machine::Machine;
use super::number::short;
use super::plot::{self, escape};
use super::rows::{csv, rows};
use super::{Run, compare};
use std::fmt::Write;

const STYLE: &str = include_str!("report.css");

/// What a report says about its run.
pub struct Head<'a> {
    /// Where it was made.
    pub machine: &'a Machine,
    /// `smoke`, `normal` or `full`.
    pub size: super::figure::Size,
    /// Seed that everything was drawn from.
    pub seed: u64,
}

// Writing to a string cannot fail.
macro_rules! put {
    ($out:expr, $($rest:tt)*) => { let _ = writeln!($out, $($rest)*); };
}

/// The report: one HTML page with all runs, which refers to nothing outside itself.
pub fn html(head: &Head<'_>, runs: &[Run]) -> String {
    let mut out = String::new();
    put!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>weir reproduce: the papers' figures with our numbers</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>"
    );
    opening(&mut out, head);
    put!(out, "<nav><h2>Figures</h2>\n<ol>");
    for run in runs {
        let Figure { id, title, paper, .. } = run.figure;
        put!(
            out,
            "<li><a href=\"#{id}\">{}</a> <span class=\"dim\">{}</span></li>",
            escape(title),
            escape(paper)
        );
    }
    put!(out, "</ol></nav>");
    for run in runs {
        section(&mut out, run);
    }
    put!(out, "</main>\n</body>\n</html>");
    out
}

fn opening(out: &mut String, head: &Head<'_>) {
    put!(out, "<header><h1>The papers’ figures with our numbers</h1>");
    put!(
        out,
        "<p>Filled marks and solid lines are measured by <code>weir reproduce</code>; hollow marks \
         on dashed lines, and outlined bars, are the paper’s own numbers; arrowheads on dotted \
         lines are bounds that a paper states. Times and rates come from other machines than the \
         papers’: their ratios compare, their absolute values do not. Bars over points are \
         quartiles or the range of the seeds.</p>"
    );
    if head.size != super::figure::Size::Full {
        put!(
            out,
            "<p class=\"warn\">This is a run of size <b>{}</b>: smaller than the papers’ \
             experiments. What that changes is said with each figure.</p>",
            head.size.name()
        );
    }
    put!(out, "<table class=\"facts\"><tbody>");
    let mut facts = head.machine.rows();
    facts.push(("size", head.size.name().to_owned()));
    facts.push(("seed", head.seed.to_string()));
    for (what, value) in facts {
        put!(out, "<tr><th scope=\"row\">{what}</th><td>{}</td></tr>", escape(&value));
    }
    put!(out, "</tbody></table></header>");
}

fn section(out: &mut String, run: &Run) {
    let (figure, measured) = (run.figure, &run.measured);
    put!(
        out,
        "<section id=\"{}\">\n<h2>{}</h2>\n<p class=\"dim\">{} · <code>{}</code> · took {:.1} s</p>",
        figure.id,
        escape(figure.title),
        escape(figure.paper),
        figure.id,
        run.seconds
    );
    put!(out, "<p>{}</p>", escape(figure.measures));
    for (number, chart) in figure.charts.iter().enumerate() {
        put!(out, "<figure>");
        if !chart.title.is_empty() {
            put!(out, "<figcaption>{}</figcaption>", escape(chart.title));
        }
        out.push_str(&plot::svg(figure, measured, number));
        legend(out, figure, measured, number);
        put!(out, "</figure>");
    }
    beside(out, figure, measured);
    put!(out, "<h3>How ours differ, and why</h3>\n<ul>");
    for sentence in compare::sentences(figure, measured).iter().chain(&measured.facts) {
        put!(out, "<li>{}</li>", escape(sentence));
    }
    put!(out, "</ul>\n<p>{}</p>", escape(figure.why));
    if !figure.note.is_empty() {
        put!(out, "<p class=\"dim\">The paper’s numbers: {}</p>", escape(figure.note));
    }
    put!(
        out,
        "<details><summary>Rows (CSV)</summary><pre>{}</pre></details>\n</section>",
        escape(&csv(&rows(figure, measured)))
    );
}

fn legend(out: &mut String, figure: &Figure, measured: &Measured, number: usize) {
    put!(out, "<ul class=\"legend\">");
    let mut item = |class: &str, name: &str, text: String| {
        let colour = plot::colour(measured, name);
        put!(
            out,
            "<li class=\"c{colour}\"><span class=\"swatch {class}\"></span>{}</li>",
            escape(&text)
        );
    };
    for series in measured.series.iter().filter(|s| s.chart == number) {
        item("", &series.name, series.name.clone());
    }
    for quote in figure.quotes.iter().filter(|q| q.chart == number) {
        match quote.says {
            Says::Value => item("dashed", quote.like, format!("paper: {}", quote.name)),
            _ => item("dotted", quote.like, format!("paper’s bound: {}", quote.name)),
        }
    }
    put!(out, "</ul>");
}

/// The paper's numbers beside ours.
fn beside(out: &mut String, figure: &Figure, measured: &Measured) {
    put!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th>series</th><th>at</th>\
         <th class=\"n\">paper</th><th class=\"n\">ours</th><th class=\"n\">ours / paper</th>\
         <th>where in the paper</th></tr></thead><tbody>"
    );
    for quote in figure.quotes {
        let chart = &figure.charts[quote.chart];
        for &(x, y) in quote.points {
            let ours = measured.find(quote.chart, quote.like).and_then(|s| s.at(x));
            let at = match chart.x.scale {
                Scale::Names(names) => names.get(x as usize).copied().unwrap_or("").to_owned(),
                _ => short(x),
            };
            let at = match chart.title {
                "" => at,
                title => format!("{title}: {at}"),
            };
            let sign = match quote.says {
                Says::Value => "",
                Says::AtLeast => "≥ ",
                Says::AtMost => "≤ ",
            };
            let ratio = ours.filter(|_| y != 0.0).map_or("–".into(), |o| short(o / y));
            put!(
                out,
                "<tr><td>{}</td><td>{}</td><td class=\"n\">{sign}{}</td><td class=\"n\">{}</td>\
                 <td class=\"n\">{ratio}</td><td class=\"dim\">{}</td></tr>",
                escape(quote.name),
                escape(&at),
                short(y),
                ours.map_or("not at this size".into(), short),
                escape(quote.source)
            );
        }
    }
    put!(out, "</tbody></table></div>");
}
