# Installs packages into a base system.  Runs on the controller as root, from mmdebstrap's customize hook.
# Arguments: root of the base system, number of apt sources, that many sources, and packages as name=version.
set -eu
root=$1 count=$2
shift 2

list="$root/etc/apt/sources.list.d/begin.list"
while [ "$count" -gt 0 ]; do
    echo "$1" >>"$list"
    shift
    count=$((count - 1))
done
# Here, names are resolved as on the controller; the host's own file returns below.
own="$root/etc/resolv.conf"
[ ! -e "$own" ] || mv "$own" "$own.own"
cp -L /etc/resolv.conf "$own"

chroot "$root" env DEBIAN_FRONTEND=noninteractive sh -euc '
    apt-get --quiet update
    apt-get --quiet --yes --no-install-recommends install "$@"
    apt-get clean' begin "$@"

rm "$own" "$list"
[ ! -e "$own.own" ] || mv "$own.own" "$own"
find "$root/var/lib/apt/lists" -type f -delete
