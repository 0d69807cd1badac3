#!/usr/bin/env bash
# Installs the published wheels of Mooncake and NIXL into a directory of their own, and nothing anywhere
# else: deleting the directory undoes all of it. Prints the interpreter to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${1:-target/peers}

# What is installed follows from these: when one changes, it is installed anew.
wanted=$(cat benches/peers/{setup.sh,libraries.sh,wheels.txt} | sha256sum)

if [ "$(cat "$home/complete" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    python3 -m venv "$home/env" >&2
    "$home/env/bin/pip" install --quiet --no-deps -r benches/peers/wheels.txt numpy==2.4.6 >&2
    benches/peers/libraries.sh "$home"
    echo "$wanted" >"$home/complete"
fi
echo "$home/env/bin/python"
