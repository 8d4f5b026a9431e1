# Removes the control groups of a light host that has ended.  Runs on the controller as root, in a private mount namespace.
# Argument: the control group.
set -eu
# As in start.sh.
if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount --recursive /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
group=/sys/fs/cgroup/$1
[ -d "$group" ] || exit 0
# The kernel takes a moment to end the processes of a host that was killed.
tries=100
while [ "$tries" -gt 0 ] && grep -q '^populated 1' "$group/cgroup.events"; do
    sleep 0.1
    tries=$((tries - 1))
done
find "$group" -depth -type d -exec rmdir {} +
