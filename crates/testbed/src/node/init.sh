# The first process of a node: when it ends, the kernel ends every other, and takes mounts and network away with them.
# It runs in its own mount, network and process namespaces. $1: the node's folder.
set -e
mount --make-rshared /
# What containerd, kubelet and CNI keep at fixed places stays inside.
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mkdir -p /run/lock /run/kubelet /var/lib/cni
mount -t tmpfs tmpfs /var/lib/cni
mount --bind "$1/kubelet" /run/kubelet
# Nothing beyond the host can be reached, so that names of registries are better unknown at once than after a time-out.
[ ! -e /etc/resolv.conf ] || mount --bind "$1/resolv.conf.of-node" /etc/resolv.conf
ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
# Clients of a test share one address and use its ports again within seconds. For two minutes, the kernel would send a new connection
# from a port whose last attempt reached no pod to that same pod.
syn_sent=/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_syn_sent
[ ! -e $syn_sent ] || echo 3 >$syn_sent
: >"$1/ready"
# Orphans of containers come here: waiting for any child reaps them.
while :; do
    sleep 1000000 &
    wait $!
done
