//! What stands where.

/// The section that also has what is made of the program's own words.
pub const REFERENCE: &str = "Reference";

/// Sections with their pages, from the root of the repository. A test holds that every page of `docs` is here.
pub const SECTIONS: &[(&str, &[&str])] = &[
    (
        "Begin",
        &[
            "docs/concepts.md",
            "README.md",
            "docs/start.md",
            "docs/packages.md",
            "docs/import.md",
            "docs/comparison.md",
        ],
    ),
    (
        "How to",
        &[
            "docs/operations.md",
            "docs/troubleshooting.md",
            "docs/services.md",
            "docs/forwarding.md",
            "docs/agent.md",
            "docs/networks.md",
            "docs/health-checks.md",
            "docs/discovery.md",
            "docs/lists.md",
            "docs/new-flows.md",
            "docs/syn-floods.md",
            "docs/metrics.md",
            "docs/api.md",
            "docs/announcing.md",
            "docs/fleet.md",
            "docs/consistency.md",
            "docs/snapshot.md",
            "docs/trace.md",
        ],
    ),
    (REFERENCE, &["docs/configuration.md", "CHANGELOG.md"]),
    (
        "Methods",
        &[
            "docs/concury.md",
            "docs/tracked.md",
            "docs/residue.md",
            "docs/jet.md",
            "docs/cheetah.md",
            "docs/hnlb.md",
            "docs/quic.md",
            "docs/schedulers.md",
            "docs/placement.md",
            "docs/maglev.md",
            "docs/baselines.md",
        ],
    ),
    (
        "Inside",
        &[
            "ARCHITECTURE.md",
            "docs/planes.md",
            "docs/p4.md",
            "docs/maps.md",
            "docs/othello.md",
            "docs/fuse.md",
            "docs/ludo.md",
            "docs/cuckoo.md",
            "docs/digest.md",
            "docs/fib.md",
            "docs/add-a-method.md",
            "CONTRIBUTING.md",
        ],
    ),
    (
        "Measuring",
        &["docs/lab.md", "docs/sim.md", "docs/bench.md", "docs/reproduce.md", "docs/papers.md"],
    ),
];
