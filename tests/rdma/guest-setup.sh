# Runs in the virtual machine, among the host's files: makes the rails and their adapters.
set -eu
. /run/guest/settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
hostname guest
mkdir -p "/lib/modules/$(uname -r)"
mount --bind "$MODULES" "/lib/modules/$(uname -r)"

# Both ends of a rail are in one network namespace, since Soft-RoCE serves the first one only. So
# that packets do leave by one end and arrive by the other: addresses of this host are taken from
# outside, and who has them is written down instead of asked.
for setting in all/accept_local=1 default/accept_local=1 all/rp_filter=0 default/rp_filter=0; do
    echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/${setting%=*}"
done
# An address of IPv6 is used at once.
for folder in all default; do
    echo 0 >"/proc/sys/net/ipv6/conf/$folder/accept_dad"
done
ip link set lo up
for ((rail = 0; rail < RAILS; rail++)); do
    number=$(printf %02x "$rail")
    a=02:77:00:00:$number:0a b=02:77:00:00:$number:0b
    ip link add "a$rail" address "$a" mtu 9000 type veth peer name "b$rail" address "$b" mtu 9000
    ip address add "10.77.$rail.1/24" dev "a$rail"
    ip address add "10.77.$rail.2/24" dev "b$rail"
    ip link set "a$rail" up
    ip link set "b$rail" up
    ip neighbour replace "10.77.$rail.2" lladdr "$b" dev "a$rail" nud permanent
    ip neighbour replace "10.77.$rail.1" lladdr "$a" dev "b$rail" nud permanent
    for end in a b; do
        rdma link add "rxe_$end$rail" type rxe netdev "$end$rail"
    done
done
for ((tries = 0; tries < 100; tries++)); do
    grep -qLv ACTIVE /sys/class/infiniband/*/ports/1/state || break
    sleep 0.1
done
