# Sourced by the other scripts: where things are, and how to become root.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Rust's own installer puts cargo into a directory that is in nobody's PATH before the next login,
# and `su` leaves out the directories of nginx and ethtool.
export PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH:/usr/sbin:/sbin"

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "$0: needs root, and sudo is not installed: $*" >&2
        return 1
    fi
}

# Builds stay the caller's; programs that need namespaces and BPF run as root.
weir() {
    as_root target/release/weir "$@"
}

# The tests of a workspace that the caller builds, run as root.
if [ "$(id -u)" != 0 ]; then
    triple=$(rustc -vV 2>/dev/null | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_' || true)
    [ -z "$triple" ] || export "CARGO_TARGET_${triple}_RUNNER=sudo --preserve-env"
fi
