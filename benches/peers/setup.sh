#!/usr/bin/env bash
# Installs the published wheels of Mooncake and NIXL into a directory of their own, and nothing anywhere
# else: deleting the directory undoes all of it. Prints the interpreter to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
home=${1:-target/peers}
mooncake="mooncake-transfer-engine-non-cuda==0.3.13.post1"
nixl="nixl==1.5.1 nixl-cu12==1.5.1"

if [ ! -e "$home/complete" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    python3 -m venv "$home/env" >&2
    # Without their dependencies: those are gigabytes of CUDA libraries, of which TCP needs none.
    # shellcheck disable=SC2086
    "$home/env/bin/pip" install --quiet --no-deps $mooncake $nixl numpy==2.4.6 >&2
    # Mooncake's engine is linked with the RDMA libraries, whatever carries its transfers.
    if ! ldconfig -p | grep -q libibverbs.so.1; then
        if ! command -v apt-get dpkg >/dev/null; then
            echo "Mooncake needs libibverbs.so.1: install your system's rdma-core first" >&2
            exit 1
        fi
        mkdir "$home/debs"
        (cd "$home/debs" && apt-get download -q libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 >&2)
        for package in "$home"/debs/*.deb; do
            dpkg -x "$package" "$home/system"
        done
    fi
    touch "$home/complete"
fi
echo "$home/env/bin/python"
