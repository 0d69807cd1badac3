#!/usr/bin/env bash
# Mooncake's engine is linked with the RDMA libraries, whatever carries its transfers. Where the system has
# none, they are put beneath DIRECTORY, where libraries.py looks for them.
#
#   benches/peers/libraries.sh DIRECTORY
set -euo pipefail
home=$1

if ldconfig -p | grep -q libibverbs.so.1 || [ -e "$home/system/complete" ]; then
    exit 0
fi
if ! command -v apt-get dpkg >/dev/null; then
    echo "Mooncake needs libibverbs.so.1: install your system's rdma-core first" >&2
    exit 1
fi
mkdir -p "$home/debs"
(cd "$home/debs" && apt-get download -q libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 >&2)
for package in "$home"/debs/*.deb; do
    dpkg -x "$package" "$home/system"
done
touch "$home/system/complete"
