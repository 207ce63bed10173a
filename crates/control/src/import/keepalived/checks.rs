//! Checks of real servers.

use super::super::draft::{Check, Draft, Fields, quoted, seconds};
use super::Settings;
use super::words::{self, Item};

/// Whether a block of a real server is a check.
pub(super) fn is_check(name: &str) -> bool {
    name.ends_with("_CHECK") || matches!(name, "HTTP_GET" | "SSL_GET")
}

/// The check, or none if weir has nothing like it.
pub(super) fn check(item: &Item, settings: &Settings, draft: &mut Draft) -> Check {
    let mut fields = Fields::new();
    common(item, settings, &mut fields, draft);
    match item.word(0) {
        "TCP_CHECK" => {
            fields.insert("type", quoted("tcp"));
        }
        "SMTP_CHECK" => {
            draft.note(item.line, "SMTP_CHECK: weir asks for a TCP connection only");
            fields.insert("type", quoted("tcp"));
        }
        "HTTP_GET" => {
            fields.insert("type", quoted("http"));
            http(item, settings, &mut fields, draft);
        }
        "SSL_GET" => {
            fields.insert("type", quoted("https"));
            // keepalived looks at no certificate.
            fields.insert("verify", "false".into());
            http(item, settings, &mut fields, draft);
        }
        "DNS_CHECK" => dns(item, &mut fields, draft),
        "UDP_CHECK" => {
            if !udp(item, &mut fields, draft) {
                return Check::Off;
            }
        }
        "MISC_CHECK" => {
            if !script(item, &mut fields, draft) {
                return Check::Off;
            }
        }
        other => {
            draft.note(
                item.line,
                format!("{other}: weir has no such check; the backend counts as up"),
            );
            return Check::Off;
        }
    }
    Check::Of(fields)
}

/// What every check may have.
fn common(item: &Item, settings: &Settings, fields: &mut Fields, draft: &mut Draft) {
    let mut retries = settings.retries;
    let mut timeout = settings.timeout;
    let mut said = item.line;
    let is_http = matches!(item.word(0), "HTTP_GET" | "SSL_GET");
    for one in &item.items {
        super::further(one, values_of(one.word(0)), draft);
        match one.word(0) {
            "connect_port" => match one.word(1).parse::<u16>() {
                Ok(port) if port > 0 => drop(fields.insert("port", port.to_string())),
                _ => draft.note(one.line, format!("{:?} is no port", one.word(1))),
            },
            "connect_timeout" | "misc_timeout" => {
                timeout = one.word(1).parse().ok().or(timeout);
                said = one.line;
            }
            "retry" | "nb_get_retry" => retries = one.word(1).parse().ok().or(retries),
            "delay_before_retry" => {
                draft.note(one.line, "delay_before_retry: weir asks again after the interval");
            }
            "delay_loop" => {
                draft.note(one.line, "delay_loop of a check: the virtual server's holds")
            }
            "url" | "type" | "name" | "misc_path" | "user" | "misc_dynamic" | "enable_sni"
            | "payload" | "require_reply" | "min_reply_length" | "max_reply_length" => {}
            "virtualhost" if is_http => {}
            other => draft.note(one.line, format!("{other}: weir's checks have nothing like it")),
        }
    }
    // As long as keepalived has it otherwise.
    let interval = settings.interval.unwrap_or(super::INTERVAL).clamp(0.01, 3600.0);
    let timeout = timeout.filter(|timeout| timeout.is_finite() && *timeout > 0.0).unwrap_or(5.0);
    if timeout < interval {
        fields.insert("timeout", seconds(timeout));
    } else {
        let text =
            format!("a timeout of {timeout} s is not less than the interval: half of that it is");
        draft.note(said, text);
        fields.insert("timeout", seconds(interval / 2.0));
    }
    if let Some(retries) = retries {
        fields.insert("fall", retries.saturating_add(1).clamp(1, 1000).to_string());
    }
}

/// How many values of a setting of a check are read; none: as many as there are.
fn values_of(name: &str) -> Option<usize> {
    match name {
        "connect_port" | "connect_timeout" | "misc_timeout" | "retry" | "nb_get_retry"
        | "virtualhost" | "type" | "name" | "path" => Some(1),
        "url" | "misc_dynamic" => Some(0),
        _ => None,
    }
}

fn http(item: &Item, settings: &Settings, fields: &mut Fields, draft: &mut Draft) {
    // The narrowest one holds.
    let own = item.all("virtualhost").last().map(|one| one.word(1).to_owned());
    let mut host = own.or_else(|| settings.host.clone());
    let urls: Vec<&Item> = item.all("url").collect();
    for more in urls.iter().skip(1) {
        draft.note(more.line, "url: a check asks for one page; the first stays");
    }
    for one in urls.first().iter().flat_map(|url| &url.items) {
        super::further(one, values_of(one.word(0)), draft);
        match one.word(0) {
            "path" => drop(fields.insert("path", quoted(one.word(1)))),
            "virtualhost" => host = Some(one.word(1).to_owned()),
            "status_code" => {
                let codes: Vec<String> = one.values().iter().map(|code| quoted(code)).collect();
                fields.insert("status", format!("[{}]", codes.join(", ")));
            }
            "digest" => {
                draft.note(
                    one.line,
                    "digest: give `body`, what the page must contain, in its place",
                );
            }
            other => draft.note(one.line, format!("{other}: weir's checks have nothing like it")),
        }
    }
    if let Some(host) = host {
        fields.insert("host", quoted(&host));
    }
    // What is good there if it is not said.
    fields.entry("status").or_insert_with(|| "[\"200-299\"]".into());
}

fn dns(item: &Item, fields: &mut Fields, draft: &mut Draft) {
    const RECORDS: [&str; 9] = ["A", "AAAA", "NS", "SOA", "CNAME", "PTR", "MX", "TXT", "SRV"];
    let find = |name: &str| item.items.iter().find(|one| one.is(name));
    let said = |name: &str| find(name).map(|one| one.word(1));
    let record = said("type").unwrap_or("SOA").to_ascii_uppercase();
    fields.insert("type", quoted("dns"));
    fields.insert("query", quoted(said("name").unwrap_or(".")));
    if RECORDS.contains(&&*record) {
        fields.insert("record", quoted(&record));
    } else {
        let line = find("type").map_or(item.line, |one| one.line);
        draft.note(line, format!("type {record}: weir asks for A"));
    }
}

/// Whether there is a datagram to send, and an answer to wait for.
fn udp(item: &Item, fields: &mut Fields, draft: &mut Draft) -> bool {
    let mut is_answered = false;
    let hex = |one: &Item| {
        let text = one.values().concat();
        let whole = text.len().is_multiple_of(2) && text.chars().all(|c| c.is_ascii_hexdigit());
        (whole && !text.is_empty()).then(|| text.to_ascii_lowercase())
    };
    for one in &item.items {
        match (one.word(0), hex(one)) {
            ("payload", Some(bytes)) => drop(fields.insert("send_hex", quoted(&bytes))),
            ("payload", None) => draft.note(one.line, "payload: those are no bytes in hexadecimal"),
            ("require_reply", bytes) => {
                is_answered = true;
                match bytes {
                    Some(bytes) => drop(fields.insert("expect_hex", quoted(&bytes))),
                    None if one.words.len() > 1 => {
                        draft.note(
                            one.line,
                            "require_reply: weir has no placeholders; any answer will do",
                        );
                    }
                    None => {}
                }
            }
            ("min_reply_length" | "max_reply_length", _) => {
                draft.note(one.line, format!("{}: weir does not look at the length", one.word(0)));
            }
            _ => {}
        }
    }
    if !is_answered || !fields.contains_key("send_hex") {
        draft.note(
            item.line,
            "UDP_CHECK: weir's check sends a payload and waits for an answer (require_reply); the backend counts as up",
        );
        return false;
    }
    fields.insert("type", quoted("udp"));
    true
}

/// The words of a script's path and arguments. In quotation marks the arguments are part of the one value.
fn script_words(path: &Item) -> Option<Vec<String>> {
    let text = match path.values() {
        [whole] => whole.clone(),
        several => {
            // One with a blank was in quotation marks, which are gone.
            let whole = |word: &String| match word.contains(char::is_whitespace) {
                true => words::as_one(word),
                false => word.clone(),
            };
            several.iter().map(whole).collect::<Vec<_>>().join(" ")
        }
    };
    words::command(&text)
}

/// Whether there is a script that weir can run.
fn script(item: &Item, fields: &mut Fields, draft: &mut Draft) -> bool {
    let mut command = Vec::new();
    for one in &item.items {
        match one.word(0) {
            "misc_path" => match script_words(one) {
                Some(words) => command = words.iter().map(|word| quoted(word)).collect(),
                None => {
                    draft.note(
                        one.line,
                        "misc_path: a quotation mark in it is not closed, or nothing follows a \\; the backend counts as up",
                    );
                    return false;
                }
            },
            "user" => {
                fields.insert("user", quoted(one.word(1)));
                if one.words.len() > 2 {
                    draft.note(one.line, "user: scripts run with the user's own group");
                }
            }
            "misc_dynamic" => {
                draft.note(one.line, "misc_dynamic: weir takes no weight from a script");
            }
            _ => {}
        }
    }
    if command.is_empty() {
        draft.note(item.line, "MISC_CHECK without misc_path; the backend counts as up");
        return false;
    }
    fields.insert("type", quoted("script"));
    fields.insert("command", format!("[{}]", command.join(", ")));
    true
}
