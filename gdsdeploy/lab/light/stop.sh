# Removes the control groups of a light host that has ended.  Runs on the controller as root, in a private mount namespace.
# Argument: the control group.
set -eu
if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount --recursive /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
if [ -d "/sys/fs/cgroup/$1" ]; then
    find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
fi
