# Mounts the version 2 hierarchy at /sys/fs/cgroup.  Sourced by root's scripts in their private mount namespaces.
# systemd of Debian 13 refuses the version 1 hierarchies that some machines still mount here.
if [ "$(stat --file-system --format=%T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount --recursive /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
