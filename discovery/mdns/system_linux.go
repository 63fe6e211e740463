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

// sharePort lets other processes have the port at the same time (RFC 6762 section 15).
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

// portShared says whether others on this host have the port, too: more sockets than
// are ours. If that cannot be known, it is.
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

// countPort returns how many sockets of a table in /proc/net have the port.
func countPort(table string) int {
	n := 0
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			n++
		}
	}
	return n
}

// openWatch asks the kernel to tell when interfaces and addresses come, go or change.
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

// watch pokes changed whenever f tells something, until f closes. What it was does not
// matter, nor do messages that were lost: the caller looks.
func watch(f *os.File, changed notify.Channel) error {
	b := make([]byte, 64<<10)
	for {
		if _, err := f.Read(b); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return err
		}
		changed.Notify()
	}
}
