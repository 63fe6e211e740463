package mdns

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/internal/notify"
)

// sharePort lets other processes use the port at the same time (RFC 6762 section 15).
func sharePort(_, _ string, c syscall.RawConn) error {
	var err error
	control := func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
	}
	if e := c.Control(control); e != nil {
		return e
	}
	return err
}

// portShared reports whether other processes on this host have the port, too: whether there are
// more sockets than ours. If that is unknown, it returns true.
func portShared(ours int) bool {
	n := 0
	for _, file := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
		b, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			return true
		}
		n += countPort(string(b))
	}
	return n > ours
}

// countPort returns how many sockets in a table of /proc/net have the port.
func countPort(table string) int {
	n := 0
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			n++
		}
	}
	return n
}

// openWatch subscribes to the kernel's notifications of changed interfaces and addresses.
func openWatch() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "rtnetlink"), nil
}

// watch notifies changed at each message of f, until f closes. The content of messages, and lost
// ones, do not matter: the caller lists the interfaces.
func watch(f *os.File, changed notify.Channel) error {
	b := make([]byte, 64<<10)
	for {
		if _, err := f.Read(b); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		changed.Notify()
	}
}
