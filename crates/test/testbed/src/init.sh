#!/bin/busybox sh
# First process of a test guest: brings up eth0 as the kernel command line says, then runs commands that
# arrive on the console, each in the background, and reports each one's output in lines that cannot be
# mistaken for anything the kernel prints.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /root /var/run
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mount -t tmpfs tmp /tmp
[ -e /dev/null ] || mknod -m 666 /dev/null c 1 3
stty raw -echo

name=guest if=eth0 mac= mtu= addr=
for word in $(cat /proc/cmdline); do
    case $word in
        hs.name=*) name=${word#*=} ;;
        hs.if=*) if=${word#*=} ;;
        hs.mac=*) mac=${word#*=} ;;
        hs.mtu=*) mtu=${word#*=} ;;
        hs.addr=*) addr=${word#*=} ;;
    esac
done
hostname "$name"

# eth0 as the command line says; also used after the driver was taken out and put back.
cat > /bin/network-up <<EOF
#!/bin/sh
if [ "$if" = none ]; then exit 0; fi
tries=0
until [ -e /sys/class/net/$if ] || [ -e /sys/class/net/eth0 ]; do
    tries=\$((tries + 1))
    if [ \$tries -gt 500 ]; then echo "no interface $if"; exit 1; fi
    usleep 10000
done
if [ ! -e /sys/class/net/eth0 ]; then ip link set $if name eth0; fi
if [ -n "$mac" ]; then ip link set eth0 address $mac; fi
if [ -n "$mtu" ]; then ip link set eth0 mtu $mtu; fi
# Addresses are chosen by the test: without waiting for duplicates they work at once.
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad
echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_ra
ip link set eth0 up
for a in $(echo "$addr" | tr , ' '); do ip addr add \$a dev eth0; done
EOF
chmod 755 /bin/network-up

for module in $(cat /modules/order); do
    insmod "/modules/$module" || echo "cannot insert $module"
done
ip link set lo up
network-up

report() {
    {
        echo
        base64 "/tmp/out.$1" | sed "s/^/@@o $1 /"
        base64 "/tmp/err.$1" | sed "s/^/@@e $1 /"
        echo "@@end $1 $2 $(wc -c < "/tmp/out.$1") $(wc -c < "/tmp/err.$1")"
    } > "/tmp/report.$1"
    # One report at a time, or their lines would mix.
    until mkdir /tmp/reporting 2>/dev/null; do usleep 5000; done
    cat "/tmp/report.$1" > /dev/console
    rmdir /tmp/reporting
    rm -f "/tmp/out.$1" "/tmp/err.$1" "/tmp/report.$1" "/tmp/command.$1"
}

# Runs what arrives on the console. No command is a child of the shell that reads: a child's end would interrupt it, and
# busybox then forgets what it has read of the line.
agent() {
    while read -r verb id code; do
        [ -n "$verb" ] || continue
        if [ "$verb" != RUN ]; then
            echo "the agent cannot read: $verb $id $code"
            continue
        fi
        ( (
            # This shell prefers its own ping, which lacks half of the options, to any program of that name.
            echo 'ping() { /usr/bin/ping "$@"; }' > "/tmp/command.$id"
            echo "$code" | base64 -d >> "/tmp/command.$id"
            sh "/tmp/command.$id" < /dev/null > "/tmp/out.$id" 2> "/tmp/err.$id"
            report "$id" $?
        ) & )
    done
}

# From here on the console belongs to the reports, and to what the kernel complains about.
dmesg -n 5
printf '\n@@ready\n'
exec 3<&0
agent <&3 &
# Commands become children of this shell, the first process.
wait
# Nobody is at the other end of the console any more.
poweroff -f
