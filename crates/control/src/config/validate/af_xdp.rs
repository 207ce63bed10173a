//! Validation of what a plane over AF_XDP sockets has.

use toml::Spanned;
use weir_dataplane::user::PLANE_THREADS;

use super::super::error::Problems;
use super::super::{AfXdp, written};
use super::scope::Scope;

/// What the file says of it.
pub(super) fn table(raw: Option<Spanned<written::AfXdp>>, problems: &mut Problems<'_>) -> AfXdp {
    let mut all = AfXdp::default();
    let Some(raw) = raw else { return all };
    let mut scope = Scope::new(problems, "af_xdp", raw.span());
    let threads = raw.get_ref().threads.as_ref();
    let threads = scope.integer(threads, "threads", 1..=PLANE_THREADS as u16);
    all.threads = threads.unwrap_or(all.threads);
    all
}

#[cfg(test)]
mod tests {
    use super::super::super::Config;

    fn parse(table: &str) -> Result<Config, String> {
        let text = format!(
            "[balancer]\nplane = \"af-xdp\"\ninterfaces = [\"eth0\"]\n{table}\n[[service]]\nname = \"web\"\n\
             vip = \"10.0.0.1\"\nport = 80\n[[service.backend]]\nname = \"b0\"\naddress = \"10.0.0.2\"\n"
        );
        Config::parse(&text, "weir.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn there_are_one_to_five_threads() {
        assert_eq!(parse("").unwrap().af_xdp.threads, 1);
        assert_eq!(parse("[af_xdp]").unwrap().af_xdp.threads, 1);
        assert_eq!(parse("[af_xdp]\nthreads = 5").unwrap().af_xdp.threads, 5);
        for (threads, wanted) in
            [("0", "give 1..5"), ("6", "give 1..5"), ("-1", "give 1..5"), ("\"2\"", "threads")]
        {
            let said = parse(&format!("[af_xdp]\nthreads = {threads}")).unwrap_err();
            assert!(said.contains("weir.toml:5: ") && said.contains(wanted), "{threads}: {said}");
        }
    }
}
