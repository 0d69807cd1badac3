#!/bin/busybox sh
# The first program of the virtual machine: loads modules, makes the host's files its own, runs the
# command in them, and switches the machine off. tests/rdma/guest.py packs it.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
off() {
    sync
    poweroff -f
    sleep 60
}
for module in /mod/*.ko; do
    insmod "$module" || echo "insmod $module failed"
done

share=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "$share,ro,cache=loose" root /lower || off
mount -t 9p -o "$share" job /job || off
mount -t tmpfs -o size=60% upper /upper
mkdir /upper/changed /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/changed,workdir=/upper/work all /new || off

cd /new || off
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
for folder in dev/shm run; do
    mount -t tmpfs tmpfs "$folder"
done
chmod 1777 dev/shm
ln -sf /proc/self/fd dev/fd
mkdir run/guest
mount --bind /job run/guest

if chroot /new /bin/bash /run/guest/setup.sh >/dev/console 2>&1 </dev/null; then
    . /job/settings
    : >/job/started
    chroot /new /usr/bin/timeout --kill-after=10 "$SECONDS_AT_MOST" /bin/bash /run/guest/command.sh \
        >>/job/out 2>>/job/err </dev/null
    echo $? >/job/status.new
    mv /job/status.new /job/status
fi
off
