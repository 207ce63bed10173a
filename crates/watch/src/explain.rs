//! What `weir explain` shows.

use crate::text::Text;
use weir_control::engine::Explanation;

/// Where the packets of a flow go, and why, a line for each thing that is known.
pub fn explanation(said: Explanation) -> String {
    let mut text = Text::default();
    let mut lines = vec![("flow", Some(said.flow))];
    lines.push(("service", said.service.zip(said.method).map(|(s, m)| format!("{s} ({m})"))));
    let table = said.generation.zip(said.digest);
    lines.push(("table", table.map(|(g, d)| format!("generation {g}, digest {d}"))));
    lines.push(("source", said.source));
    lines.push(("QUIC id", said.id));
    lines.push(("hash", said.hash));
    let reserved = if said.reserved { " (reserved)" } else { "" };
    lines.push(("code", said.code.map(|code| format!("{code}{reserved}"))));
    // Where the method was not asked, nothing is known of the flow.
    let asked = |is: bool| said.generation.map(|_| if is { "yes" } else { "no" }.to_owned());
    lines.push(("known", asked(said.known)));
    lines.push(("pending", asked(said.pending)));
    let address = said.address.map_or_else(String::new, |address| format!(" ({address})"));
    let state = said.state.map_or_else(String::new, |state| format!(", {state}"));
    lines.push(("backend", said.backend.map(|backend| format!("{backend}{address}{state}"))));
    lines.push(("through", said.tunnel));
    lines.push(("next hop", said.next_hop));
    lines.push(("translated", said.translation));
    lines.push(("source", said.from));
    lines.push(("if it is new", said.backend_if_new));
    lines.push(("a SYN now", said.new_flows));
    lines.push(("dropped", said.dropped.map(|reason| format!("as {reason}"))));
    lines.push(("why", Some(said.why)));
    lines.push(("asked", (!said.asked.is_empty()).then(|| said.asked.join("; "))));
    for (name, value) in lines {
        if let Some(value) = value {
            text.line(format_args!("{name:<13}{value}"));
        }
    }
    for other in &said.fleet {
        let at = other.backend.as_deref().unwrap_or("no backend");
        let at = if other.answered { at } else { "no answer" };
        text.line(format_args!("{:<12} {at}: {}", format!("on {}:", other.balancer), other.why));
    }
    if said.disagreement {
        text.line("warning: the balancers of the fleet would not send it to the same backend");
    }
    text.all()
}
