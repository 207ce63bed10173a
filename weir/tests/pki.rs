//! `weir pki` as an operator uses it: files with right modes, nothing written over, and the end of each told.

mod common;

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

fn pki(directory: &Path, line: &str) -> Output {
    let mut words: Vec<&str> = vec!["pki"];
    words.extend(line.split(' '));
    let directory = directory.to_str().expect("a path");
    words.extend(["--directory", directory]);
    common::weir(&words)
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", common::stderr(output));
    common::stdout(output)
}

#[test]
fn an_authority_its_certificates_and_their_ends() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("pki");
    let none = pki(&directory, "issue b0 --role agent --address 10.0.0.21");
    assert_eq!(none.status.code(), Some(1));
    assert!(common::stderr(&none).contains("weir pki init"), "{}", common::stderr(&none));

    assert!(good(&pki(&directory, "init --days 60")).contains("ca.pem"));
    let said =
        good(&pki(&directory, "issue b0 --role agent --address 10.0.0.21,2001:db8::21 --days 7"));
    assert!(said.contains("b0.pem") && said.contains("until 20"), "{said}");
    good(&pki(
        &directory,
        "issue lb --role balancer --host lb.example --address 10.0.0.2 --days 50",
    ));
    let elsewhere = home.path().join("out");
    let to =
        format!("issue b1 --role agent --address 10.0.0.22 --days 50 -o {}", elsewhere.display());
    good(&pki(&directory, &to));
    let mode = elsewhere.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "it is made, for keys");
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let to = format!("issue b1 --role agent --address 10.0.0.22 --days 50 -o {}", file.display());
    let refused = pki(&directory, &to);
    assert_eq!(refused.status.code(), Some(1));
    assert!(common::stderr(&refused).contains("file: "), "{}", common::stderr(&refused));
    assert!(elsewhere.join("b1.key").exists() && !directory.join("b1.key").exists());
    for name in ["ca", "b0", "lb"] {
        let mode = directory.join(format!("{name}.key")).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }

    // One for a fleet's store that ends soon is warned of.
    let file = |name: &str| directory.join(name).display().to_string();
    let text = format!(
        "[balancer]\nname = \"lb1\"\ninterfaces = [\"eth0\"]\n[store]\nkind = \"etcd\"\n\
         endpoints = [\"https://10.0.0.9:2379\"]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\n",
        file("ca.pem"),
        file("b0.pem"),
        file("b0.key"),
    );
    let config = home.path().join("weir.toml");
    std::fs::write(&config, text).unwrap();
    let checked = good(&common::weir(&["check", "--config", config.to_str().unwrap()]));
    let words = format!("warning: this balancer's certificate for the store ({})", file("b0.pem"));
    assert!(checked.contains(&words) && checked.contains(" ends in "), "{checked}");

    // Whatever is there stays.
    let key = std::fs::read(directory.join("b0.key")).unwrap();
    for again in ["init", "issue b0 --role agent --address 10.0.0.21 --days 7"] {
        let refused = pki(&directory, again);
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            common::stderr(&refused).contains("is there already"),
            "{}",
            common::stderr(&refused)
        );
    }
    assert_eq!(std::fs::read(directory.join("b0.key")).unwrap(), key);
    for useless in [
        "issue b2 --role agent",
        "issue b2 --role balancer",
        "issue b2 --role agent --address 10.0.0.9 --host b2",
        "issue ../b2 --role agent --address 10.0.0.9",
        "issue b2 --role agent --address 10.0.0.9 --days 61",
        "issue b2 --role balancer --host http://lb.example/",
    ] {
        assert_eq!(pki(&directory, useless).status.code(), Some(1), "{useless}");
    }
    // Nobody has these addresses; those of the loopback interface everybody has.
    for role in ["agent", "balancer"] {
        for address in ["0.0.0.0", "::", "224.0.0.5", "ff02::1", "255.255.255.255"] {
            let line = format!("issue b2 --role {role} --days 7 --address 10.0.0.9,{address}");
            let refused = pki(&directory, &line);
            let said = common::stderr(&refused);
            assert_eq!(refused.status.code(), Some(1), "{line}");
            let words = format!("{address} is not the address of one host; give one that it has");
            assert!(said.contains(&words), "{line}: {said}");
        }
    }
    assert!(!directory.join("b2.key").exists());
    let to = elsewhere.display();
    let here = format!("issue here --role agent --address 127.0.0.1,::1 --days 7 -o {to}");
    good(&pki(&directory, &here));

    let text = good(&pki(&directory, "list"));
    assert!(text.contains("6 days left") || text.contains("7 days left"), "{text}");
    let rows: Value = serde_json::from_str(&good(&pki(&directory, "list --json"))).unwrap();
    let rows = rows.as_array().unwrap();
    let of = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(
        (of("lb")["role"].as_str(), of("b0")["role"].as_str()),
        (Some("balancer"), Some("agent"))
    );
    assert_eq!(of("weir")["role"], "authority");
    assert_eq!(of("b0")["addresses"], serde_json::json!(["10.0.0.21", "2001:db8::21"]));
    assert_eq!(of("lb")["hosts"], serde_json::json!(["lb.example"]));
    // A file that is none is named, and hides no other.
    std::fs::write(directory.join("none.pem"), "nothing").unwrap();
    let refused = pki(&directory, "list");
    assert!(common::stderr(&refused).contains("none.pem"), "{}", common::stderr(&refused));
    assert!(common::stdout(&refused).contains("lb.example"), "{}", common::stdout(&refused));
    assert_eq!(refused.status.code(), Some(1));
    // A key that is another authority's signs nothing.
    let other = tempfile::tempdir().unwrap();
    let other = other.path().join("pki");
    good(&pki(&other, "init"));
    std::fs::copy(other.join("ca.key"), directory.join("ca.key")).unwrap();
    let refused = pki(&directory, "issue b3 --role agent --address 10.0.0.9 --days 30");
    assert!(common::stderr(&refused).contains("it is not the key of"), "{refused:?}");
    assert!(!directory.join("b3.pem").exists() && !directory.join("b3.key").exists());
}

/// What docs/fleet.md says of an authority for a fleet's store, line by line.
#[test]
fn certificates_for_a_store_are_made_as_the_documentation_says() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("store");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/fleet.md");
    let page = std::fs::read_to_string(page).unwrap();
    let lines: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("weir pki "))
        .filter_map(|line| line.strip_suffix("--directory /etc/weir/store"))
        .collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in lines {
        good(&pki(&directory, line.trim_end()));
    }
    let shown = good(&pki(&directory, "list --json"));
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let roles: Vec<&str> =
        shown.as_array().unwrap().iter().filter_map(|one| one["role"].as_str()).collect();
    assert_eq!(roles, ["authority", "balancer", "agent"]);
    let nameless = pki(&directory, "issue lb2 --role agent");
    let said = common::stderr(&nameless);
    assert!(said.contains("--address (where it is a balancer"), "{said}");
}
