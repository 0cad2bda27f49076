#!/bin/sh
# Hosts as network namespaces of this machine, on one switch, 10.77.0.1 and on; a cable can be cut.
#
#     hosts.sh make|remove NAME HOST...
#     hosts.sh cable NAME HOST up|down
#
# HOST runs a command by `ip netns exec NAME-HOST COMMAND`. NAME and HOST together have at most 15
# letters. `make` fails, with the reason, if the machine can't make them; `remove` removes them,
# and ends every process inside.
set -eu
what=$1 name=$2
shift 2
switch=$name-switch

make_hosts() {
    ip netns add "$switch"
    ip -n "$switch" link add sw type bridge
    ip -n "$switch" link set sw up
    n=1
    for host; do
        ip netns add "$name-$host"
        ip -n "$name-$host" link set lo up
        ip link add "$name$host" netns "$switch" type veth peer name eth0 netns "$name-$host"
        ip -n "$switch" link set "$name$host" master sw up
        ip -n "$name-$host" addr add "10.77.0.$n/24" dev eth0
        ip -n "$name-$host" link set eth0 up
        n=$((n + 1))
    done
}

remove_hosts() {
    for host in "$@" switch; do
        pids=$(ip netns pids "$name-$host" 2>/dev/null) || continue
        # shellcheck disable=SC2086 # a list
        [ -z "$pids" ] || kill -9 $pids 2>/dev/null || true
        ip netns del "$name-$host" 2>/dev/null || true
    done
}

case $what in
make) make_hosts "$@" ;;
remove) remove_hosts "$@" ;;
cable) ip -n "$switch" link set "$name$1" "$2" ;;
*) exit 2 ;;
esac
