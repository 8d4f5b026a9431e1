# Starts a light host.  Runs on the controller as root, in a private mount namespace: its mounts end with the host's
# last process.
# Arguments: the host's folder, the base system, the control group (empty: this machine's systemd makes one), and the
# command line that becomes the host.
set -eu
host=$1 base=$2 group=$3
shift 3

if [ -e "$host/upper" ]; then
    mount -t overlay -o "lowerdir=$base,upperdir=$host/upper,workdir=$host/work" lab "$host/root"
fi
if [ ! -e "$host/root/etc/lab-seeded" ]; then
    tar --extract --file="$host/seed.tar" --directory="$host/root" --no-overwrite-dir --same-permissions
    : >"$host/root/etc/lab-seeded"
fi
# A light host shares the controller's network and name servers.
cp -L /etc/resolv.conf "$host/root/etc/resolv.conf"
# systemd of Debian 13 refuses the version 1 hierarchies that some machines still mount here.
if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount --recursive /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
# nspawn puts each host in /payload of its own control group.  Hosts that share it can stop each other's services.
if [ -n "$group" ]; then
    mkdir -p "/sys/fs/cgroup/$group"
    echo $$ >"/sys/fs/cgroup/$group/cgroup.procs"
fi
rm -f "$host/pid"
setsid sh -c 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@"' "$host/pid" "$@" \
    >>"$host/console.log" 2>&1 </dev/null &
