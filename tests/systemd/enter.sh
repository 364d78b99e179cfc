#!/usr/bin/env bash
# Makes the cgroup and the file system of a `World` and starts systemd there; or removes that cgroup again.
#   unshare --mount enter.sh start FOLDER GROUP COMMAND READABLE...
#   unshare --mount enter.sh remove FOLDER GROUP
# What that systemd starts, boot-time cleaners of /tmp among it, must not reach the machine's files. So it gets another
# root, on which the machine's files can only be read, and the machine's root is unmounted before anything is started.
set -euo pipefail
turn=$1 folder=$2 group=$3
shift 3

if [[ $turn != inside ]]; then
    mkdir -p "$folder/cgroup"
    mount -t cgroup2 cgroup2 "$folder/cgroup"
    group=$folder/cgroup/$group
    if [[ $turn == remove ]]; then
        echo 1 >"$group/cgroup.kill"
        until grep -q "populated 0" "$group/cgroup.events"; do sleep 0.02; done
        find "$group" -depth -type d -exec rmdir {} +
        exit 0
    fi
    mkdir "$group"
    echo $$ >"$group/cgroup.procs"
    exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup --net bash "$0" inside "$folder" "$group" "$@"
fi

command=$1
shift
root=$folder/root

mkdir -p "$root" "$folder"/{etc,local}/{upper,work} "$folder"/var/{lib,cache}
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir "$root"/{usr,etc,proc,sys,dev,run,tmp,var,root,old}
chmod 1777 "$root/tmp"
mount --bind -o ro /usr "$root/usr"
mount -t overlay overlay -o "lowerdir=/usr/local,upperdir=$folder/local/upper,workdir=$folder/local/work" "$root/usr/local"
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/etc/upper,workdir=$folder/etc/work" "$root/etc"
for name in bin sbin lib lib32 lib64 libx32; do
    if [[ -L /$name ]]; then cp -P "/$name" "$root/"; fi
done
mkdir "$root"/var/{lib,cache,log,tmp}
mount --bind "$folder/var/lib" "$root/var/lib"
mount --bind "$folder/var/cache" "$root/var/cache"
for readable; do
    mkdir -p "$root$readable"
    mount --bind -o ro "$readable" "$root$readable"
done
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind -o ro "/dev/$node" "$root/dev/$node"
done
mkdir "$root"/dev/{shm,pts}
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs tmpfs "$root/run"
mount -t proc proc "$root/proc"
for settings in sys irq bus; do
    mount --bind -o ro "$root/proc/$settings" "$root/proc/$settings"
done
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"

cd "$root"
pivot_root . old
umount --lazy /old
rmdir /old
for readable; do
    if touch "$readable/written" 2>/dev/null; then
        echo "$readable can be written in there: nothing is started" >&2
        exit 1
    fi
done
[[ $(stat --file-system --format=%T /tmp) == tmpfs && $(stat --file-system --format=%T /) == tmpfs ]]
mkdir -p /etc/systemd/system
printf '[Unit]\nDefaultDependencies=no\n' >/etc/systemd/system/world.target
exec env -i PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin container=test \
    "$command" --system --unit=world.target --log-target=console --show-status=no
